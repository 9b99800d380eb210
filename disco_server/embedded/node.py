"""A controller and its first node, on one thread of the client's process.

The controller has two doors over one hub: a private one on a Unix socket, for the
session and for node 0, and one at the address that the other nodes dial, which
offers nothing but what nodes need. So nobody who reaches that address can open a
session of their own on these workers. The thread starts every process of node 0
and lives until the last of them is gone, because the kernel ends them with it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from disco_client.errors import ConnectionFailed
from disco_server.config import Address, ControllerConfig, WorkerConfig
from disco_server.controller.daemon import Door, beat
from disco_server.controller.hub import Hub
from disco_server.controller.servicer import NODE_SERVICES
from disco_server.core.placement import EvenLayout
from disco_server.guarding import Guard
from disco_server.worker.daemon import WorkerNode
from disco_server.worker.environment import rank_environment

__all__ = ["FIRST_NODE", "EmbeddedNode"]

FIRST_NODE = "node-0"
"""The name of the node that is the client's own process."""

_logger = logging.getLogger("disco.embedded")
# In a program that is not ours, what is logged is for the handlers it has set up.
logging.getLogger("disco").addHandler(logging.NullHandler())

_OPEN = Guard()
_START_S = 30.0
_DRAIN_S = 5.0
_GOODBYE_S = 1.0
_STOP_S = 15.0
_LOOK_S = 0.25
_RETURN_S = 5.0
"""How long the workers of other nodes outlive this process, or a broken connection to it."""

_NODE_LEASE_S = 30.0
"""A program may keep this process from turning its loop for a while."""


class EmbeddedNode:
    """Runs from its making until :meth:`stop`.

    Args:
        listen: Where the other nodes find the controller; port 0 picks a free one.
        nodes: How many nodes the session will have, this one included.
        per_node: How many workers run on each.
        guard: How the door for the other nodes is guarded.

    Attributes:
        address: Where the controller listens for nodes.
        private: Where it listens for the session.

    Raises:
        ConfigError: The address cannot be listened on, or a certificate not be read.
        ConnectionFailed: The node did not come up.
    """

    def __init__(self, listen: Address, nodes: int, per_node: int, guard: Guard = _OPEN) -> None:
        self._listen = listen
        self._guard = guard
        self._layout = EvenLayout(FIRST_NODE, nodes, per_node)
        self._loop = asyncio.SelectorEventLoop()
        self._stop = asyncio.Event()
        self._started: concurrent.futures.Future[tuple[Hub, Address, Address]]
        self._started = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="disco-node-0", daemon=True)
        self._thread.start()
        try:
            self._hub, self.address, self.private = self._started.result()
        except BaseException:
            self.stop()
            raise

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                _logger.exception("the embedded controller failed")
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="disco-node-"))
        config = ControllerConfig(session_lease_s=_RETURN_S, node_lease_s=_NODE_LEASE_S)
        hub = Hub(
            config.session_lease_s,
            config.node_lease_s,
            config.heartbeat_s,
            node_return=config.node_return_s,
            placer=self._layout.place,
            min_slots=self._layout.per_node,
        )
        doors: list[Door] = []
        beating = asyncio.ensure_future(beat(hub))
        try:
            doors.append(Door(hub, self._listen, NODE_SERVICES, guard=self._guard))
            doors.append(Door(hub, Address(path=str(folder / "controller"))))
            await self._serve_nodes(hub, *doors)
        finally:
            beating.cancel()
            hub.dismiss("its session is over")
            for door in doors:
                await door.close(_GOODBYE_S)
            shutil.rmtree(folder, ignore_errors=True)

    async def _serve_nodes(self, hub: Hub, public: Door, private: Door) -> None:
        await private.open()
        config = WorkerConfig(
            controller=str(private.address),
            slots=self._layout.per_node,
            name=FIRST_NODE,
            # The ranks are this program's own, and it may import and read anything anyway.
            allow_modules=("*",),
            allow_read=("*",),
            allow_save=("*",),
            allow_load=("*",),
            env=("*",),
            warm=0,
        )
        environ = {**rank_environment(config), "PYTHONPATH": os.pathsep.join(import_path())}
        async with WorkerNode(config, environ) as node:
            try:
                await asyncio.wait_for(node.agent.registered.wait(), _START_S)
            except TimeoutError:
                msg = f"the workers of this process were not ready within {_START_S:.0f} s"
                raise ConnectionFailed(msg) from None
            # Only now, so that nobody else can have taken the name of this node.
            await public.open()
            self._started.set_result((hub, public.address, private.address))
            await self._stop.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hub.drain(), _DRAIN_S)

    @property
    def joined(self) -> tuple[str, ...]:
        """The names of the other nodes that are here."""
        return tuple(name for name in tuple(self._hub.cluster.members.nodes) if name != FIRST_NODE)

    def wait_for_nodes(self, timeout: float, waiting: Callable[[], object]) -> bool:
        """Waits until every node has joined; whether they have.

        Args:
            timeout: Seconds.
            waiting: Called several times a second meanwhile.
        """
        coming = self._hub.wait_for_nodes(self._layout.nodes)
        future = asyncio.run_coroutine_threadsafe(coming, self._loop)
        deadline = time.monotonic() + timeout
        try:
            while (left := deadline - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    future.result(min(left, _LOOK_S))
                    return True
                waiting()
        finally:
            future.cancel()
        return False

    @property
    def is_current(self) -> bool:
        """Whether the thread that asks is the node's own."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Ends the controller and every process of node 0, and says goodbye; idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_S)


def import_path() -> Sequence[str]:
    """Where this program's Python searches, for workers that should find the same modules."""
    return [str(Path(entry).absolute()) for entry in sys.path]
