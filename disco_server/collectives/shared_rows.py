"""Carries the rows of a lane through memory that all its ranks share.

Between ranks of one machine a round costs a few stores and looks, where messages
cost each rank two calls of MPI for every peer. With more ranks than processors that
decides: a round needs each rank to run once, and nothing else.

A lane has two boards, used in turns. On each there is a counter, a row and room for
data for each rank. To post, a rank writes its data and its row and then sets its
counter to the number of the round; the round is complete when all counters of its
board show that number. Nobody writes to a board again before all have read it: the
next but one round begins for a rank only when all have posted in the next one,
which they do after they have read this one.

That a counter is never seen before the row is what some processors promise of
their stores (:func:`~disco_server.settings.keeps_order`); ranks on others use
messages.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from disco_server.collectives.base import Array
from disco_server.collectives.preflight import ROW_BYTES
from disco_server.collectives.rows import TEXT_BYTES, Place, RowExchange, cut_text, read_text

__all__ = ["SharedRows", "lane_bytes"]

_COUNTER_BYTES = 8
_LINE_BYTES = 64
# About 10 ms: longer than ranks differ in most programs, and shorter than a person notices.
_SPINS = 20_000
_NAP_S = 50e-6
# Every rank reads what all have laid down. Two ranks reduce 64 MiB in a third of MPI's
# time in this way; four are faster up to 4 MiB, and slower from 16 MiB on. Gathering is
# faster up to 4 MiB of each of four or eight, and never with two or three in several rounds.
_FEW_RANKS, _MOST_PIECES = 3, 4
_TEXT_RIDER = TEXT_BYTES.to_bytes(4, "little")


def lane_bytes(members: int, data_bytes: int) -> int:
    """How much memory a lane takes."""
    return 2 * _board_bytes(members, data_bytes)


def _align(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


def _board_bytes(members: int, data_bytes: int) -> int:
    room = _align(max(data_bytes, TEXT_BYTES))
    return _align(members * _COUNTER_BYTES) + members * (ROW_BYTES + room)


class _Board:
    """One rank's views of a board."""

    def __init__(self, memory: memoryview, index: int, members: int, data_bytes: int) -> None:
        room = _align(max(data_bytes, TEXT_BYTES))
        rows_at = _align(members * _COUNTER_BYTES)
        data_at = rows_at + members * ROW_BYTES
        self.counters: Any = memory[: members * _COUNTER_BYTES]
        self.counter = memory[index * _COUNTER_BYTES : (index + 1) * _COUNTER_BYTES]
        self.rows = memory[rows_at:data_at]
        self.row = self.rows[index * ROW_BYTES : (index + 1) * ROW_BYTES]
        self.data = [
            np.frombuffer(memory, np.uint8, room, data_at + each * room) for each in range(members)
        ]
        self.mine = self.data[index]


class _Place(Place):
    """See `Place`; here it has its views.

    Attributes:
        parts: The data of all members, for either board.
    """

    __slots__ = ("parts",)

    def __init__(self, dtype: np.dtype[Any], size: int, boards: list[_Board]) -> None:
        nbytes = dtype.itemsize * size
        super().__init__(dtype, size, nbytes.to_bytes(4, "little"))
        self.parts = [[room[:nbytes].view(dtype) for room in board.data] for board in boards]


class SharedRows(RowExchange):
    """See `RowExchange`.

    Args:
        memory: The lane's, `lane_bytes` of it, all zero at first; shared by the ranks.
        index: This rank's place among the members.
        members: How many ranks the lane has.
        data_bytes: How much of each rank's data may ride along.
    """

    def __init__(self, memory: memoryview, index: int, members: int, data_bytes: int) -> None:
        super().__init__()
        size = _board_bytes(members, data_bytes)
        self.data_bytes = data_bytes
        few = members <= _FEW_RANKS
        self.most_bytes = data_bytes * (1 << 40 if few else _MOST_PIECES)
        self.most_gathered = data_bytes * (1 if few else _MOST_PIECES)
        self._boards = [
            _Board(memory[at : at + size], index, members, data_bytes) for at in (0, size)
        ]
        self._index = index
        self._members = members
        self._round = 0
        self._board = self._boards[0]
        self._complete = bytes(_COUNTER_BYTES * members)
        # Where this rank's data was laid: on a board, or aside.
        self._aside = np.empty(max(data_bytes, TEXT_BYTES), np.uint8)
        self._laid = self._aside

    def start(self, row: bytes) -> None:
        """See `RowExchange.start`; the number of bytes that ride stands behind the row."""
        number = self._round = self._round + 1
        board = self._board = self._boards[number & 1]
        if len(row) > ROW_BYTES and self._laid is not board.mine:
            length = int.from_bytes(row[ROW_BYTES:], "little")
            board.mine[:length] = self._laid[:length]
            self._laid = board.mine
        board.row[:] = row[:ROW_BYTES]
        counter = number.to_bytes(_COUNTER_BYTES, "little")
        self._complete = counter * self._members
        board.counter[:] = counter

    def test(self) -> bool:
        """See `RowExchange.test`."""
        return self._board.counters == self._complete

    def meet(self, row: bytes) -> bytes:
        """See `RowExchange.meet`; waiting here gives way to other ranks."""
        self.start(row)
        self._wait()
        return self._board.rows.tobytes()

    def _wait(self) -> None:
        counters, complete = self._board.counters, self._complete
        give_way = os.sched_yield
        for _ in range(_SPINS):
            if counters == complete:
                return
            give_way()
        while counters != complete:
            time.sleep(_NAP_S)

    def rows(self) -> bytes:
        """See `RowExchange.rows`."""
        return self._board.rows.tobytes()

    def absent(self) -> list[int]:
        """See `RowExchange.absent`."""
        shown, wanted, size = bytes(self._board.counters), self._complete, _COUNTER_BYTES
        places = range(self._members)
        return [i for i in places if shown[i * size :][:size] != wanted[i * size :][:size]]

    def _make_place(self, dtype: np.dtype[Any], size: int) -> _Place:
        return _Place(dtype, size, self._boards)

    def put(self, place: _Place, data: Array) -> None:
        """See `RowExchange.put`."""
        if self.test():
            which = (self._round + 1) & 1
            self._laid = self._boards[which].mine
            place.parts[which][self._index][:] = data.reshape(-1)
        else:
            # A token is out: its peers may still read the board that comes next.
            self._laid = self._aside
            self._aside[: place.nbytes].view(place.dtype)[:] = data.reshape(-1)

    def parts(self, place: _Place) -> list[Array]:
        """See `RowExchange.parts`."""
        return place.parts[self._round & 1]

    def tell(self, text: str) -> list[str]:
        """See `RowExchange.tell`; a round without a row that anybody reads."""
        board = self._boards[(self._round + 1) & 1]
        self._laid = board.mine
        board.mine[:TEXT_BYTES] = np.frombuffer(cut_text(text), np.uint8)
        self.meet(bytes(ROW_BYTES) + _TEXT_RIDER)
        return [
            read_text(room[:TEXT_BYTES].tobytes())
            for index, room in enumerate(board.data)
            if index != self._index
        ]

    def free(self) -> None:
        """Forgets the memory, which is its owner's."""
        self._places.clear()
        self._boards.clear()
