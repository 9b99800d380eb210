"""Carries the headers of a channel through memory that all its ranks share.

Between ranks of one machine a round costs a few stores and looks, where messages
cost each rank two calls of MPI for every peer. With more ranks than processors that
decides: a round needs each rank to run once, and nothing else.

A channel has two boards, used in turns. On each there is a counter, a header and room for
data for each rank. To post, a rank writes its data and its header and then sets its
counter to the number of the round; the round is complete when all counters of its
board show that number. No rank writes to a board again before all have read it: the
next but one round begins for a rank only when all have posted in the next one,
which they do after they have read this one.

That a counter is never seen before the header is what some processors promise of
their stores (:func:`~disco_server.settings.keeps_order`); ranks on others use
messages.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_server.collectives.header_exchange import (
    ASK_EVERY,
    SPINS,
    TEXT_BYTES,
    HeaderExchange,
    Slot,
    cut_text,
    naps,
    patient,
    read_text,
)
from disco_server.collectives.preflight import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from disco_server.collectives.types import Array

__all__ = ["SharedMemoryExchange", "channel_bytes"]


_COUNTER_BYTES = 8

_LINE_BYTES = 64
# Every rank reads what all have put. Two ranks reduce 64 MiB in a third of MPI's
# time in this way; four are faster up to 4 MiB, and slower from 16 MiB on. Gathering is
# faster up to 4 MiB of each of four or eight, and never with two or three in several rounds.
_FEW_RANKS, _MOST_PIECES = 3, 4

_TEXT_PAYLOAD = TEXT_BYTES.to_bytes(4, "little")


def channel_bytes(members: int, data_bytes: int) -> int:
    """How much memory a channel takes."""
    return 2 * _board_bytes(members, data_bytes)


def _align(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


def _board_bytes(members: int, data_bytes: int) -> int:
    room = _align(max(data_bytes, TEXT_BYTES))
    return _align(members * _COUNTER_BYTES) + members * (HEADER_BYTES + room)


class _Board:
    """One rank's views of a board."""

    def __init__(self, memory: memoryview, index: int, members: int, data_bytes: int) -> None:
        room = _align(max(data_bytes, TEXT_BYTES))
        headers_at = _align(members * _COUNTER_BYTES)
        data_at = headers_at + members * HEADER_BYTES
        self.counters = memory[: members * _COUNTER_BYTES].cast("Q")
        self.headers = memory[headers_at:data_at]
        self.header = self.headers[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]
        self.data = [
            np.frombuffer(memory, np.uint8, room, data_at + each * room) for each in range(members)
        ]
        self.mine = self.data[index]


class _SharedSlot(Slot):
    """See `Slot`; this one holds its views.

    Attributes:
        parts: The data of all members, for either board.
    """

    __slots__ = ("parts",)

    def __init__(self, dtype: np.dtype[Any], size: int, boards: list[_Board]) -> None:
        nbytes = dtype.itemsize * size
        super().__init__(dtype, size, nbytes.to_bytes(4, "little"))
        self.parts = [[room[:nbytes].view(dtype) for room in board.data] for board in boards]


class SharedMemoryExchange(HeaderExchange):
    """See `HeaderExchange`.

    Args:
        memory: The channel's, `channel_bytes` of it, all zero at first; shared by the ranks.
        index: This rank's place among the members.
        members: How many ranks the channel has.
        data_bytes: How much of each rank's data one header may carry.
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
        self._members = range(members)
        self._peers = [place for place in range(members) if place != index]
        self._round = 0
        self._board = self._boards[0]
        self._posted = False
        # Where this rank's data was put: on a board, or aside.
        self._aside = np.empty(max(data_bytes, TEXT_BYTES), np.uint8)
        self._laid = self._aside

    def start(self, header: bytes) -> None:
        """See `HeaderExchange.start`; the number of data bytes stands behind the header."""
        number = self._round = self._round + 1
        board = self._board = self._boards[number & 1]
        if len(header) > HEADER_BYTES and self._laid is not board.mine:
            self._lay(board, header)
        board.header[:] = header[:HEADER_BYTES]
        board.counters[self._index] = number
        self._posted = True

    def _lay(self, board: _Board, header: bytes) -> None:
        """Brings data that was put elsewhere to the board of the round."""
        length = int.from_bytes(header[HEADER_BYTES:], "little")
        board.mine[:length] = self._laid[:length]
        self._laid = board.mine

    def test(self) -> bool:
        """See `HeaderExchange.test`."""
        self._posted = self._posted and bool(self.absent())
        return not self._posted

    def meet(self, header: bytes, gives_way: Callable[[], bool] = patient) -> bytes:
        """See `HeaderExchange.meet`; waiting here yields to other ranks."""
        # What `start` does, spelled out, as in `MpiExchange.meet`.
        number = self._round = self._round + 1
        board = self._board = self._boards[number & 1]
        if len(header) > HEADER_BYTES and self._laid is not board.mine:
            self._lay(board, header)
        board.header[:] = header[:HEADER_BYTES]
        counters = board.counters
        counters[self._index] = number
        for peer in self._peers:
            if counters[peer] != number and not self._wait(peer, gives_way):
                self._posted = True
                return b""
        self._posted = False
        return board.headers.tobytes()

    def _wait(self, peer: int, gives_way: Callable[[], bool]) -> bool:
        """Waits until a peer has posted in the round; False where it gives way before."""
        counters, number = self._board.counters, self._round
        give_way = os.sched_yield
        for spin in range(SPINS):
            if counters[peer] == number:
                return True
            if not spin % ASK_EVERY and gives_way():
                return False
            give_way()
        for seconds in naps():
            if counters[peer] == number:
                return True
            if gives_way():
                return False
            time.sleep(seconds)
        return True

    def headers(self) -> bytes:
        """See `HeaderExchange.headers`."""
        return self._board.headers.tobytes()

    def absent(self) -> list[int]:
        """See `HeaderExchange.absent`."""
        counters, number = self._board.counters, self._round
        return [place for place in self._members if counters[place] != number]

    def _make_slot(self, dtype: np.dtype[Any], size: int) -> _SharedSlot:
        return _SharedSlot(dtype, size, self._boards)

    def put(self, slot: _SharedSlot, data: Array) -> None:
        """See `HeaderExchange.put`."""
        if not self._posted or self.test():
            which = (self._round + 1) & 1
            self._laid = self._boards[which].mine
            slot.parts[which][self._index][:] = data
        else:
            # A token is pending: its peers may still read the board that comes next.
            self._laid = self._aside
            self._aside[: slot.nbytes].view(slot.dtype)[:] = data

    def parts(self, slot: _SharedSlot) -> list[Array]:
        """See `HeaderExchange.parts`."""
        return slot.parts[self._round & 1]

    def tell(self, text: str) -> list[str]:
        """See `HeaderExchange.tell`; a round whose headers are not read."""
        board = self._boards[(self._round + 1) & 1]
        self._laid = board.mine
        board.mine[:TEXT_BYTES] = np.frombuffer(cut_text(text), np.uint8)
        self.meet(bytes(HEADER_BYTES) + _TEXT_PAYLOAD)
        return [
            read_text(room[:TEXT_BYTES].tobytes())
            for index, room in enumerate(board.data)
            if index != self._index
        ]

    def free(self) -> None:
        """Drops the views; the memory belongs to its owner."""
        self._slots.clear()
        self._boards.clear()
