"""What carries a session's stream to its controller: frames on a socket, or gRPC.

Both take envelopes from an iterator, in a thread of their own, and are iterated for what
comes. A connection of frames is agreed on over gRPC, which admits it, and is used where it
can be made: it costs a fraction of the time. Everything else about a session is the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Protocol, cast

import grpc

from disco_client.clock import monotonic
from disco_client.errors import AccessDenied, ConfigError
from disco_client.forks import ForkLock, leave_in_children
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_client.reentry import Event, is_of_system, owned
from disco_client.threads import ThreadRefused, start_thread
from disco_client.transport.address import Address
from disco_client.transport.calls import ask
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.reaching import denied, details
from disco_client.wire.framing import FrameCutter, FrameTooLong, frame

if TYPE_CHECKING:
    import ssl

    from disco_client.transport.credentials import Credentials

__all__ = [
    "ANSWER_S",
    "ASK_EVERY_S",
    "CONNECT_S",
    "SILENCE_S",
    "FramedStream",
    "GrpcStream",
    "Messages",
    "OpenStream",
    "PolledStream",
    "StreamBroken",
    "Unreached",
    "frames_address",
    "open_stream",
    "permit_request",
    "tune",
    "unreached",
]

CONNECT_S = 2.0
"""How long a port for frames may take to answer, before gRPC serves instead."""

ANSWER_S = 5.0
"""How long TLS and the permit may take after that."""

ASK_EVERY_S = 10.0
"""After how many seconds of silence a controller asks for a sign of life."""

SILENCE_S = 20.0
"""A peer that sends nothing for this long is gone; gRPC's pings take as long."""

_AGAIN_S = 60.0
"""For how long a port that did not answer is not tried again."""

_SILENT = f"it said nothing for {SILENCE_S:g} s"
_READ_BYTES = 256 << 10
_MANY_ADDRESSES = 256

_logger = logger_of(__name__)


class StreamBroken(ConnectionError):
    """A stream has ended other than by its peer's wish; the text says how.

    Attributes:
        refused: The error of a peer that does not let this program have it, else None.
    """

    def __init__(self, text: str, refused: AccessDenied | None = None) -> None:
        super().__init__(text)
        self.refused = refused


class Messages(Protocol):
    """What a stream sends."""

    def wait(self) -> bool:
        """Waits until there may be something to take; False once nothing will follow."""
        ...

    def take(self) -> bytes | None:
        """Returns the next message, the same until it left; None where there is none now."""
        ...

    def left(self, raw: bytes) -> None:
        """Notes that a message that was taken is on its way."""
        ...

    def nudge(self) -> None:
        """Wakes the thread that waits."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """All of them, as they come."""
        ...


class PolledStream(Protocol):
    """A stream that can be read without waiting, by one thread at a time.

    Attributes:
        arrived: Messages that came; who reads takes each out once it is handled.
    """

    arrived: deque[bytes]

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for too long, not even a sign of life."""
        ...

    def fileno(self) -> int:
        """What to poll."""
        ...

    def receive(self) -> bool:
        """Adds messages that are there to ``arrived``; False at the end of the stream.

        Raises:
            StreamBroken: It ended otherwise.
        """
        ...


