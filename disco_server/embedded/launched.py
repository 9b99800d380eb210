"""The session whose ranks an MPI launcher started: one for each process of a job step."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from disco_client.arguments import check_name, check_session
from disco_client.clock import monotonic
from disco_client.connection import owner
from disco_client.errors import NoSlots
from disco_client.output import print_logs, say
from disco_client.session import Session
from disco_client.text import many, some
from disco_client.transport.base import Wish
from disco_client.waiting import AUTO, read_hang_report
from disco_server.config import Address, WorkerConfig
from disco_server.embedded.sockets import (
    OPEN_S,
    OWN_RANKS,
    EmbeddedNode,
    import_path,
    open_on,
)
from disco_server.ipc.event_loop import RunLoop
from disco_server.observe.processes import be_subreaper
from disco_server.security import Guard
from disco_server.settings import check_system
from disco_server.worker.agent import Agent
from disco_server.worker.daemon import WorkerNode
from disco_server.worker.environment import rank_environment
from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = ["LaunchedSession", "join", "listen"]

_ANYWHERE = Address("0.0.0.0", 0)  # noqa: S104  (guarded: the others may be on other machines)
_QUIET_S = 10.0
"""A wait for the other processes that is shorter is not worth a message."""

_LOST_S = 30.0
"""How long the other processes look for the first one, before they take it for ended."""

_LOOK_S = 1.0


def listen(launcher: LauncherPmi, guard: Guard) -> EmbeddedNode:
    """Starts the controller, and the node of this process, which is the launcher's first.

    Args:
        launcher: The launcher.
        guard: How the port for the other processes is guarded.

    Raises:
        ConfigError: This system cannot watch processes.
        ConnectionFailed: The node did not come up.
    """
    check_system("a session of an MPI launcher's processes")
    return EmbeddedNode(_ANYWHERE, launcher.size, 1, guard, launcher)


class LaunchedSession(Session):
    """A session whose workers are those of an MPI launcher's processes, in its MPI world.

    Made by ``disco run`` in the first process of a job step.

    Args:
        node: The controller, and the node of this process; stopped with the session.
        launcher: The launcher.
        num_groups: Into how many equal, consecutive groups the workers are divided.
        name: The session's name in logs.
        ccl: The collective library; None lets the first collective choose.
        timeout: Seconds to wait for the other processes.
        logs: Whether workers' output is written to this process's standard error.
        hang_report: As for `SocketSession`.

    Raises:
        ConfigError: An argument is wrong.
        NoSlots: Not all processes joined in time; the message says which did not.
        WorkerLost: A worker process could not be started.
    """

    def __init__(
        self,
        node: EmbeddedNode,
        launcher: LauncherPmi,
        *,
        num_groups: int = 1,
        name: str = "",
        ccl: str | None = None,
        timeout: float = 90.0,
        logs: bool = True,
        hang_report: float | None = AUTO,
    ) -> None:
        try:
            check_session(launcher.size, num_groups, ccl, timeout)
            check_name(name)
            read_hang_report(hang_report)
            _await_processes(node, launcher.size, timeout)
            wish = Wish(launcher.size, num_groups, ccl or "", name, owner(), OPEN_S)
            transport, span = open_on(node, wish)
        except BaseException:
            node.stop()
            raise
        super().__init__(
            transport,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
            span=span,
        )


def _await_processes(node: EmbeddedNode, size: int, timeout: float) -> None:
    began, said = monotonic(), False

    def missing() -> list[str]:
        came = {int(name.rpartition("-")[2]) for name in node.joined}
        return [f"process {rank}" for rank in range(1, size) if rank not in came]

    def tell() -> None:
        nonlocal said
        if not said and monotonic() - began > _QUIET_S:
            said = True
            say(f"disco: waiting for {some(missing())} of the launcher's {size}")

    if not node.wait_for_nodes(timeout, tell):
        msg = (
            f"expected {many(size, 'process', 'processes')} of the MPI launcher, within"
            f" {timeout:g} s there was no sign of {some(missing())}; each must reach"
            f" {socket.gethostname()} over TCP"
        )
        raise NoSlots(msg, total_slots=size, free_slots=size - len(missing()))


def join(launcher: LauncherPmi, controller: Address, guard: Guard) -> int:
    """Serves the session as one of the launcher's other processes; returns the exit code.

    Args:
        launcher: The launcher.
        controller: Where the first process listens.
        guard: Has this process's certificate and the authority's.
    """
    check_system("a session of an MPI launcher's processes")
    config = WorkerConfig(
        controller=str(controller),
        slots=1,
        name=launcher.node_name,
        once=True,
        tls_ca=guard.tls_ca,
        tls_cert=guard.tls_cert,
        tls_key=guard.tls_key,
        require_client_cert=True,
        **OWN_RANKS,
    )
    # The first process hears the signal as well, and its program decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_subreaper()
    with asyncio.Runner(loop_factory=RunLoop) as runner:
        return runner.run(_serve(launcher, config))


async def _serve(launcher: LauncherPmi, config: WorkerConfig) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    environ = {**rank_environment(config), "PYTHONPATH": os.pathsep.join(import_path())}
    async with WorkerNode(config, environ, alone=True, launcher=launcher) as node:
        told = asyncio.ensure_future(stop.wait())
        over = asyncio.ensure_future(_until_over(node.agent))
        await asyncio.wait((told, over), return_when=asyncio.FIRST_COMPLETED)
        why = over.result() if over.done() else ""
        for task in (told, over):
            task.cancel()
        await node.agent.leave()
    if why:
        say(f"disco: process {launcher.rank}: {why}")
    return 128 + signal.SIGTERM if stop.is_set() else int(bool(why))


async def _until_over(agent: Agent) -> str:
    """Waits for the end of the only session; returns what is wrong, if it cannot come."""
    loop = asyncio.get_running_loop()
    over = asyncio.ensure_future(agent.supervisor.over.wait())
    heard = loop.time()
    while not over.done():
        await asyncio.wait((over,), timeout=_LOOK_S)
        if agent.registered.is_set():
            heard = loop.time()
        elif loop.time() - heard > _LOST_S:
            over.cancel()
            return f"the first process of the launcher has not been heard of for {_LOST_S:g} s"
    return ""
