"""Reads the streams of a session, one after another.

A thread does, in which each stream is read to its end. Where the stream can be polled, a thread of
the program that waits for a reply reads in its place, and no other one has to be woken for it.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from disco_client.errors import SessionError
from disco_client.transport.base import ClientEnd
from disco_client.transport.carriers import SILENCE_S, OpenStream, PolledStream, StreamBroken
from disco_client.transport.shared_reader import READABLE, SharedReader
from disco_client.wire.codec import EncodedEnvelope, envelopes_in

__all__ = ["StreamReader"]

Handle: TypeAlias = Callable[[EncodedEnvelope, ClientEnd], SessionError | None]
"""Handles a message; returns the session's end if this is it."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How reading a stream has ended: with the session's end, an error, or neither.

    Attributes:
        ended: The session's end.
        error: What reading raised.
    """

    ended: SessionError | None = None
    error: Exception | None = None


class StreamReader:
    """Reads what comes: message by message while a session is opened, then to the end.

    Args:
        handle: Gets each message once the session is open.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        # At once, as the session would be lost where there is no descriptor for it later.
        self._shared = SharedReader(self._take_in) if hasattr(select, "epoll") else None
        self._stream: OpenStream | None = None
        self._incoming: Iterator[EncodedEnvelope] = iter(())
        self._arrived: deque[EncodedEnvelope] = deque()
        self._source: PolledStream | None = None
        self._client: ClientEnd | None = None
        self._outcome: _Outcome | None = None
        self._runner = 0

    def begin(self, stream: OpenStream) -> None:
        """Reads another stream from now on."""
        self._arrived.clear()
        self._stream, self._incoming = stream, self._each(stream)

    def _each(self, stream: OpenStream) -> Iterator[EncodedEnvelope]:
        for raw in stream:
            self._arrived.extend(each for _, each in envelopes_in(raw))
            while self._arrived:
                yield self._arrived.popleft()

    def __iter__(self) -> Iterator[EncodedEnvelope]:
        """The messages of the stream, one by one, in this thread alone."""
        return self._incoming

    def start(self, client: ClientEnd) -> None:
        """Notes for whom the calling thread reads from now on."""
        self._runner = threading.get_ident()
        self._client = client
        if self._shared is not None:
            self._shared.unattended = lambda: client.unattended

    def read_to_end(self, client: ClientEnd) -> SessionError | None:
        """Reads the stream to its end; returns the session's end if it came.

        Raises:
            StreamBroken: The connection broke.
        """
        source = None if self._stream is None else self._stream.polled
        if self._shared is None or source is None:
            return next(filter(None, (self._handle(each, client) for each in self._incoming)), None)
        while self._arrived:
            if (ended := self._handle(self._arrived.popleft(), client)) is not None:
                return ended
        self._outcome, self._source = None, source
        self._shared.replies.register(source.fileno(), READABLE)
        self._shared.read()  # what came before it was registered
        while (outcome := self._outcome) is None:
            self._shared.keep(SILENCE_S / 4)
            if source.is_silent:
                self._shared.read()
        if outcome.error is not None:
            raise outcome.error
        return outcome.ended

    def _take_in(self, _ready: list[tuple[int, int]]) -> None:
        """Handles what has come; one thread at a time calls it, maybe one of the program."""
        source, client = self._source, self._client
        if source is None or client is None:
            return
        outcome = None
        try:
            goes_on = source.receive()
            while source.arrived:  # also what a thread that was interrupted has left
                for _, each in envelopes_in(source.arrived[0]):
                    if (ended := self._handle(each, client)) is not None:
                        outcome = _Outcome(ended)
                source.arrived.popleft()
            if not goes_on:
                outcome = outcome or _Outcome()
        except StreamBroken as error:
            outcome = _Outcome(error=error)
        except Exception as error:
            if threading.get_ident() != self._runner:
                raise  # perhaps of a signal handler; if not, the reader's thread meets it again
            outcome = _Outcome(error=error)
        if outcome is not None and self._shared is not None:
            self._source = None
            self._outcome = outcome
            with contextlib.suppress(OSError, ValueError):
                self._shared.replies.unregister(source.fileno())
            self._shared.wake()

    # In threads of the program ---------------------------------------------------------------

    def attend(self) -> None:
        """Lets what comes be read though no thread waits for it."""
        if self._shared is not None:
            self._shared.attend()

    def wait(self, waiter: threading.Lock, seconds: float, flush: Callable[[], None]) -> bool:
        """Sends what was issued, and waits for a lock that a reply will free; whether it has it."""
        if self._shared is None or self._source is None:
            flush()
            return waiter.acquire(timeout=seconds)
        return self._shared.wait(waiter, seconds, flush)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of reading."""
        return self._shared is not None and self._shared.entered

    # The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends waits of threads that read; no thread reads a stream any more."""
        if self._shared is not None:
            self._shared.close()