class OpenStream(Protocol):
    """One stream to a controller; it is iterated for what comes.

    Attributes:
        carrier: What carries it: ``frames`` or ``grpc``.
    """

    carrier: str

    @property
    def polled(self) -> PolledStream | None:
        """Itself, where it can also be read without waiting."""
        ...

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending."""
        ...

    def flush(self) -> None:
        """Sends what there is, in this thread if it can without waiting."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Messages, until the controller ends the stream.

        Raises:
            StreamBroken: It ended otherwise.
        """
        ...

    def close(self) -> None:
        """Breaks it off, from any thread; idempotent."""
        ...

    def join(self, timeout: float) -> bool:
        """Waits, once it is closed and not read any more, until no thread is left of it.

        Returns:
            Whether that was so within the timeout.
        """
        ...


def open_stream(
    line: ReloadingChannel,
    service: str,
    first: bytes,
    outgoing: Messages,
    metadata: Sequence[tuple[str, str]] = (),
) -> OpenStream:
    """Opens the stream of a session, by frames where they reach the controller.

    Args:
        line: The channel to the controller.
        service: What begins the paths of its methods.
        first: The first of the messages.
        outgoing: All messages.
        metadata: What goes with the call.

    Raises:
        AccessDenied: The controller does not let this program have it.
        ThreadRefused: The system starts no thread for it.
    """
    call = line.unary_unary(
        service + "Admit",
        request_serializer=controller_pb2.PermitRequest.SerializeToString,
        response_deserializer=controller_pb2.Permit.FromString,
    )
    if unreached.may_try(line.address):
        try:
            permit = ask(call, permit_request(first), timeout=ANSWER_S, metadata=metadata)
        except grpc.RpcError as error:
            if (refused := denied(error)) is not None:
                raise refused from None
        else:
            with contextlib.suppress(Unreached, ConfigError):
                link = _connect(line.address, permit, line.credentials)
                return FramedStream(link, outgoing)
    return GrpcStream(line.stream_stream(service + "Open"), outgoing, metadata)


# By gRPC -------------------------------------------------------------------------------


class GrpcStream:
    """A stream of gRPC, whose own threads send and receive.

    Args:
        call: Makes it.
        outgoing: What it sends.
        metadata: What goes with it.
    """

    carrier = "grpc"
    polled = None
    entered = False

    def __init__(self, call: Any, outgoing: Messages, metadata: Sequence[tuple[str, str]]) -> None:
        self.flush: Callable[[], None] = outgoing.nudge
        self._over = Event()
        self._threads: set[threading.Thread] = set()
        self._call = call(self._noted(outgoing), metadata=metadata)
        self._call.add_done_callback(self._end)

    def _noted(self, outgoing: Iterable[bytes]) -> Iterable[bytes]:
        self._threads.add(threading.current_thread())
        yield from outgoing

    def _end(self, _call: Any) -> None:
        self._threads.add(threading.current_thread())
        self._over.set()

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise StreamBroken(details(error), denied(error)) from None

    def close(self) -> None:
        """Cancels the call."""
        self._call.cancel()

    def join(self, timeout: float) -> bool:
        """Waits for the threads that gRPC used.

        Python may exit right after this, and stops gRPC's threads wherever they are.
        One that held the call's lock would never give it back, and the destructor
        of the call waits for that lock: the program would not end.
        """
        deadline = monotonic() + timeout
        if not self._over.wait(timeout):
            return False
        others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in others)


# By frames -----------------------------------------------------------------------------


class FramedStream:
    """A stream of frames: a thread sends what no other does, and whoever reads it receives.

    An exception may come out of any bytecode of a thread of the program that sends or reads. What
    it had begun to send or to take in, the next thread goes on with; a message is sent again
    where it is not noted that it left, and its receiver drops what it has had.

    Args:
        link: The connection, which the controller has admitted.
        outgoing: What it sends.

    Attributes:
        arrived: Messages that came; who reads takes each out once it is handled.

    Raises:
        ThreadRefused: There is no thread for it.
    """

    carrier = "frames"

    def __init__(self, link: _Link, outgoing: Messages) -> None:
        self._link = link
        self._outgoing = outgoing
        self._cutter = FrameCutter()
        self.arrived: deque[bytes] = deque()
        self._heard = monotonic()
        self._sender = threading.Thread(target=self._send, name="disco-commands", daemon=True)
        try:
            start_thread(self._sender, serves=True)
        except ThreadRefused:
            link.sock.close()
            raise

    # Sending ------------------------------------------------------------------------------

    def _send(self) -> None:
        link, outgoing = self._link, self._outgoing
        try:
            while outgoing.wait():
                with link.sending:
                    self._send_all()
        except OSError:  # whoever reads sees why
            self.close()

    def _send_all(self) -> None:
        link, outgoing = self._link, self._outgoing
        while (raw := outgoing.take()) is not None:
            link.write(frame(raw))
            outgoing.left(raw)
        link.write_rest()

    @property
    def entered(self) -> bool:
        """As of an open stream."""
        return self._link.owned()

    def flush(self) -> None:
        """As of an open stream."""
        if not (self._send_now(self._send_some) and self._link.is_clear):
            self._outgoing.nudge()  # the thread that sends does the rest

    def _send_now(self, send: Callable[[], None]) -> bool:
        """Sends in this thread, unless something is being sent at this moment; whether it did.

        Where the connection breaks it is closed, and whoever reads sees why.
        """
        link = self._link
        if link.owned():  # by a call in the middle of which this one comes
            return False
        got: list[bool] = []
        try:
            # One call, so that an exception after it finds whether it got the lock.
            got.extend(map(link.sending.acquire, (False,)))
            if got[0]:
                send()
        except OSError as error:
            if not is_of_system(error):
                raise
            self.close()
        finally:
            if True in got:
                link.sending.release()
        return True in got

    def _send_some(self) -> None:
        link, outgoing = self._link, self._outgoing
        while link.is_clear and (raw := outgoing.take()) is not None:
            link.write_some(frame(raw))
            outgoing.left(raw)

    # Receiving ----------------------------------------------------------------------------

    @property
    def polled(self) -> FramedStream:
        """Itself."""
        return self

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.sock.fileno()

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for too long."""
        return monotonic() - self._heard > SILENCE_S

    def __iter__(self) -> Iterator[bytes]:
        while self.arrived or self._read(0):
            if self.arrived:
                yield self.arrived.popleft()

    def receive(self) -> bool:
        """As of a polled stream."""
        goes_on = self._read(socket.MSG_DONTWAIT)
        while goes_on and self._link.has_more:
            goes_on = self._read(socket.MSG_DONTWAIT)
        if self.is_silent:
            raise StreamBroken(_SILENT)
        return goes_on

    def _read(self, flags: int) -> bool:
        """Reads once; False at the end of the stream."""
        cutter, link = self._cutter, self._link
        try:
            data = link.receive(flags)
            frames, rest = cutter.cut(data)
        except BlockingIOError as error:
            if flags and error.errno is not None:
                return True
            raise StreamBroken(_SILENT) from None
        except (OSError, FrameTooLong) as error:
            if isinstance(error, OSError) and not is_of_system(error):
                raise
            raise StreamBroken(str(error)) from None
        if not data:
            return False
        arrived = deque((*self.arrived, *filter(None, frames)))
        heard, nothing = monotonic(), list[int]()
        # No call from here on, so that all of it has happened or nothing.
        cutter.rest = rest
        cutter.size = None
        link.came = nothing
        self.arrived = arrived
        self._heard = heard
        if not all(frames):  # one of them asks for a sign of life
            self._send_now(partial(link.write_some, frame(b"")))
        return True

    def close(self) -> None:
        """Ends the connection both ways."""
        with contextlib.suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_RDWR)

    def join(self, timeout: float) -> bool:
        """Waits for the thread that sends, and closes the socket."""
        self._sender.join(timeout)
        if self._sender.is_alive():
            return False
        self._link.sock.close()
        return True


