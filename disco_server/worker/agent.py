"""The daemon's connection to the controller: registration, relaying, heartbeats, reconnection.

Ranks do not depend on it: they go on while it is broken, and their messages are kept.
After a reconnection, to the same controller or a new one, the daemon reports what runs here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import DecodeError

from disco_client.backoff import Backoff
from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.transport.grpc_options import CHANNEL_OPTIONS, NODE_STREAM_OPTIONS
from disco_client.transport.refusals import why_refused
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EncodedEnvelope, EnvelopeKind, envelope, envelopes_in
from disco_server.ipc.carriers import Carrier, open_carrier, open_line
from disco_server.ipc.outbox import Outbox
from disco_server.settings import read_cache
from disco_server.worker.array_server import data_host
from disco_server.worker.array_streams import ArrayRelay
from disco_server.worker.counters import NodeCounters
from disco_server.worker.environment import WorkFolders, host_id
from disco_server.worker.machine import MachineSampler
from disco_server.worker.services import NodeServices
from disco_server.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from disco_client.transport.channel import ReloadingChannel
    from disco_server.config import Account, WorkerConfig
    from disco_server.worker.array_store import ArrayStore
    from disco_server.worker.fork_server import ForkServer
    from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = ["Agent"]

_logger = logger_of("disco.worker")
_SILENCE_S = 30.0


class Agent:
    """Keeps one daemon registered; reconnects by itself until it is stopped.

    Args:
        config: What the daemon offers.
        fork_server: Starts ranks; it outlives connections.
        folders: Makes the folders of sessions.
        account: The user that ranks run as, if not this process's user.
        backoff: The pauses between attempts to connect; by default 0.1 to 1 s.
        launcher: See `NodeServices`.

    Attributes:
        array_address: Where clients can send arrays directly; set before run().
        registered: Set while the controller knows this daemon.
    """

    def __init__(
        self,
        config: WorkerConfig,
        fork_server: ForkServer,
        folders: WorkFolders | None = None,
        account: Account | None = None,
        backoff: Backoff | None = None,
        launcher: LauncherPmi | None = None,
    ) -> None:
        self.array_address = ""
        self._config = config
        self._credentials = config.credentials
        self._incarnation = secrets.randbits(63)
        self._outbox = Outbox()
        self._heard = self._echoed = 0.0
        self.registered = asyncio.Event()
        self._cordoned = False
        self._drained = ""
        self._backoff = backoff or Backoff()
        self._relay = ArrayRelay()
        self._sampler = MachineSampler()
        services = NodeServices(
            node=config.name,
            rules=_rules_of(config, account),
            max_array_bytes=config.max_array_mib << 20,
            folders=folders or WorkFolders(config.work_dir),
            fork_server=fork_server,
            post=self._post,
            counters=NodeCounters(),
            launcher=launcher,
        )
        self._supervisor = Supervisor(services, self._relay)

    @property
    def arrays(self) -> ArrayStore:
        """The arrays of the sessions here."""
        return self._supervisor.arrays

    @property
    def supervisor(self) -> Supervisor:
        """What runs here."""
        return self._supervisor

    def _post(self, raw: bytes, *, session: int = 0, droppable: bool = False) -> bool:
        # Messages lost with a connection are sent again over the next one.
        return self.registered.is_set() and self._outbox.post(
            raw, session=session, droppable=droppable
        )

    async def run(self) -> None:
        """Connects again and again, with growing pauses; ends only when cancelled."""
        try:
            await self._keep_connected()
        finally:
            await asyncio.shield(self._supervisor.end_all())

    async def _keep_connected(self) -> None:
        said = ""
        while True:
            try:
                why = await self._connect_once()
            except grpc.RpcError as error:
                why = await self._why(error)
            except (ConnectionError, ConfigError) as error:
                why = str(error)
            except DecodeError as error:
                why = f"it does not speak disco.v1 ({error})"
            except Exception as error:
                # Without this clause the daemon would live on, unconnected.
                _logger.exception("the connection to the controller failed")
                why = repr(error)
            finally:
                knew = self.registered.is_set()
                self.registered.clear()
                self._relay.disconnect()
            _end_if_cancelled()
            if knew:
                said = ""
                self._backoff.reset()
                self._supervisor.disconnected()
            if why != said:
                self._tell_unconnected(why)
                said = why
            await asyncio.sleep(self._backoff.pause())

    def _tell_unconnected(self, why: str) -> None:
        supervisor = self._supervisor
        # The controller of a program's own may end before a daemon that served its session does.
        served = self._config.once and supervisor.begun.is_set() and not supervisor.sessions
        _logger.log(
            logging.INFO if served else logging.WARNING,
            "not connected to the controller at %s: %s; trying again",
            self._config.controller,
            why,
        )

    async def _connect_once(self) -> str:
        """Runs one connection from its beginning to its end; returns why it ended."""
        self._outbox = outbox = Outbox()
        where = self._config.controller, self._credentials
        # Arrays have a connection of their own, as no command should wait behind one.
        async with (
            open_line(*where, NODE_STREAM_OPTIONS) as line,
            open_line(*where, CHANNEL_OPTIONS) as for_arrays,
        ):
            self._relay.connect(for_arrays)
            return await self._talk(line, outbox)

    async def _why(self, error: grpc.RpcError) -> str:
        """Why a connection failed; finds out what gRPC does not say."""
        if not self.registered.is_set() and _is_broken(error):
            looked = asyncio.to_thread(why_refused, self._config.controller, self._credentials)
            return await looked or _reason(error)
        return _reason(error)

    async def _talk(self, line: ReloadingChannel, outbox: Outbox) -> str:
        first = self._introduction()
        carrier = await open_carrier(line, "/disco.v1.NodeService/Register", first)
        try:
            await carrier.send(first)
            return await self._converse(carrier, outbox)
        finally:
            carrier.close()

    async def _converse(self, carrier: Carrier, outbox: Outbox) -> str:
        """Sends and receives until the stream is over; returns why it is."""
        writing = asyncio.ensure_future(carrier.send_from(outbox))
        # A connection that cannot write any more is ended: the next one can read and write.
        writing.add_done_callback(lambda _: carrier.close())
        beating = asyncio.ensure_future(self._beat(outbox, carrier))
        refused = None
        try:
            refused = await carrier.receive(lambda message: self._take(message, outbox))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            silent = beating.done()
            for task in (writing, beating):
                task.cancel()
            wrote, _ = await asyncio.gather(writing, beating, return_exceptions=True)
        if refused is not None:
            return refused
        if silent:
            return f"it said nothing for {_SILENCE_S:g} s"
        if isinstance(wrote, Exception):
            return "nothing can be sent to it any more"
        return "the controller closed the connection"

    def _take(self, message: bytes, outbox: Outbox) -> str | None:
        """Handles one message; returns why the controller refuses this daemon, if it does."""
        self._heard = asyncio.get_running_loop().time()
        for raw, received in envelopes_in(message):
            if received.kind == EnvelopeKind.REFUSED:
                return node_pb2.Refused.FromString(received.payload).message
            self._receive(raw, received, outbox)
        return None

    def _receive(self, raw: bytes, received: EncodedEnvelope, outbox: Outbox) -> None:
        if received.kind == EnvelopeKind.REGISTERED:
            self.registered.set()
            self._supervisor.counters.connections += 1
            self._supervisor.connected()
        elif received.kind == EnvelopeKind.CORDON:
            self._drain(controller_pb2.Cordon.FromString(received.payload))
        elif received.kind == EnvelopeKind.HEARTBEAT:
            self._echoed = self._heard
            outbox.post(raw, droppable=True)  # the controller measures the round trip
        else:
            self._supervisor.receive(raw, received)

    async def _beat(self, outbox: Outbox, carrier: Carrier) -> None:
        """Sends heartbeats, and ends the stream of a controller that sends nothing.

        They are sent halfway between two answers to the controller's own heartbeats: the longer
        before a standstill a daemon was last heard of, the sooner its lease ends.
        """
        loop = asyncio.get_running_loop()
        self._heard = self._echoed = loop.time()
        while loop.time() - self._heard < _SILENCE_S:
            outbox.post(self._heartbeat(loop.time()), droppable=True)
            halfway = loop.time() - self._echoed + _HEARTBEAT_S / 2
            await asyncio.sleep(_HEARTBEAT_S - halfway % _HEARTBEAT_S)
        carrier.close()

    def _heartbeat(self, now: float) -> bytes:
        """A heartbeat; now and then with what the machine does."""
        sample = self._sampler.next(now)
        if sample is None:
            return envelope(EnvelopeKind.HEARTBEAT)
        told = controller_pb2.Heartbeat(sample=sample).SerializeToString()
        return envelope(EnvelopeKind.HEARTBEAT, told)

    def _introduction(self) -> bytes:
        config = self._config
        info = node_pb2.RegisterNode(
            protocol=PROTOCOL,
            name=config.name,
            devices=config.devices,
            version=__version__,
            incarnation=self._incarnation,
            host=socket.gethostname(),
            array_address=self.array_address,
            host_id=host_id(),
            pid=os.getpid(),
            sessions=self._supervisor.running(),
            cordoned=self._cordoned,
            drained=self._drained,
            window=config.window,
        )
        return envelope(EnvelopeKind.REGISTER, info.SerializeToString())

    def cordon(self) -> None:
        """Takes no new sessions from now on; those that run here go on."""
        if not self._cordoned:
            self._cordoned = True
            self._post(envelope(EnvelopeKind.CORDON))
            _logger.info("this node takes no new sessions")

    def _drain(self, told: controller_pb2.Cordon) -> None:
        """Keeps for the next controller that an administrator drained this node, or undid it."""
        self._drained = told.reason
        if told.lifted and self._config.once and self._supervisor.begun.is_set():
            self._post(envelope(EnvelopeKind.CORDON))  # it ends with the session that it has
            return
        self._cordoned = not told.lifted
        again = "again" if told.lifted else f"not ({told.reason})"
        _logger.info("an administrator says that this node takes sessions %s", again)

    async def leave(self) -> None:
        """Tells the controller that this daemon leaves, and ends what runs here."""
        self._post(envelope(EnvelopeKind.DRAIN))
        # Clients learn from the controller why their session ended.
        await asyncio.sleep(_LEAVE_S)
        await self._supervisor.end_all()


def _rules_of(config: WorkerConfig, account: Account | None) -> node_pb2.AssignRank:
    """The rules for sessions, as every rank of the node gets them."""
    cache = config.module_cache
    if account is not None and cache == read_cache(None, "module_cache"):
        cache = account.cache  # ranks cannot write where this process's user keeps its own
    return node_pb2.AssignRank(
        allow_modules=config.allow_modules,
        allow_functions=config.allow_functions,
        allow_read=config.allow_read,
        allow_save=config.allow_save,
        allow_load=config.allow_load,
        module_cache=str(cache or ""),
        module_cache_bytes=config.module_cache_mib << 20,
        max_registers=config.max_registers,
        command_limit_s=config.command_limit_s,
        data_host=data_host(config.array_address, config.controller_address),
    )


_HEARTBEAT_S = 2.0
_LEAVE_S = 0.2


def _end_if_cancelled() -> None:
    """Raises the cancellation that gRPC may have swallowed.

    A task that is cancelled while its stream is being prepared awaits a task of
    gRPC's, which ends as if nothing had happened; a stream that the peer has ended
    by then says only that.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _is_broken(error: grpc.RpcError) -> bool:
    """Whether a call failed with its connection, and may be made again over the next one."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    )


def _reason(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
