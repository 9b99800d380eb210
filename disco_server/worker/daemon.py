"""The worker daemon: its spare interpreters, its line to the controller, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from disco_server.config import WorkerConfig
from disco_server.worker.agent import Agent
from disco_server.worker.array_service import ArrayService, choose_address
from disco_server.worker.spares import Spares

__all__ = ["run"]

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run(config: WorkerConfig) -> int:
    """Runs a worker daemon until it is told to stop; returns the exit code.

    Raises:
        ConfigError: It cannot listen where it was told to.
    """
    return asyncio.run(_run(config))


async def _run(config: WorkerConfig) -> int:
    stop, stop_now = asyncio.Event(), asyncio.Event()
    _on_signals(stop, stop_now)
    spares = Spares(config.warm, rank_environment(config))
    agent = Agent(config, spares)
    listen = config.array_address or choose_address(config.controller_address)
    arrays = ArrayService(listen, lambda: agent.supervisor)
    try:
        await arrays.start()
        agent.array_address = arrays.address
        await spares.fill()
        running = asyncio.ensure_future(agent.run())
        announcing = asyncio.ensure_future(_announce(agent, config))
        await stop.wait()
        leaving = asyncio.ensure_future(agent.leave())
        hurried = asyncio.ensure_future(stop_now.wait())
        await asyncio.wait((leaving, hurried), return_when=asyncio.FIRST_COMPLETED)
        for task in (running, announcing, leaving, hurried):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    finally:
        await arrays.stop()
        await spares.close()
    return 0


async def _announce(agent: Agent, config: WorkerConfig) -> None:
    """Prints the one line that is promised, at the first registration."""
    await agent.registered.wait()
    print(  # noqa: T201  (the line that scripts wait for)
        f"disco-worker ready: node {config.name}, {config.slots} slots, "
        f"controller {config.controller}",
        flush=True,
    )


def _on_signals(stop: asyncio.Event, stop_now: asyncio.Event) -> None:
    def asked() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)


def rank_environment(config: WorkerConfig) -> dict[str, str]:
    """The environment of rank processes: this one's, without secrets, with few threads.

    A rank's numerical libraries would each start a thread for every core, which
    on a node with several ranks is far too many; what the person set stands.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI_", "DISCO_AUTH", "DISCO_TLS"))
    }
    for name in _THREAD_VARIABLES:
        environ.setdefault(name, str(config.rank_threads))
    return environ