class _Link:
    """A connection without encryption; one thread at a time sends, and one receives.

    Args:
        sock: The connected socket.

    Attributes:
        sending: Whoever writes holds it.
        owned: Says whether the calling thread does.
        came: How much a read has brought; it reads again when this is emptied.
        has_more: Whether some of what has come may be left to receive, which no poll tells.
    """

    has_more = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = leave_in_children(sock, socket.socket.close)
        self.sending = make_lock("connection")
        self.owned: Callable[[], bool] = owned(self.sending)
        self.came: list[int] = []
        # What is to be sent: how much of the rest the socket has taken, and what follows it.
        self._rest = memoryview(b"")
        self._taken: list[int] = []
        self._coded: list[bytes] = []
        # Read into again and again: fresh memory costs many times what reading does.
        self._scratch = memoryview(bytearray(_READ_BYTES))

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        with self.sending:
            self.write(data)

    @property
    def is_clear(self) -> bool:
        """Whether all that was written has left."""
        self._settle()
        return not self._rest

    def write(self, data: bytes) -> None:
        """Sends all of it, behind what :meth:`write_some` has left."""
        self._code(data)
        self.write_rest()

    def write_some(self, data: bytes) -> None:
        """Sends what the socket takes at once, if nothing is left from before."""
        if not self.is_clear:
            return
        self._code(data)
        self._settle()
        with contextlib.suppress(BlockingIOError):
            self._taken.extend(map(self.sock.send, (self._rest,), (socket.MSG_DONTWAIT,)))
        self._settle()

    def write_rest(self) -> None:
        """Sends what :meth:`write_some` has left."""
        self._settle()
        if self._rest:
            self.sock.sendall(self._rest)
            self._rest = memoryview(b"")

    def _settle(self) -> None:
        """Notes how much is still to be sent."""
        if not (self._taken or self._coded):
            return
        rest = self._rest[sum(self._taken) :]
        if self._coded:
            rest = memoryview(b"".join((rest, *self._coded)))
        taken, coded = list[int](), list[bytes]()
        # No call from here on.
        self._rest = rest
        self._taken = taken
        self._coded = coded

    def _code(self, data: bytes) -> None:
        self._coded.append(data)

    def receive(self, flags: int = 0) -> memoryview:
        """Returns what has come, the same until ``came`` is emptied; nothing at the end.

        Args:
            flags: Of ``recv``.

        Raises:
            BlockingIOError: Nothing came for too long, or nothing is there.
        """
        if not self.came:
            self.came.extend(map(self.sock.recv_into, (self._scratch,), (0,), (flags,)))
        return self._scratch[: self.came[0]]


