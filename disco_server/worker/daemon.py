"""The worker daemon: its fork server, its connection to the controller, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Self

from disco_client.errors import ConfigError
from disco_client.output import logger_of, say
from disco_client.telemetry.spans import setup
from disco_client.text import many
from disco_server.collectives.mpich_memory import KVS_VARIABLE
from disco_server.config import Account, WorkerConfig
from disco_server.ipc.certificates import listener_secrets
from disco_server.ipc.event_loop import RunLoop
from disco_server.ipc.grpc_server import warn_of_open_listener
from disco_server.observe.http import HttpListener, exposition
from disco_server.observe.logs import setup_audit
from disco_server.observe.open_files import Need
from disco_server.observe.processes import be_subreaper
from disco_server.rank.process import confinement_of
from disco_server.settings import OFF, RANK_VARIABLES, check_system
from disco_server.worker.agent import Agent
from disco_server.worker.array_server import make_array_server
from disco_server.worker.environment import WorkFolders, identity, rank_environment
from disco_server.worker.fork_server import ForkServer

if TYPE_CHECKING:
    from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = ["WorkerNode", "run"]

_logger = logger_of("disco.worker")

_FILES_A_SLOT = 8
"""A rank has five here, and the parent of a session's ranks one; some more for its arrays."""


def run(config: WorkerConfig) -> int:
    """Runs a worker daemon until a signal, or the end of its only session; returns the exit code.

    Raises:
        ConfigError: It cannot listen at a configured address, a variable is malformed, or this
            machine lacks what ranks need.
    """
    check_system("a worker daemon")
    setup_audit(config.audit_log)
    setup("disco-worker", {"disco.node": config.name})
    warn_of_open_listener(_logger, config.guard)
    config.credentials.check()
    Need(config.slots, _FILES_A_SLOT, "slots", "--slots").check(_logger)
    for variable in RANK_VARIABLES:
        variable.value()
    with asyncio.Runner(loop_factory=RunLoop) as runner:
        return runner.run(_run(config))


async def _run(config: WorkerConfig) -> int:
    stop, stop_now = asyncio.Event(), asyncio.Event()
    _on_signals(stop, stop_now)
    account = Account.find(config.user)
    await _try_account(account)
    environment = rank_environment(config, account=account)
    be_subreaper()
    async with (
        WorkerNode(config, environment, account, alone=True) as node,
        _watched(node, config),
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, node.agent.cordon)
        announcing = asyncio.ensure_future(_announce(node.agent, config))
        serving = asyncio.ensure_future(_serve(node.agent, stop, once=config.once))
        await stop.wait()
        if config.drain_s:
            await _drain(node.agent, config.drain_s, stop_now)
        leaving = asyncio.ensure_future(node.agent.leave())
        hurried = asyncio.ensure_future(stop_now.wait())
        await asyncio.wait((leaving, hurried), return_when=asyncio.FIRST_COMPLETED)
        await _cancel(announcing, serving, leaving, hurried)
    return 0


async def _drain(agent: Agent, seconds: float, hurry: asyncio.Event) -> None:
    """Lets sessions go on for a while; their programs learn that this node is about to go."""
    agent.cordon()
    if running := len(agent.supervisor.sessions):
        _logger.warning("%s may go on for %g s", many(running, "session"), seconds)
    over = asyncio.ensure_future(agent.supervisor.idle.wait())
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((over, hurried), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    await _cancel(over, hurried)
    hurry.clear()


async def _serve(agent: Agent, stop: asyncio.Event, *, once: bool) -> None:
    """Asks this daemon to stop when its only session has ended, if there is to be only one."""
    if once:
        await agent.supervisor.begun.wait()
        agent.cordon()
        await agent.supervisor.over.wait()
        stop.set()


async def _try_account(account: Account | None) -> None:
    """Makes sure that ranks can run as another user.

    Raises:
        ConfigError: That user may not run or read this Python.
    """
    if account is None:
        return
    why = ""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", "import disco_server.config"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            **identity(account),
        )
        _, said = await process.communicate()
        if process.returncode:
            why = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
    except OSError as error:
        why = str(error)
    if why:
        raise ConfigError(f"--user: {account.name!r} may not run {sys.executable}: {why}")


@contextlib.asynccontextmanager
async def _watched(node: WorkerNode, config: WorkerConfig) -> AsyncGenerator[None]:
    """Serves the node's metrics over HTTP meanwhile, if configured."""
    if config.http == OFF:
        yield
        return
    from disco_server.worker.metrics import collect

    agent = node.agent
    door = HttpListener(
        config.http_address,
        exposition(lambda: collect(agent.supervisor)),
        lambda: "" if agent.registered.is_set() else "not registered with the controller",
        secrets=listener_secrets(config.guard),
    )
    await door.open()
    try:
        yield
    finally:
        await door.close()


class WorkerNode:
    """All of one node: its fork server, its array server, its connection to the controller.

    An asynchronous context manager: inside it the node keeps itself registered,
    and when it is left nothing of the node runs any more.

    Args:
        config: The settings of the daemon.
        environ: The environment of its ranks.
        account: The user that they run as, if not this process's user.
        alone: Whether this process runs nothing but the node, as a daemon's does.
        launcher: See `NodeServices`.

    Attributes:
        agent: The connection to the controller.

    Raises:
        ConfigError: It cannot listen at a configured address.
    """

    def __init__(
        self,
        config: WorkerConfig,
        environ: Mapping[str, str],
        account: Account | None = None,
        *,
        alone: bool = False,
        launcher: LauncherPmi | None = None,
    ) -> None:
        self._folders = WorkFolders(config.work_dir, account)
        names = {} if launcher is None else {KVS_VARIABLE: launcher.kvsname}
        variables = {**environ, **confinement_of(config), **names}
        self._fork_server = ForkServer(variables, account, alone=alone)
        self.agent = Agent(config, self._fork_server, self._folders, account, launcher=launcher)
        self._array_server = make_array_server(
            config.array_address, config.controller_address, self.agent.arrays, guard=config.guard
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            if self._array_server is not None:
                await self._array_server.start()
                self.agent.array_address = self._array_server.address
            await self._fork_server.start()
        except BaseException:
            await self._close()
            raise
        self._running = asyncio.ensure_future(self.agent.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        try:
            if self._running is not None:
                await _cancel(self._running)
        finally:
            if self._array_server is not None:
                await self._array_server.stop()
            await self._fork_server.close()
            self._folders.close()


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Ends tasks and waits for their ends."""
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _announce(agent: Agent, config: WorkerConfig) -> None:
    """Prints the one promised line at the first registration."""
    await agent.registered.wait()
    say(  # the line that scripts wait for
        f"disco-worker ready: node {config.name}, {many(config.slots, 'slot')}, "
        f"controller {config.controller}",
        "stdout",
    )


def _on_signals(stop: asyncio.Event, stop_now: asyncio.Event) -> None:
    def asked() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
