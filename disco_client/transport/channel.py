"""A channel to a controller that is recreated when certificates were replaced.

gRPC reconnects by itself, but with the certificates that its channel was made with. So
each call through a `ReloadingChannel` uses a channel with the current certificates, and
sends the current token.
"""

from __future__ import annotations

import _thread
import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import grpc

from disco_client.clock import LONGEST_S
from disco_client.errors import AccessDenied, ConfigError, ConnectionFailed
from disco_client.forks import check_grpc, keep_in_children, leak
from disco_client.locks import make_lock
from disco_client.output import say
from disco_client.reentry import Event
from disco_client.threads import ThreadRefused, check_threads, start_thread, starting
from disco_client.transport.address import Address
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.run_clock import RunClock

if TYPE_CHECKING:
    Header = tuple[str, str | bytes]

__all__ = [
    "CHANNEL_OPTIONS",
    "NODE_STREAM_OPTIONS",
    "SERVER_OPTIONS",
    "LineCall",
    "ReloadingChannel",
    "abandon",
    "ask",
    "await_controller",
    "check_grpc_threads",
    "connection_limit",
    "denied",
    "details",
    "open_channel",
    "run_uninterrupted",
    "target",
    "why_refused",
]


# Every gRPC option of both ends, in one place because they must agree.
#
# The figures and the spellings were measured; the ones below detect a frozen or
# unreachable peer in about 20 s, while some of the documented ones detect nothing:
#
# * ``grpc.keepalive_timeout_ms`` does not bound a ping; ``grpc.http2.ping_timeout_ms``
#   does (its default is 60 s).
# * A server drops a client that pings more often than
#   ``grpc.http2.min_ping_interval_without_data_ms`` allows; the name that the C
#   macro suggests is ignored.
# * Two servers can share one port unless ``grpc.so_reuseport`` is 0.
# * A peer that connects and says nothing, or slowly, holds a connection for 120 s unless
#   ``grpc.server_handshake_timeout_ms`` is less.
# * ``grpc.min_reconnect_backoff_ms`` is no pause: it is how long an attempt to connect may
#   take (its default is 20 s). The pauses between attempts are bounded by the two others.


_PING_EVERY_MS = 10_000
_PING_TIMEOUT_MS = 10_000
"""As long as a controller's lease for nodes: a peer that is silent for less stays connected."""

_CONNECT_TIMEOUT_MS = 5_000
"""Four round trips (TCP, TLS, HTTP/2) over any link; for an attempt over a broken one, a
small part of the time that a session waits for its client, or a daemon's workers for a
controller."""

_RESOLVE_EVERY_MS = 1_000
"""A controller that is started again may have another address, to which its name leads only after
its peers have looked for it; gRPC's default is 30 s, longer than any lease of a node."""

_MAX_MESSAGE_BYTES = 64 << 20

_BOTH: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Frames of 1 MiB and a stream's window of several chunks carry arrays about
    # half as fast again as the defaults (16 KiB, 64 KiB) do.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_EVERY_MS),
    # Each session and each daemon has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy in the environment is meant for the web, not for a cluster.
    ("grpc.enable_http_proxy", 0),
]

_LOOKAHEAD = "grpc.http2.lookahead_bytes"

# What is in a stream's window has left the sender's queues, in which sessions take turns.
# So the stream that all sessions of a node share begins with a small one; over a long
# link, gRPC's estimate of its bandwidth and delay enlarges it.
NODE_STREAM_OPTIONS: list[tuple[str, Any]] = [
    *(option for option in CHANNEL_OPTIONS if option[0] != _LOOKAHEAD),
    (_LOOKAHEAD, 128 << 10),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.min_time_between_pings_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection takes no more calls after 5 s. It stays for those under way, however long they
    # are, and its client makes another one for the next. So one without calls ends.
    ("grpc.max_connection_age_ms", 5_000),
    # A peer that does not go by itself is sent away. Clients go before: of this they print a line.
    ("grpc.max_connection_idle_ms", 8_000),
    # Per connection; further calls wait at the client.
    ("grpc.max_concurrent_streams", 1024),
]


def connection_limit(count: int) -> tuple[str, Any]:
    """The option of a server that closes connections beyond a limit as soon as they are made."""
    return "grpc.max_allowed_incoming_connections", count