class _TlsLink(_Link):
    """An encrypted connection.

    OpenSSL's state may not be used by two threads at a time, and a read that waits would keep
    it. So the socket is read and written outside of it.

    Args:
        sock: The connected socket.
        context: How to verify the other end.
        host: What its certificate must name.

    Raises:
        OSError: The handshake failed.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        super().__init__(sock)
        import ssl  # needed only with TLS

        self._wants_more = ssl.SSLWantReadError
        self._ends = ssl.SSLZeroReturnError, ssl.SSLEOFError
        self._using = make_lock("stream")
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._state = context.wrap_bio(self._received, self._encrypted, server_hostname=host)
        self._brought: deque[bytes] = deque()
        while True:
            try:
                self._state.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(self._encrypted.read())
                self._fill(0)
        sock.sendall(self._encrypted.read())
        self._plain = memoryview(bytearray(_READ_BYTES))

    @property
    def has_more(self) -> bool:  # type: ignore[override]  (a property of this kind)
        """Whether what was read from the socket has not been decrypted yet."""
        return bool(self._brought) or self._received.pending > 0 or self._state.pending() > 0

    def _fill(self, flags: int) -> bool:
        if not self._brought:
            self._brought.extend(map(self.sock.recv, (_READ_BYTES,), (flags,)))
        goes_on = bool(self._brought[0])
        with self._using:
            if goes_on:
                # One call, so that what an exception interrupts is decrypted once.
                deque(map(self._received.write, starmap(self._brought.popleft, ((),))), 0)
            else:
                self._received.write_eof()
        return goes_on

    def _code(self, data: bytes) -> None:
        with self._using:
            self._state.write(data)
            self._coded.extend(starmap(self._encrypted.read, ((),)))

    def receive(self, flags: int = 0) -> memoryview:
        """As of a connection without encryption."""
        while True:
            with self._using:
                try:
                    if not self.came:
                        # The types say it returns bytes; into a buffer, it returns their number.
                        read = cast("Any", self._state).read
                        self.came.extend(map(read, (len(self._plain),), (self._plain,)))
                    return self._plain[: self.came[0]]
                except self._wants_more:
                    pass
                except self._ends:
                    return self._plain[:0]
            if not self._fill(flags):
                return self._plain[:0]


# The agreement ------------------------------------------------------------------------


class Unreached(Exception):
    """No controller admits a connection of frames there."""


def permit_request(first: bytes) -> controller_pb2.PermitRequest:
    """Asks for a connection whose first message is this one."""
    return controller_pb2.PermitRequest(first=hashlib.sha256(first).digest())


def frames_address(address: str, permit: controller_pb2.Permit) -> Address:
    """Where a controller takes frames.

    Args:
        address: Where it takes calls.
        permit: What it answered.

    Raises:
        Unreached: It takes none.
    """
    if not permit.secret:
        msg = "the controller takes no frames"
        raise Unreached(msg)
    where = Address.parse(address)
    if where.path:
        return Address(path=f"{where.path}.frames")
    return Address(where.host, permit.port)


class _UnreachedAddresses:
    """Addresses whose port for frames did not answer, so that nobody waits for it again soon.

    A name that leads elsewhere since then is another address.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._found: dict[str, tuple[float, frozenset[object]]] = {}

    def add(self, address: str, why: OSError) -> None:
        """Says why frames do not reach a controller, and notes it if that took its time.

        May wait for a name to be resolved.
        """
        reason = str(why) or "it did not answer in time"
        _logger.info("gRPC serves: the port for frames of %s was not reached: %s", address, reason)
        if isinstance(why, TimeoutError):
            where = _resolved(address)
            with self._lock.held():
                if len(self._found) >= _MANY_ADDRESSES:
                    self._found.clear()
                self._found[address] = monotonic(), where

    def _noted(self, address: str) -> frozenset[object] | None:
        """Where an address led when it was noted; None where it is not, or not any more."""
        with self._lock.held():
            at, where = self._found.get(address, (-_AGAIN_S, frozenset[object]()))
        return where if monotonic() - at < _AGAIN_S else None

    def knows(self, address: str) -> bool:
        """Whether :meth:`may_try` may wait for a name to be resolved."""
        return self._noted(address) is not None

    def may_try(self, address: str) -> bool:
        """Whether frames may lead somewhere."""
        noted = self._noted(address)
        return noted is None or noted != _resolved(address)


