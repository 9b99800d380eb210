"""The stream of one session at its controller, and the next one where it broke.

The session outlives its connection for its lease. Whoever comes back names the session
and its secret, says which replies it has, and hears from each node which commands are
there; what is missing on either side is sent again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from disco_client import errors
from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.telemetry import spans
from disco_client.transport.base import Events, Waiting, Wish
from disco_client.transport.endings import error_before, error_of_end
from disco_client.transport.faults import InjectedCut, through
from disco_client.transport.handshake import why_refused
from disco_client.transport.line import Line
from disco_client.transport.outgoing import Outgoing
from disco_client.transport.reaching import denied, details
from disco_client.version import __version__
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_client.wire.protocol import PROTOCOL

__all__ = ["SessionStream"]

_SERVICE = "/disco.v1.SessionService/"
_SILENCE_S = 30.0
"""A controller that sends nothing for this long, heartbeats included, is tried anew."""

_ASK_AGAIN_S = 5.0
"""How long a wait lasts before the nodes are asked whether something is missing."""

_BROKEN = (grpc.RpcError, InjectedCut)
_PAUSES_S = (0.1, 1.0)
_WORTH_SAYING_S = 1.0
_RECEIVED_EVERY = 256
_RECEIVED_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


class SessionStream:
    """Opened once, by :meth:`create` or :meth:`attach`, and then read by :meth:`run`.

    Args:
        line: Leads to the controller.
        address: Where that is, for messages.
    """

    def __init__(self, line: Line, address: str) -> None:
        self._line = line
        self._open_stream: Any = line.stream_stream(_SERVICE + "Open")
        self._address = address
        self._out = Outgoing()
        self._call: Any = None
        self._incoming: Iterable[bytes] = ()
        self._calls: list[threading.Event] = []
        self._threads: set[threading.Thread] = set()
        self._heard = self._asked = time.monotonic()
        self._numbers: list[int] = []
        self._gaps: dict[int, int] = {}
        self._unconfirmed = [0, 0]
        self._awaited: set[str] = set()
        self._low = 0
        self._leaving = threading.Event()
        self._ready = controller_pb2.SessionReady()

    # How it begins ------------------------------------------------------------------

    def create(
        self, wish: Wish, on_queued: Callable[[Waiting], None]
    ) -> controller_pb2.SessionReady:
        """Asks for a session and waits until its ranks run.

        Raises:
            ConnectionFailed: The connection broke, or the controller speaks another protocol.
            NoSlots: The cluster had no room in time.
            ConfigError: The controller refused the request as wrong.
            SessionLost: A worker process could not be started.
        """
        self._open(envelope(Kind.CREATE, _encode_wish(wish)))
        self._await_ready(wish.name, on_queued)
        self._numbers = [0] * len(self._ready.ranks)
        return self._ready

    def attach(self, name: str, owner: str) -> tuple[controller_pb2.SessionReady, int]:
        """Attaches to a session that somebody left, by its name or id.

        Returns:
            What the controller says of it, and the newest command that its ranks have.

        Raises:
            ConnectionFailed: The connection broke, or the controller speaks another protocol.
            ConfigError: There is no such session, or somebody uses it.
            SessionLost: The session cannot be gone on with.
        """
        attach = controller_pb2.AttachSession(
            protocol=PROTOCOL, version=__version__, name=name, owner=owner
        )
        self._open(envelope(Kind.ATTACH, attach.SerializeToString()))
        self._await_ready(name, lambda _waiting: None)
        self._numbers = [0] * len(self._ready.ranks)
        have = self._ask_nodes(name)
        newest = {each.last_seq for each in have}
        if len(newest) > 1:
            msg = (
                f"session {name!r} cannot be gone on with: its former program broke off when"
                " some of its nodes had commands that others have not"
            )
            raise errors.SessionLost(msg)
        for each in have:
            for worker, number in zip(each.workers, each.replies, strict=True):
                self._numbers[worker] = number
        return self._ready, newest.pop()

    def _open(self, first: bytes) -> None:
        over = threading.Event()
        self._calls = [*(call for call in self._calls if not call.is_set()), over]
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        outgoing = through("client.send", self._out.stream(first))
        trace = tuple(spans.active_carrier().items())
        self._call = self._open_stream(self._noted(outgoing), metadata=trace)
        self._incoming = through("client.receive", self._call)
        self._call.add_done_callback(self._note_thread_and(over))

    def _noted(self, outgoing: Iterable[bytes]) -> Iterable[bytes]:
        self._threads.add(threading.current_thread())
        yield from outgoing

    def _note_thread_and(self, over: threading.Event) -> Callable[[Any], None]:
        """Makes a callback for the end of a call; it runs in gRPC's own thread."""

        def note(_call: Any) -> None:
            self._threads.add(threading.current_thread())
            over.set()

        return note

    def _await_ready(self, name: str, on_queued: Callable[[Waiting], None]) -> None:
        """Reads until the session is ready."""
        try:
            for raw in self._incoming:
                received = EncodedEnvelope.FromString(raw)
                if received.kind == Kind.QUEUED:
                    queued = controller_pb2.Queued.FromString(received.payload)
                    on_queued(Waiting(queued.ahead, queued.total_slots, queued.free_slots))
                elif received.kind == Kind.READY:
                    self._ready = controller_pb2.SessionReady.FromString(received.payload)
                    return
                elif received.kind == Kind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
                elif received.kind == Kind.REFUSED:
                    refused = node_pb2.Refused.FromString(received.payload)
                    raise errors.ConnectionFailed(refused.message)
        except _BROKEN as error:
            raise denied(error) or errors.ConnectionFailed(self._broken(error)) from None
        msg = f"the controller at {self._address} ended the session before it was ready"
        raise errors.ConnectionFailed(msg)

    def _ask_nodes(self, name: str) -> list[controller_pb2.Have]:
        """Asks what the nodes have of a session that is new to this program."""
        self._out.say(envelope(Kind.RESUME, session=self._ready.session))
        nodes = {rank.node for rank in self._ready.ranks}
        have: dict[str, controller_pb2.Have] = {}
        try:
            for raw in self._incoming:
                received = EncodedEnvelope.FromString(raw)
                if received.kind == Kind.HAVE:
                    told = controller_pb2.Have.FromString(received.payload)
                    have[told.node] = told
                    if set(have) >= nodes:
                        return list(have.values())
                elif received.kind == Kind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
        except _BROKEN as error:
            raise errors.ConnectionFailed(self._broken(error)) from None
        msg = f"the controller at {self._address} ended the stream"
        raise errors.ConnectionFailed(msg)

    def _broken(self, error: Exception) -> str:
        why = details(error) if isinstance(error, grpc.RpcError) else error
        return f"the connection to the controller at {self._address} broke: {why}"

    # What comes ------------------------------------------------------------------------

    def run(self, events: Events) -> errors.SessionError:
        """Sends and delivers until the session is over; says how it ended."""
        session = self._ready.session
        self._out.start(events, envelope(Kind.CLOSE, session=session))
        while True:
            self._heard = time.monotonic()
            try:
                ended = self._read(events)
                why = f"the controller at {self._address} ended the stream"
            except _BROKEN as broke:
                ended, why = None, self._broken(broke)
            if ended is None and not self._leaving.is_set():
                ended = self._come_back(why)
            if ended is not None or self._leaving.is_set():
                return ended or errors.SessionClosed(f"session {self._ready.name!r} was shut down")

    def _read(self, events: Events) -> errors.SessionError | None:
        """Reads one stream to its end; returns the session's end if it came."""
        for raw in self._incoming:
            self._heard = time.monotonic()
            received = EncodedEnvelope.FromString(raw)
            kind = received.kind
            if kind == Kind.REPLY:
                if self._is_next(received):
                    events.reply(received.worker_plus_one - 1, received.payload)
                    self._confirm(len(received.payload))
            elif kind == Kind.LOG:
                lines = controller_pb2.LogLines.FromString(received.payload)
                events.log(lines.worker, lines.node, lines.stderr, list(lines.lines))
            elif kind == Kind.HAVE:
                self._have(controller_pb2.Have.FromString(received.payload))
            elif kind == Kind.ENDED:
                ended = controller_pb2.SessionEnded.FromString(received.payload)
                return error_of_end(ended, self._ready.name)
        return None

    def _is_next(self, received: envelope_pb2.Envelope) -> bool:
        """Whether a reply is the one that follows; one that is missing is asked for."""
        worker, number = received.worker_plus_one - 1, received.first_seq
        expected = self._numbers[worker] + 1
        if number == expected:
            self._numbers[worker] = number
            self._asked = self._heard
            return True
        if number > expected and self._gaps.get(worker) != expected:
            self._gaps[worker] = expected
            self._ask()
        return False

    def _confirm(self, nbytes: int) -> None:
        """Tells the nodes now and then which replies they need not keep."""
        unconfirmed = self._unconfirmed
        unconfirmed[0] += 1
        unconfirmed[1] += nbytes
        if unconfirmed[0] >= _RECEIVED_EVERY or unconfirmed[1] >= _RECEIVED_BYTES:
            unconfirmed[:] = 0, 0
            self._out.say(self._received(Kind.RECEIVED))

    def _received(self, kind: Kind) -> bytes:
        received = controller_pb2.Received(replies=self._numbers).SerializeToString()
        return envelope(kind, received, session=self._ready.session)

    def _have(self, have: controller_pb2.Have) -> None:
        """Sends again what a node has not received."""
        if have.node not in self._awaited:
            self._out.rewind(have.last_seq)
            return
        self._awaited.discard(have.node)
        self._low = min(self._low, have.last_seq)
        if not self._awaited:
            self._out.rewind(self._low)
            self._out.release()

    # What is done when it breaks -----------------------------------------------------------

    def _come_back(self, why: str) -> errors.SessionError | None:
        """Attaches to the session again; returns why that cannot be, or None."""
        self._call.cancel()
        lease = self._ready.lease_s
        began, said, pause = time.monotonic(), False, _PAUSES_S[0]
        refused: str | None = None
        while not self._leaving.is_set():
            away = time.monotonic() - began
            if away > lease:
                refused = refused or why_refused(self._address, self._line.credentials)
                last = f": {refused}" if refused else ""
                msg = f"{why}; it did not come back within {lease:g} s{last}"
                return errors.ControllerLost(msg)
            if away > _WORTH_SAYING_S and not said:
                said = True
                _logger.warning(
                    "session %s: %s; trying again for %.0f s", self._ready.name, why, lease
                )
            ended = self._attach_again()
            if ended is None:
                if said:
                    _logger.warning("session %s goes on after %.1f s", self._ready.name, away)
                return None
            if not isinstance(ended, errors.ConnectionFailed):
                return ended
            # Certificates and tokens may be replaced on one side before the other.
            refused = str(ended) if isinstance(ended, errors.AccessDenied) else None
            self._leaving.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            pause = min(pause * 2, _PAUSES_S[1])
        return errors.SessionClosed(f"session {self._ready.name!r} was shut down")

    def _attach_again(self) -> errors.SessionError | errors.ConnectionFailed | None:
        """One attempt; returns what came of it, None when the session goes on."""
        ready = self._ready
        attach = controller_pb2.AttachSession(
            protocol=PROTOCOL,
            version=__version__,
            session=ready.session,
            transfer_key=ready.transfer_key,
        )
        try:
            self._open(envelope(Kind.ATTACH, attach.SerializeToString()))
            self._await_ready(ready.name, lambda _waiting: None)
        except (errors.ConnectionFailed, errors.SessionError) as error:
            return error
        except errors.DiscoError as error:
            return errors.SessionLost(str(error))
        self._awaited = {rank.node for rank in ready.ranks}
        self._low = 1 << 62
        self._ask()
        return None

    def _ask(self) -> None:
        """Asks the nodes for what is missing."""
        self._asked = time.monotonic()
        self._out.say(self._received(Kind.RESUME))

    def check(self) -> None:
        """To be called while somebody waits, each second or so; repairs what it can.

        A connection that is silent is broken, and a message that was lost is asked for.
        """
        now = time.monotonic()
        if now - self._heard > _SILENCE_S:
            self._heard = now
            self._call.cancel()
        elif now - self._asked > _ASK_AGAIN_S:
            self._ask()

    # The end ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Lets :meth:`run` end when the controller ends the stream, or it breaks."""
        self._leaving.set()

    def detach(self, lease: float) -> None:
        """Leaves the session as it is when the commands have left."""
        wish = controller_pb2.DetachSession(lease_s=lease).SerializeToString()
        self._out.part_with(envelope(Kind.DETACH, wish, session=self._ready.session))

    def cancel(self) -> None:
        """Breaks the present stream off; idempotent."""
        self._out.end()
        if self._call is not None:
            self._call.cancel()

    def join(self, timeout: float) -> None:
        """Waits for the threads that gRPC used.

        Python may exit right after this, and stops gRPC's threads wherever they are.
        One that held the call's lock would never give it back, and the destructor
        of the call waits for that lock: the program would not end.
        """
        deadline = time.monotonic() + timeout
        for over in self._calls:
            over.wait(max(0.0, deadline - time.monotonic()))
        for thread in self._threads - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))


def _encode_wish(wish: Wish) -> bytes:
    return controller_pb2.CreateSession(
        protocol=PROTOCOL,
        num_workers=wish.num_workers,
        num_groups=wish.num_groups,
        ccl=wish.ccl,
        name=wish.name,
        timeout_s=wish.timeout,
        owner=wish.owner,
        version=__version__,
    ).SerializeToString()