def target(address: str) -> str:
    """Makes a gRPC target of ``HOST:PORT`` or ``unix:/path``."""
    kind, _, path = address.partition(":")
    return f"unix:{quote(os.fsencode(path))}" if kind == "unix" else f"dns:///{address}"


def open_channel(address: str, credentials: Credentials = NO_CREDENTIALS) -> grpc.Channel:
    """Makes a channel; nothing is connected yet.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: How to reach it.

    Raises:
        ConfigError: A file of the credentials cannot be read, or this process was forked
            from one that has used gRPC.
    """
    check_grpc()
    secrets = credentials.secrets()
    if secrets is None:
        return keep_in_children(grpc.insecure_channel(target(address), options=CHANNEL_OPTIONS))
    return keep_in_children(grpc.secure_channel(target(address), secrets, options=CHANNEL_OPTIONS))


_OWN_THREADS = 6
"""What opening a session takes beside gRPC's own threads: measured, 4 to 6."""

_CORE_THREADS = 3
"""gRPC's own, beside one for each core (from `_FEWEST` to `_MOST` of them)."""

_FEWEST, _MOST = 4, 16


def check_grpc_threads(what: str, more: int = 0) -> None:
    """Makes sure that gRPC can have its threads; else it would abort the process, or hang.

    Args:
        what: What it is used for.
        more: How many threads that takes beside a session's.

    Raises:
        ThreadRefused: The system starts fewer.
    """
    each = min(max(os.cpu_count() or 1, _FEWEST), _MOST)
    check_threads(each + _CORE_THREADS + _OWN_THREADS + more, what)


def abandon(channel: Any) -> None:
    """Gives up a channel for one of whose calls the system has started no thread.

    That call is never served, and closing the channel, as the end of its last reference does,
    would wait for it. But closing cancels it first; so a thread does that, which may wait for ever.

    Args:
        channel: The channel, which is kept for good.
    """
    leak(channel)
    with contextlib.suppress(ThreadRefused):
        start_thread(threading.Thread(target=channel.close, name="disco-abandon", daemon=True))


class ReloadingChannel:
    """Stands for a channel: its methods make the callables that a channel's do.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: How to reach it.
        make: Makes a channel; for those of asyncio, another than :func:`open_channel`.

    Attributes:
        address: Where it leads.
        credentials: How.

    Raises:
        ConfigError: It is no address, a token would go where others could read it, or a file
            cannot be read.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials = NO_CREDENTIALS,
        make: Callable[[str, Credentials], Any] = open_channel,
    ) -> None:
        Address.parse(address)
        credentials.check_address(address)
        self.address = address
        self.credentials = credentials
        self._make = make
        self._lock = make_lock()
        self._state = credentials.state()
        self._channels: list[Any] = [make(address, credentials)]
        self._bearer = credentials.bearer()
        self._closed = False

    def _channel(self) -> Any:
        """The current channel; former ones complete the calls that they have."""
        if not self.credentials.encrypts and self._channels:
            return self._channels[-1]
        with self._lock:
            state = self.credentials.state()
            if not self._channels:
                self._channels.append(self._make(self.address, self.credentials))
            elif state != self._state and not self._closed:
                # While files are being replaced, the old ones stay in use.
                with contextlib.suppress(ConfigError):
                    self._channels.append(self._make(self.address, self.credentials))
                    self._state = state
            return self._channels[-1]

    @contextlib.contextmanager
    def method(
        self, kind: str, path: str, codecs: dict[str, Any]
    ) -> Generator[tuple[Any, Sequence[tuple[str, str]]]]:
        """Makes the callable of the current channel, and the headers for its call in the block.

        Raises:
            ThreadRefused: The system starts no thread for the call; the next one has another
                channel.
        """
        channel = self._channel()
        made = getattr(channel, kind)(path, **codecs)
        with contextlib.suppress(ConfigError):  # the file is being replaced
            self._bearer = self.credentials.bearer()
        try:
            with starting("a call to the controller"):
                yield made, self._bearer or ()
        except ThreadRefused:
            with self._lock:
                known = channel in self._channels
                if known:
                    self._channels.remove(channel)
            if known:
                abandon(channel)
            raise

    def unary_unary(self, path: str, **codecs: Any) -> LineCall:
        """As of a channel."""
        return LineCall(self, "unary_unary", path, codecs)

    def unary_stream(self, path: str, **codecs: Any) -> LineCall:
        """As of a channel."""
        return LineCall(self, "unary_stream", path, codecs)

    def stream_unary(self, path: str, **codecs: Any) -> LineCall:
        """As of a channel."""
        return LineCall(self, "stream_unary", path, codecs)

    def stream_stream(self, path: str, **codecs: Any) -> LineCall:
        """As of a channel."""
        return LineCall(self, "stream_stream", path, codecs)

    def renew(self) -> None:
        """Makes the channel anew, which aborts the calls of the former one.

        A channel whose name could not be resolved waits for up to two minutes, which no option
        changes; a new one resolves it at once.
        """
        with self._lock, contextlib.suppress(ConfigError):  # a file is being replaced
            if not self._closed:
                made = self._make(self.address, self.credentials)
                former, self._channels = self._channels, [made]
                for channel in former:
                    channel.close()

    def close(self) -> None:
        """Closes the channel, which aborts its calls; idempotent."""
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()


class LineCall:
    """Stands for the callable of one method.

    Args:
        line: The channel.
        kind: The name of the channel's method that makes it.
        path: The method.
        codecs: How messages are written and read.
    """

    def __init__(
        self, line: ReloadingChannel, kind: str, path: str, codecs: dict[str, Any]
    ) -> None:
        self._line = line
        self._what = kind, path, codecs

    def __call__(self, *args: Any, metadata: Sequence[Header] = (), **options: Any) -> Any:
        """As of a channel's callable."""
        with self._line.method(*self._what) as (made, bearer):
            return made(*args, **options, **_headers(*metadata, *bearer))

    def future(self, *args: Any, metadata: Sequence[Header] = (), **options: Any) -> Any:
        """As of a channel's callable with one answer."""
        with self._line.method(*self._what) as (made, bearer):
            return made.future(*args, **options, **_headers(*metadata, *bearer))


