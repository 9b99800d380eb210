"""Carries the rows of a lane between threads of one process.

As in `shared_rows` a lane has two boards that are used in turns. A thread that waits
sleeps: one that looked again and again would keep the interpreter from the others.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from disco_server.collectives.base import Array, UnavailableError
from disco_server.collectives.preflight import ROW_BYTES
from disco_server.collectives.rows import Place, RowExchange, cut_text, read_text

__all__ = ["LocalLane", "LocalRows"]

_DATA_BYTES = 16 << 10
_RIDER = b"+"
_NO_DATA = np.empty(0)


class _Posted(NamedTuple):
    """What one rank posted in one round."""

    number: int
    row: bytes
    data: Array


class LocalLane:
    """What the threads of a lane share.

    Args:
        members: How many they are.

    Attributes:
        boards: For either board what each member posted there last.
        arrived: Notified when a round is complete, or when it never will be.
        closed: The session is over; nobody shall wait.
    """

    def __init__(self, members: int) -> None:
        nothing = _Posted(-1, bytes(ROW_BYTES), _NO_DATA)
        self.boards = [[nothing] * members for _ in range(2)]
        self.arrived = threading.Condition()
        self.closed = False

    def close(self) -> None:
        """Ends every wait."""
        with self.arrived:
            self.closed = True
            self.arrived.notify_all()


class LocalRows(RowExchange):
    """See `RowExchange`; made by the thread that uses it, or before that thread starts.

    Args:
        lane: Shared with the other members.
        index: This rank's place among them.
    """

    def __init__(self, lane: LocalLane, index: int) -> None:
        super().__init__()
        self.data_bytes = self.most_bytes = self.most_gathered = _DATA_BYTES
        self._lane = lane
        self._index = index
        self._number = -1
        self._board = lane.boards[0]
        self._data = _NO_DATA

    def start(self, row: bytes) -> None:
        """See `RowExchange.start`.

        Raises:
            UnavailableError: The session is over.
        """
        lane = self._lane
        self._check_open()
        number = self._number = self._number + 1
        board = self._board = lane.boards[number & 1]
        data = self._data if len(row) > ROW_BYTES else _NO_DATA
        board[self._index] = _Posted(number, row[:ROW_BYTES], data)
        if self._is_complete():
            with lane.arrived:
                lane.arrived.notify_all()

    def _check_open(self) -> None:
        if self._lane.closed:
            raise UnavailableError("the session ended while this worker was in a collective")

    def _is_complete(self) -> bool:
        number = self._number
        return all(posted[0] == number for posted in self._board)

    def test(self) -> bool:
        """See `RowExchange.test`.

        Raises:
            UnavailableError: The session is over.
        """
        if self._is_complete():
            return True
        self._check_open()
        return False

    def meet(self, row: bytes) -> bytes:
        """See `RowExchange.meet`.

        Raises:
            UnavailableError: The session is over.
        """
        self.start(row)
        if not self._is_complete():
            with self._lane.arrived:
                while not self.test():
                    self._lane.arrived.wait()
        return self.rows()

    def rows(self) -> bytes:
        """See `RowExchange.rows`."""
        return b"".join([posted[1] for posted in self._board])

    def absent(self) -> list[int]:
        """See `RowExchange.absent`."""
        number = self._number
        return [place for place, posted in enumerate(self._board) if posted[0] != number]

    def _make_place(self, dtype: np.dtype[Any], size: int) -> Place:
        return Place(dtype, size, _RIDER)

    def put(self, place: Place, data: Array) -> None:
        """See `RowExchange.put`; what is laid down is a copy that nobody changes."""
        self._data = data.reshape(place.size).copy()

    def parts(self, place: Place) -> list[Array]:
        """See `RowExchange.parts`."""
        return [posted[2][: place.size] for posted in self._board]

    def tell(self, text: str) -> list[str]:
        """See `RowExchange.tell`; a round without a row that anybody reads."""
        self._data = np.frombuffer(cut_text(text), np.uint8)
        self.meet(bytes(ROW_BYTES) + _RIDER)
        texts = [read_text(posted[2].tobytes()) for posted in self._board]
        return texts[: self._index] + texts[self._index + 1 :]

    def free(self) -> None:
        """Forgets its data."""
        self._data = _NO_DATA
