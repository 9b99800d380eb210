"""Host arrays handed from the client's thread to a worker's, with one copy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

__all__ = ["Loan", "Loans", "TransferBroken"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_COPIED_PER_S = 2e9
"""About how many bytes a core copies a second."""


class TransferBroken(OSError):
    """An array will not come: the client broke off, or the session ended."""

    def __init__(self) -> None:
        super().__init__("the upload was broken off")


class Loan:
    """One array on its way: the client's own memory, until a copy was made of it.

    Either the worker comes while the client still waits and copies straight to
    where the array is wanted, or the client makes a copy, which the worker keeps.
    """

    def __init__(self, data: memoryview) -> None:
        self._lock = threading.Lock()
        self._lent: Bytes | None = np.frombuffer(data, np.uint8)
        self._copy: Bytes | None = None
        self._returned = threading.Lock()
        self._returned.acquire()

    def await_return(self) -> None:
        """Returns when the client's memory is its own again."""
        lent = self._lent
        if lent is not None and not self._returned.acquire(timeout=lent.nbytes / _COPIED_PER_S):
            with self._lock:
                if self._lent is not None:
                    self._copy, self._lent = self._lent.copy(), None

    def break_off(self) -> None:
        """Takes the memory back without a copy; the worker will find nothing."""
        with self._lock:
            self._lent = None

    def drop(self) -> None:
        """Gives the client's memory back: no worker wants the bytes."""
        with self._lock:
            self._give_back()

    def take(self) -> Bytes:
        """Returns an array of its own with the bytes.

        Raises:
            TransferBroken: The client has broken it off.
        """
        with self._lock:
            copy, self._copy = self._copy, None
            if copy is None:
                copy = self._source().copy()
                self._give_back()
        return copy

    def copy_into(self, out: Bytes) -> None:
        """Fills an array with the bytes.

        Raises:
            TransferBroken: The client has broken it off.
            ValueError: The array is of another size.
        """
        with self._lock:
            source = self._source()
            if source.nbytes != out.nbytes:
                msg = f"expected {out.nbytes} bytes, got {source.nbytes}"
                raise ValueError(msg)
            out[...] = source
            self._give_back()

    def _source(self) -> Bytes:
        source = self._copy if self._copy is not None else self._lent
        if source is None:
            raise TransferBroken
        return source

    def _give_back(self) -> None:
        if self._lent is not None:
            self._lent = None
            self._returned.release()
        self._copy = None


class Loans:
    """The arrays on their way to one worker, by ticket."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._loans: dict[int, Loan] = {}
        self._unwanted: set[int] = set()
        self._closed = False

    def lend(self, ticket: int, data: memoryview) -> Loan:
        """Puts an array under its ticket."""
        loan = Loan(data)
        with self._changed:
            if ticket in self._unwanted:
                self._unwanted.discard(ticket)
                loan.drop()
            else:
                self._loans[ticket] = loan
                self._changed.notify_all()
        return loan

    def discard(self, ticket: int) -> None:
        """Lets go of an array that no command will take, now or when it comes."""
        with self._changed:
            loan = self._loans.pop(ticket, None)
            if loan is None:
                self._unwanted.add(ticket)
            else:
                loan.drop()

    def get(self, ticket: int) -> Loan:
        """Waits for the array of a ticket.

        Raises:
            TransferBroken: The session ended meanwhile.
        """
        with self._changed:
            while ticket not in self._loans:
                if self._closed:
                    raise TransferBroken
                self._changed.wait()
            return self._loans.pop(ticket)

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