def _headers(*headers: Header) -> dict[str, Any]:
    """The argument that gives a call its headers, where there are some."""
    return {"metadata": headers} if headers else {}


# Why a reachable controller refuses a connection: a probe with the standard library.
#
# gRPC reports most refusals only as a broken connection, and keeps retrying. A second
# handshake tells a wrong certificate from a controller that is not running.


_LOOK_S = 2.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes of a client: the preface, and settings that change nothing."""


def why_refused(address: str, credentials: Credentials) -> str | None:
    """Says why this program and the server at an address refuse each other.

    Takes some seconds at most, plus the time to find the host's address.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: The credentials that were used.

    Returns:
        What is wrong and what to do, as far as it can be known; None if no server
        listens there, or nothing is wrong with the start of the connection.
    """
    try:
        raw = _connect(address)
    except (OSError, ValueError):  # no server, or no address
        return None
    with raw:
        if credentials.encrypts:
            return _try_tls(raw, _host_of(address), credentials)
        return _try_in_clear(raw, address)


def _host_of(address: str) -> str:
    # gRPC asks for this name where there is none.
    return "localhost" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")


def _connect(address: str) -> socket.socket:
    if not address.startswith("unix:"):
        port = int(address.rpartition(":")[2])
        return socket.create_connection((_host_of(address), port), _LOOK_S)
    raw = socket.socket(socket.AF_UNIX)
    try:
        raw.settimeout(_LOOK_S)
        raw.connect(address.removeprefix("unix:"))
    except OSError:
        raw.close()
        raise
    return raw


def _try_tls(raw: socket.socket, host: str, credentials: Credentials) -> str | None:
    import ssl  # needed only with TLS

    context = ssl.create_default_context(cafile=credentials.ca)
    context.set_alpn_protocols(["h2"])
    if credentials.cert is not None:
        context.load_cert_chain(credentials.cert, credentials.key)
    try:
        with context.wrap_socket(raw, server_hostname=host) as secured:
            secured.sendall(_HTTP2_HELLO)
            came = secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate was refused: {error.verify_message}; expected one that names"
            f" {host!r}, has not expired, and is signed by the authority in {credentials.ca}"
            " (tls_ca, DISCO_TLS_CA)"
        )
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return (
                "it does not speak TLS; start it with --tls-cert and --tls-key, or leave out"
                " tls_ca (DISCO_TLS_CA)"
            )
        if "ALERT" in (error.reason or ""):
            return _refused_by_peer(credentials)
        return f"TLS failed: {error.reason or error}"
    except TimeoutError:
        return None
    except OSError:  # it closes connections that it refuses
        return _refused_by_peer(credentials)
    # A server that accepts a client sends its settings; one that refuses it sends nothing.
    return None if came else _refused_by_peer(credentials)


def _refused_by_peer(credentials: Credentials) -> str:
    if credentials.cert is None:
        return (
            "it closes the connection after the handshake: it wants a client certificate, and"
            " none was given (tls_cert and tls_key, DISCO_TLS_CERT and DISCO_TLS_KEY)"
        )
    return (
        f"it refuses the client certificate {credentials.cert}: expected one that has not expired"
        " and is signed by an authority that the controller trusts (its --tls-ca)"
    )


def _try_in_clear(raw: socket.socket, address: str) -> str | None:
    """Says, of a server that closes the connection at once, whether it expects TLS."""
    import ssl

    try:
        raw.sendall(_HTTP2_HELLO)
        if raw.recv(1)[:1] not in (b"", b"\x15"):  # the latter begins an alert of TLS
            return None
    except TimeoutError:
        return None
    except OSError:
        pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        # The server is not verified and nothing is sent: this only finds out whether it speaks TLS.
        with _connect(address) as another, context.wrap_socket(another):
            pass
    except OSError:
        return None
    return (
        "it speaks TLS, and this program does not; give tls_ca (DISCO_TLS_CA): the certificate of"
        " the authority that signed the controller's"
    )


# Calls of gRPC that Ctrl-C interrupts without harm.
#
# Python raises KeyboardInterrupt between any two steps of the main thread. Where that is
# inside gRPC, just after it took a lock of the channel, the lock stays taken, and every later
# call on the channel waits for ever. So calls of the main thread are made by another one, on
# which no signal is raised.


_T = TypeVar("_T")
_CANCEL_S = 5.0


def ask(
    call: Any,
    request: Any,
    *,
    timeout: float,
    quiet_s: float = LONGEST_S,
    on_wait: Callable[[], object] = bool,
    **options: Any,
) -> Any:
    """Makes a call with one answer, and returns that; see `run_uninterrupted`.

    Args:
        call: Of a channel or a line.
        request: What to ask.
        timeout: Seconds. gRPC itself would count them on the wall clock, which programs
            freeze and move.
        quiet_s: After so many seconds without an answer ``on_wait`` is called, and this waits on.
        on_wait: See there.
        options: Other options of the call.

    Raises:
        grpc.RpcError: It failed, or was not answered in time.
    """
    return run_uninterrupted(
        lambda: call.future(request, **options),
        lambda made: _result(made, timeout, min(quiet_s, timeout), on_wait),
    )


def _result(made: Any, timeout: float, quiet_s: float, on_wait: Callable[[], object]) -> Any:
    over = Event()

    def end(_made: object) -> None:
        over.set()

    made.add_done_callback(end)
    if quiet_s < timeout and not over.wait(quiet_s):
        on_wait()
    left = timeout - quiet_s * (quiet_s < timeout)
    if not over.wait(min(left, LONGEST_S)):
        made.cancel()
        if made.cancelled():
            raise grpc.RpcError(f"DEADLINE_EXCEEDED: no answer within {timeout:g} s")
    return made.result()


def run_uninterrupted(begin: Callable[[], Any], finish: Callable[[Any], _T]) -> _T:
    """Makes a call in a thread of its own, where this is the main thread.

    Args:
        begin: Makes the call.
        finish: Waits for its end, and returns the result.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the call was cancelled, and is over.
        ThreadRefused: There is no thread for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return finish(begin())
    work = _Work(begin, finish)
    thread = threading.Thread(target=work.run, name="disco-call", daemon=True)
    try:
        try:
            start_thread(thread)
        except ThreadRefused:
            work.over.release()  # nothing has begun
            raise
        work.over.acquire()
    except BaseException:
        work.cancel()
        raise
    return work.outcome()


