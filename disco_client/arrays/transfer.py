"""Host arrays at the client: those that travel beside the log."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any, Self

import numpy as np

from disco_client.errors import DiscoError, SessionError
from disco_client.notebook import WorkTable
from disco_client.reentry import is_of_system
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.transport.base import Transport
from disco_client.wire.arrays import byte_view, empty_array
from disco_client.wire.host_arrays import Array
from disco_client.wire.values import ArrayPorter

__all__ = ["Downloads", "Uploads", "UploadsUnderWay"]


_SHOWN_BYTES = 8 << 20
"""A transfer of at least this size has a progress bar in a notebook, and a span."""

_EXHAUSTED = (OSError, MemoryError, RuntimeError)
"""What Python raises if the system has no descriptor, memory or thread left."""


@contextlib.contextmanager
def _typed(what: str) -> Generator[None]:
    """Turns an error of the system while an array is copied into one of the session."""
    try:
        yield
    except _EXHAUSTED as error:
        if isinstance(error, DiscoError) or not is_of_system(error):
            raise
        msg = f"the {what} of an array failed: {_reason(error)}"
        raise SessionError(msg) from error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Uploads(ArrayPorter):
    """Collects the large arrays of one command; they are sent after it was issued.

    A context manager around both: if one of them is not sent, because the program was
    interrupted or the upload failed, no worker waits for it or for the ones after it.

    Args:
        take_ticket: Returns a fresh ticket.
        transport: What carries them.
        workers: The workers that get them.
        raise_if_lost: Raises why the session was lost, if it was.
        span: The session's; that of a large upload is a part of it.
        works: Where a large upload says how far it is.

    Attributes:
        workers: As given.
        offered: The arrays with their tickets.
    """

    def __init__(
        self,
        take_ticket: Callable[[], int],
        transport: Transport,
        workers: Sequence[int],
        raise_if_lost: Callable[[], None],
        span: Span = NO_SPAN,
        works: WorkTable | None = None,
    ) -> None:
        self._span = span
        self._works = works
        self._take_ticket = take_ticket
        self._transport = transport
        self.workers = workers
        self._raise_if_lost = raise_if_lost
        self._begun = self._issued = self._over = False
        self._done = 0
        self.offered: list[tuple[int, Array]] = []

    def send(self) -> None:
        """Sends them; their command is issued."""
        self._issued = True
        pairs = self._pairs()
        nbytes = sum(array.nbytes for _, _, array in pairs)
        if nbytes < _SHOWN_BYTES:
            self._send(pairs, lambda _nbytes: None)
            return
        facts = {"disco.bytes": nbytes, "disco.workers": list(self.workers)}
        with (
            self._span.within("disco.upload", facts),
            (self._works or WorkTable()).track("upload", "", nbytes, late=True) as bar,
        ):
            self._send(pairs, bar.update)

    def _send(self, pairs: list[tuple[int, int, Array]], advance: Callable[[int], object]) -> None:
        for ticket, worker, array in pairs:
            with _typed("upload"):
                self._transport.upload(ticket, worker, byte_view(array))
            self._done += 1
            advance(array.nbytes)

    def _pairs(self) -> list[tuple[int, int, Array]]:
        return [
            (ticket, worker, array) for ticket, array in self.offered for worker in self.workers
        ]

    def __enter__(self) -> Self:
        return self

    @property
    def under_way(self) -> bool:
        """Whether workers may wait for arrays that are still to be sent."""
        return self._begun and not self._over

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or not self.offered:
            self._over = True
            return
        # Of other errors, such as that of a signal handler or for lack of resources, it is
        # unknown whether the command was issued.
        if self._issued or not isinstance(error, DiscoError):
            left = [(ticket, worker) for ticket, worker, _ in self._pairs()[self._done :]]
            if left:
                self._transport.give_up(left, _reason(error.__cause__ or error))
        self._over = True
        if isinstance(error, SessionError):
            # Where the session was lost, its own error says why.
            self._raise_if_lost()

    def begin(self) -> int:
        """Notes that the command is being issued; returns how many bytes all have together."""
        self._begun = bool(self.offered)
        return sum(array.nbytes for _, array in self.offered)

    def offer(self, array: Array) -> int:
        """Notes an array and returns the ticket under which it will be sent."""
        ticket = self._take_ticket()
        self.offered.append((ticket, array))
        return ticket


class UploadsUnderWay:
    """The arrays that each thread of a session sends, or is about to; any thread may ask.

    Args:
        first_ticket: The number under which the first large array travels.
    """

    def __init__(self, first_ticket: int) -> None:
        self._tickets = itertools.count(first_ticket)
        # Several of one thread, where it is entered again.
        self._of_threads: dict[int, list[Callable[[], Uploads | None]]] = {}

    def next_ticket(self) -> int:
        """The number under which the next large array travels."""
        return next(self._tickets)

    def add(self, made: Uploads) -> None:
        """Counts arrays among those of this thread, for as long as they are held."""
        mine = self._of_threads.setdefault(threading.get_ident(), [])
        mine.append(weakref.ref(made, mine.remove))

    def of_this_thread(self) -> bool:
        """Whether workers may wait for arrays that this thread is still to send."""
        mine = self._of_threads.get(threading.get_ident())
        if not mine:
            return False
        made = [each() for each in mine]
        return any(uploads is not None and uploads.under_way for uploads in made)


class Downloads(ArrayPorter):
    """Fetches the large arrays of one reply.

    Args:
        transport: What carries them.
        worker: The worker that replied.
        into: Where to put the array, if it is C-contiguous and of the same dtype.
        span: The session's; that of a large download is a part of it.
        works: Where a large download says how far it is.
    """

    def __init__(
        self,
        transport: Transport,
        worker: int,
        into: Array | None = None,
        span: Span = NO_SPAN,
        works: WorkTable | None = None,
    ) -> None:
        self._span = span
        self._works = works
        self._transport = transport
        self._worker = worker
        self._into = into

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """Downloads an array, into the buffer given at the start where it fits."""
        with _typed("download"):
            out = self._into
            if out is None or not out.flags.c_contiguous or out.dtype != dtype:
                out = empty_array(shape, dtype)
            if out.nbytes < _SHOWN_BYTES:
                self._transport.download(ticket, self._worker, byte_view(out))
            else:
                self._collect_shown(ticket, out)
            return out

    def _collect_shown(self, ticket: int, out: Array) -> None:
        """The same with a span, and a bar where it takes long."""
        facts = {"disco.bytes": out.nbytes, "disco.workers": [self._worker]}
        with (
            self._span.within("disco.download", facts),
            (self._works or WorkTable()).track("download", "", out.nbytes, late=True) as bar,
        ):
            self._transport.download(ticket, self._worker, byte_view(out))
            bar.update(out.nbytes)

    def decline(self, tickets: Sequence[int]) -> None:
        """Discards the arrays of a reply that could not be read completely."""
        if tickets:
            self._transport.decline([(ticket, self._worker) for ticket in tickets])