def _resolved(address: str) -> frozenset[object]:
    """Where an address leads now; nowhere if its name cannot be resolved."""
    where = Address.parse(address)
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(each[4] for each in found)


unreached = _UnreachedAddresses()


def _connect(address: str, permit: controller_pb2.Permit, credentials: Credentials) -> _Link:
    """Makes a connection and lets the controller admit it.

    Raises:
        ConfigError: A certificate cannot be read.
        Unreached: No controller admits it there.
    """
    where = frames_address(address, permit)
    context = credentials.context()
    try:
        sock = _dial(where)
    except OSError as error:
        if not is_of_system(error):
            raise
        unreached.add(address, error)
        raise Unreached from error
    try:
        sock.settimeout(ANSWER_S)
        host = where.host or "localhost"  # as gRPC asks where there is no name
        link = _Link(sock) if context is None else _TlsLink(sock, context, host)
        _be_admitted(link, permit.secret)
        sock.settimeout(None)
        tune(sock)
        seconds = int(SILENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
    except BaseException as error:
        sock.close()
        if not isinstance(error, OSError) or not is_of_system(error):
            raise
        unreached.add(address, error)
        raise Unreached from error
    return link


def _be_admitted(link: _Link, secret: bytes) -> None:
    link.send(frame(secret))
    if bytes(link.receive()) != frame(b""):
        raise ConnectionError(errno.ECONNREFUSED, "it does not admit this connection")
    link.came = []


def _dial(where: Address) -> socket.socket:
    if not where.path:
        return socket.create_connection((where.host, where.port), CONNECT_S)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(where.path)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Lets a connection of frames carry lone messages at once, and few that nobody has asked for.

    What the kernel has taken has left the sender's queues, in which sessions take turns.

    Args:
        sock: The connected socket.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", int(SILENCE_S * 1000)),
        ("TCP_NOTSENT_LOWAT", 128 << 10),
    ):
        if hasattr(socket, name):  # on Linux; elsewhere only the peers' silence is noticed
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
