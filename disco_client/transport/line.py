"""A channel to a controller that is made anew when certificates were replaced.

gRPC connects again by itself, but with the certificates that its channel was made
with. So whoever calls through a line gets the channel of that moment, and with each
call goes the token of that moment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from disco_client.errors import ConfigError
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.options import CHANNEL_OPTIONS, target

__all__ = ["Line", "LineCall", "open_channel"]


def open_channel(address: str, credentials: Credentials = NO_CREDENTIALS) -> grpc.Channel:
    """Makes a channel; nothing is connected yet.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: How to reach it.

    Raises:
        ConfigError: A file of the credentials cannot be read.
    """
    secrets = credentials.secrets()
    if secrets is None:
        return grpc.insecure_channel(target(address), options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target(address), secrets, options=CHANNEL_OPTIONS)


class Line:
    """Stands for a channel: its methods make the callables that a channel's do.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: How to reach it.
        make: Makes a channel; for those of asyncio, another than :func:`open_channel`.

    Attributes:
        address: Where it leads.
        credentials: How.

    Raises:
        ConfigError: A token would go where others could read it, or a file cannot be read.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials = NO_CREDENTIALS,
        make: Callable[[str, Credentials], Any] = open_channel,
    ) -> None:
        credentials.check_address(address)
        self.address = address
        self.credentials = credentials
        self._make = make
        self._lock = threading.Lock()
        self._state = credentials.state()
        self._channels: list[Any] = [make(address, credentials)]
        self._bearer = credentials.bearer()
        self._closed = False

    def _channel(self) -> Any:
        """The channel of this moment; those before it serve the calls that they have."""
        if not self.credentials.encrypts:
            return self._channels[-1]
        with self._lock:
            state = self.credentials.state()
            if state != self._state and not self._closed:
                # Of files that are just being replaced the old ones serve on.
                with contextlib.suppress(ConfigError):
                    self._channels.append(self._make(self.address, self.credentials))
                    self._state = state
            return self._channels[-1]

    def method(
        self, kind: str, path: str, codecs: dict[str, Any]
    ) -> tuple[Any, Sequence[tuple[str, str]]]:
        """Makes the callable of this moment, and the headers that it is to be called with."""
        made = getattr(self._channel(), kind)(path, **codecs)
        with contextlib.suppress(ConfigError):  # the file is being replaced
            self._bearer = self.credentials.bearer()
        return made, self._bearer or ()

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

    def close(self) -> None:
        """Closes the channel, which breaks off what goes through it; idempotent."""
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()


class LineCall:
    """Stands for the callable of one method.

    Args:
        line: Whose.
        kind: What the channel's own method is called that makes it.
        path: The method.
        codecs: How messages are written and read.
    """

    def __init__(self, line: Line, kind: str, path: str, codecs: dict[str, Any]) -> None:
        self._line = line
        self._what = kind, path, codecs

    def __call__(self, *args: Any, metadata: Sequence[tuple[str, str]] = (), **options: Any) -> Any:
        """As of a channel's callable."""
        made, bearer = self._line.method(*self._what)
        return made(*args, **options, **_headers(*metadata, *bearer))

    def future(self, *args: Any, **options: Any) -> Any:
        """As of a channel's callable with one answer."""
        made, bearer = self._line.method(*self._what)
        return made.future(*args, **options, **_headers(*bearer))


def _headers(*headers: tuple[str, str]) -> dict[str, Any]:
    """The argument that gives a call its headers, where there are some."""
    return {"metadata": headers} if headers else {}