class _Work(Generic[_T]):
    def __init__(self, begin: Callable[[], Any], finish: Callable[[Any], _T]) -> None:
        self._begin = begin
        self._finish = finish
        self._call: Any = None
        self._cancelled = False
        self._found: list[_T] = []
        self._error: BaseException | None = None
        self._ended = False
        # A bare lock, because an Event has another one inside, which Ctrl-C could leave taken.
        self.over = _thread.allocate_lock()
        self.over.acquire()

    def run(self) -> None:
        try:
            self._call = call = self._begin()
            if self._cancelled:
                call.cancel()
            self._found.append(self._finish(call))
        except BaseException as error:  # noqa: BLE001  (it is the caller's)
            self._error = error
        finally:
            self._ended = True
            self.over.release()

    def cancel(self) -> None:
        """Ends the call, and waits for that: its buffers are the caller's again."""
        self._cancelled = True
        if self._ended:  # and the lock may be taken already
            return
        if self._call is not None:
            try:
                start_thread(threading.Thread(target=self._call.cancel, daemon=True))
            except ThreadRefused:  # there is none: then here, whatever another Ctrl-C breaks
                self._call.cancel()
        self.over.acquire(timeout=_CANCEL_S)

    def outcome(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._found[0]


# Waiting for a controller that may not be running yet, but not for one that refuses.


_METHOD = "/disco.v1.SessionService/List"
_FIRST_LOOK_S = 0.5
_SAY_S = 2.0
"""After how long a wait for a controller says what it waits for."""
_LONGEST_S = 1.0


def details(error: grpc.RpcError) -> str:
    """Describes an error of gRPC in a line."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def denied(error: Exception) -> AccessDenied | None:
    """The error of a call that the controller does not let this program make, else None."""
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if isinstance(error, grpc.Call) and error.code() in refusals:
        return AccessDenied(str(error.details()))
    return None


def await_controller(line: ReloadingChannel, timeout: float) -> None:
    """Waits until a controller answers.

    After two seconds that is said. Where this machine itself refuses the connection, there is no
    wait: whoever starts a controller here can start it first.

    Args:
        line: The channel to the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: A controller answers, and one side refuses the other.
        ConnectionFailed: None answers.
        ThreadRefused: The system starts no thread for a call.
    """
    clock = RunClock(_LONGEST_S)
    with clock.turning():
        _probe(line, timeout, clock)


def _probe(line: ReloadingChannel, timeout: float, clock: RunClock) -> None:
    # Any call shows whether a controller answers; a channel's own ready future would keep
    # a polling thread for a while.
    probe = line.unary_unary(_METHOD)
    began = clock()
    first, wait, look, said = "", timeout, _FIRST_LOOK_S, False

    def tell() -> None:
        nonlocal said
        if not said:
            said = True
            say(f"waiting for a controller at {line.address} ({first or 'no answer yet'})")

    while True:
        quiet_s = max(_SAY_S - (clock() - began), 0.0)
        try:
            ask(
                probe,
                b"",
                timeout=max(wait, 0.0),
                quiet_s=quiet_s,
                on_wait=tell,
                wait_for_ready=bool(first),
            )
        except grpc.RpcError as error:
            if (refused := denied(error)) is not None:
                raise refused from None
            first = first or details(error)
            why = why_refused(line.address, line.credentials)
            if why is not None:
                msg = f"the controller at {line.address} cannot be spoken to: {why}"
                raise AccessDenied(msg) from None
        else:
            return
        waited = clock() - began
        if waited >= timeout or _nobody_listens(line.address):
            break
        wait, look = min(look, timeout - waited), look * 2
    here = "'disco local -- python program.py' runs a program with one on this machine; or "
    msg = (
        f"no controller answers at {line.address} (waited for {waited:.0f} s, {first}); "
        f"{here * _is_here(line.address)}start one: 'disco-controller --listen {line.address}', "
        "or correct the address (argument of connect(), or DISCO_ADDRESS)"
    )
    raise ConnectionFailed(msg)


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine alone."""
    host = _host_of(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _nobody_listens(address: str) -> bool:
    """Whether this machine refuses connections to an address of its own."""
    if not _is_here(address):
        return False
    try:
        _connect(address).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except (OSError, ValueError):
        pass
    return False
