"""A channel to a controller that is recreated when certificates were replaced.

gRPC reconnects by itself, but with the certificates that its channel was made with. So
each call through a `ReloadingChannel` uses a channel with the current certificates, and
sends the current token.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc

from disco_client.errors import ConfigError
from disco_client.forks import check_grpc, keep_in_children, leak
from disco_client.locks import make_lock
from disco_client.threads import ThreadRefused, check_threads, start_thread, starting
from disco_client.transport.address import Address
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.grpc_options import CHANNEL_OPTIONS

if TYPE_CHECKING:
    Header = tuple[str, str | bytes]

__all__ = [
    "LineCall",
    "ReloadingChannel",
    "abandon",
    "check_grpc_threads",
    "open_channel",
    "target",
]


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
