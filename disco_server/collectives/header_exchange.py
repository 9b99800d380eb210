"""What carries the headers of a channel, and small data with them; see `preflight`.

Data that is small enough travels behind a header, which saves a collective its own
messages: its ranks have all the data as soon as they know that they agree.
"""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from disco_server.collectives.numeric import combine_all
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.thread_barrier import MOST_ALONE_BYTES, ThreadBarrier
from disco_server.collectives.types import Array, Tag, wide_channels
from disco_server.settings import keeps_order

if TYPE_CHECKING:
    from disco_server.collectives.types import Array, ReduceOp
    from disco_server.collectives.validation import Family

__all__ = [
    "NO_DATA",
    "TEXT_BYTES",
    "HeaderExchange",
    "LocalExchange",
    "MpiExchange",
    "NodeMemory",
    "SharedMemoryExchange",
    "Slot",
    "channel_bytes",
    "cut_text",
    "fit_text",
    "naps",
    "read_text",
]


NO_DATA = b""
"""The bytes behind a header that carries no data."""

TEXT_BYTES = 600
"""How many bytes of a rank's description of a call reach its peers."""

_MOST_SLOTS = 256
# How often a rank looks for its peers, yielding to other processes in between, before it sleeps.
# About 10 ms: longer than ranks differ in most programs, and too short to be noticed.
_SPINS = 20_000
_SHORTEST_NAP_S, _LONGEST_NAP_S = 50e-6, 10e-3
_NAP_GROWTH = 1.005


def naps() -> Iterator[float]:
    """How long to sleep between two looks for a peer, look after look, in seconds.

    A sleep is longer than the first one by at most a two-hundredth of those before it, which
    is all that a rank may be late by; after a second of waiting the looks cost it nothing
    to speak of.
    """
    seconds = _SHORTEST_NAP_S
    while True:
        yield seconds
        seconds = min(seconds * _NAP_GROWTH, _LONGEST_NAP_S)


class Slot:
    """Where data of one dtype and size is exchanged.

    Attributes:
        dtype, size: Of one rank's data, flat.
        nbytes: Of one rank's data.
        payload: The bytes behind a header that carries it.
    """

    __slots__ = ("dtype", "nbytes", "payload", "size")

    def __init__(self, dtype: np.dtype[Any], size: int, payload: bytes) -> None:
        self.dtype = dtype
        self.size = size
        self.nbytes = dtype.itemsize * size
        self.payload = payload


class HeaderExchange(ABC):
    """One rank's end of a channel; satisfies `preflight.Exchange`.

    Attributes:
        data_bytes: How much of one rank's data one header may carry.
        most_bytes: How much of it is worth reducing in one round after the other.
        most_gathered: How much of it is worth gathering so.
        reduces: Whether a round reduces what was put by `put_reduction`.
    """

    data_bytes: int = 0
    most_bytes: int = 0
    most_gathered: int = 0
    reduces: bool = False

    def __init__(self) -> None:
        self._slots: dict[tuple[np.dtype[Any], int], Any] = {}

    def find_slot(self, dtype: np.dtype[Any], size: int) -> Any:
        """Finds the slot for data that headers carry, at most `data_bytes` of it.

        Args:
            dtype: Of the data.
            size: How many elements each rank has.

        Returns:
            A `Slot` of this exchange.
        """
        slot = self._slots.get((dtype, size))
        if slot is None:
            if len(self._slots) >= _MOST_SLOTS:
                self._slots.clear()
            slot = self._slots[dtype, size] = self._make_slot(dtype, size)
        return slot

    @abstractmethod
    def _make_slot(self, dtype: np.dtype[Any], size: int) -> Slot: ...

    @abstractmethod
    def put(self, slot: Any, data: Array) -> None:
        """Puts this rank's data, flat; the next header with the slot's payload carries it.

        A token that is posted meanwhile, or pending, is not affected: it carries no data.
        """

    def put_reduction(self, source: Array, target: Array, op: ReduceOp, family: Family) -> None:
        """Puts what the next header with a slot's payload is to reduce, where a round `reduces`.

        Args:
            source: Flat, of the slot's size; is read only in the round.
            target: As long; has the result after a round to which all members came with equal
                headers. May be the source.
            op: The operation.
            family: How elements of this dtype are combined.
        """
        raise NotImplementedError  # of the others nobody asks for it: see `reduces`

    @abstractmethod
    def parts(self, slot: Any) -> list[Array]:
        """After a round: the data of all members, flat, to be read before the next."""

    @abstractmethod
    def start(self, header: bytes) -> None:
        """Posts this rank's header, with the data that the payload behind it stands for."""

    @abstractmethod
    def test(self) -> bool:
        """Whether the round is complete."""

    @abstractmethod
    def meet(self, header: bytes) -> bytes:
        """Posts a header, waits until the round is complete and returns its `headers`."""

    @abstractmethod
    def headers(self) -> bytes:
        """After a round: the headers of all members in their order."""

    @abstractmethod
    def absent(self) -> list[int]:
        """In a round that is not complete: the places of the members that have not posted.

        May be called on any thread; the result may be out of date at once.
        """

    @abstractmethod
    def tell(self, text: str) -> list[str]:
        """Exchanges short texts with the other members, in their order.

        All must call it after the same round. A long text is cut.
        """

    @abstractmethod
    def free(self) -> None:
        """Releases everything; no round may be under way."""


def fit_text(text: str, end: str) -> str:
    """Cuts a text so that it can be told with an end that is told whole.

    Returns:
        Both, as all ranks get it; what UTF-8 cannot encode is escaped.
    """
    last = end.encode("utf-8", "backslashreplace")[:TEXT_BYTES]
    first = text.encode("utf-8", "backslashreplace")[: TEXT_BYTES - len(last)]
    return read_text(first) + read_text(last)


def cut_text(text: str) -> bytes:
    """Encodes a text and fills or cuts it to `TEXT_BYTES`."""
    return text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


def read_text(raw: bytes | bytearray) -> str:
    """What `cut_text` encoded."""
    return bytes(raw).rstrip(b"\0").decode(errors="ignore")


# Carries the headers of a channel through memory that all its ranks share.
#
# Between ranks of one machine a round costs a few stores and looks, where messages
# cost each rank two calls of MPI for every peer. With more ranks than processors that
# decides: a round needs each rank to run once, and nothing else.
#
# A channel has two boards, used in turns. On each there is a counter, a header and room for
# data for each rank. To post, a rank writes its data and its header and then sets its
# counter to the number of the round; the round is complete when all counters of its
# board show that number. No rank writes to a board again before all have read it: the
# next but one round begins for a rank only when all have posted in the next one,
# which they do after they have read this one.
#
# That a counter is never seen before the header is what some processors promise of
# their stores (:func:`~disco_server.settings.keeps_order`); ranks on others use
# messages.


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

    def meet(self, header: bytes) -> bytes:
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
            if counters[peer] != number:
                self._wait(peer)
        self._posted = False
        return board.headers.tobytes()

    def _wait(self, peer: int) -> None:
        counters, number = self._board.counters, self._round
        give_way = os.sched_yield
        for _ in range(_SPINS):
            if counters[peer] == number:
                return
            give_way()
        for seconds in naps():
            if counters[peer] == number:
                return
            time.sleep(seconds)

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


# Carries the headers of a channel between threads of one process, which meet in rounds.
#
# Where a reduction goes with the headers, the last thread makes it for all, between their
# arrays and without a copy: it alone runs meanwhile, and nobody is woken before it is done.


_PAYLOAD = b"+"


class _Reduction(NamedTuple):
    """What one rank brings to a reduction."""

    source: Array
    target: Array
    op: ReduceOp
    family: Family


_Load = np.ndarray[Any, Any] | _Reduction | None
_Posted = tuple[bytes, _Load]
"""What one rank posted in one round: its header, and what goes with it."""


def _end_round(posted: list[_Posted]) -> tuple[bytes, list[_Posted]]:
    """Ends a round: reduces, if all bring the same; returns all headers, and what was posted."""
    header, load = posted[0]
    headers = b"".join([each for each, _ in posted])
    if type(load) is _Reduction and headers == header * len(posted):
        combine_all([cast("_Reduction", each) for _, each in posted], load.op, load.family)
        return headers, []
    return headers, posted


class LocalExchange(HeaderExchange):
    """See `HeaderExchange`; made by the thread that uses it, or before that thread starts.

    Args:
        barrier: Shared with the other members.
        index: This rank's place among them.
    """

    reduces = True

    def __init__(self, barrier: ThreadBarrier, index: int) -> None:
        super().__init__()
        self.data_bytes = self.most_bytes = self.most_gathered = MOST_ALONE_BYTES // barrier.members
        self._barrier = barrier
        self._index = index
        self._load: _Load = None

    def start(self, header: bytes) -> None:
        """See `HeaderExchange.start`.

        Raises:
            UnavailableError: The session is over.
        """
        self._barrier.come(self._index, self._post(header), _end_round)

    def _post(self, header: bytes) -> _Posted:
        if len(header) == HEADER_BYTES:
            return header, None
        return header[:HEADER_BYTES], self._load

    def test(self) -> bool:
        """See `HeaderExchange.test`.

        Raises:
            UnavailableError: The session is over.
        """
        return self._barrier.is_over(self._index)

    def meet(self, header: bytes) -> bytes:
        """See `HeaderExchange.meet`.

        Raises:
            UnavailableError: The session is over.
        """
        return self._barrier.meet(self._index, self._post(header), _end_round)[0]

    def headers(self) -> bytes:
        """See `HeaderExchange.headers`."""
        return self._barrier.result(self._index)[0]

    def absent(self) -> list[int]:
        """See `HeaderExchange.absent`."""
        return self._barrier.absent(self._index)

    def _make_slot(self, dtype: np.dtype[Any], size: int) -> Slot:
        return Slot(dtype, size, _PAYLOAD)

    def put(self, slot: Slot, data: Array) -> None:
        """See `HeaderExchange.put`; what is put is a copy that is never changed."""
        self._load = data[: slot.size].copy()

    def parts(self, slot: Slot) -> list[Array]:
        """See `HeaderExchange.parts`."""
        posted: list[_Posted] = self._barrier.result(self._index)[1]
        return [cast("Array", data)[: slot.size] for _, data in posted]

    def put_reduction(self, source: Array, target: Array, op: ReduceOp, family: Family) -> None:
        """See `HeaderExchange.put_reduction`."""
        self._load = _Reduction(source, target, op, family)

    def tell(self, text: str) -> list[str]:
        """See `HeaderExchange.tell`; a round whose headers are not read."""
        data = np.frombuffer(cut_text(text), np.uint8)
        mine = bytes(HEADER_BYTES), data
        posted: list[_Posted] = self._barrier.meet(self._index, mine, _end_round)[1]
        texts = [read_text(cast("Array", each).tobytes()) for _, each in posted]
        return texts[: self._index] + texts[self._index + 1 :]

    def free(self) -> None:
        """Drops its data."""
        self._load = None


# Carries the headers of a channel by MPI messages from each rank to each other.
#
# For channels that cross machines; where memory is shared, `SharedMemoryExchange` is faster.
# Persistent requests make a round two calls. Against MPI's own collectives that has
# three advantages: a rank that failed posts without waiting in just the way in which
# one that has not posts and waits (MPI does not match blocking with non-blocking
# collectives); messages that were not received can be drained at the end; and of the four ways
# tried it is the fastest for 2 to 8 ranks. A channel of n ranks takes n(n - 1) messages,
# which stay in eager buffers of MPI until they are wanted.


# Among more ranks the copies to every rank cost more than a collective of MPI.
_MOST_RANKS = 8
# How much data a header may carry. It is sent with the least of these that holds its data,
# as a persistent request has one length.
_LENGTHS = (256, 1024, 4096, 16384)
_TEXT_TAG = 16
# Which numbers of a header say its command, and which collective of that.
_COMMAND = slice(1, 3)


class _MpiSlot(Slot):
    """See `Slot`; this one holds its views.

    Attributes:
        parts: The data of all members after the round.
    """

    __slots__ = ("parts",)

    def __init__(self, dtype: np.dtype[Any], size: int, payload: bytes, parts: list[Array]) -> None:
        super().__init__(dtype, size, payload)
        self.parts = parts


class MpiExchange(HeaderExchange):
    """See `HeaderExchange`.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: Carries headers and texts only.
        me: This rank in it.
        members: The ranks of the channel, this one among them, in order.
        tag: Distinguishes channels of the same ranks.
        with_data: Headers may carry data.
    """

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        me: int,
        members: Sequence[int],
        tag: int,
        *,
        with_data: bool,
    ) -> None:
        super().__init__()
        lengths = _LENGTHS if with_data and len(members) <= _MOST_RANKS else ()
        self.data_bytes = self.most_bytes = self.most_gathered = max(lengths, default=0)
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self._peers = [member for member in members if member != me]
        lines = np.zeros((len(members), HEADER_BYTES + self.data_bytes), np.uint8)
        self._index = list(members).index(me)
        mine = lines[self._index]
        self._lines = lines
        self._head = memoryview(mine[:HEADER_BYTES])
        self._heads = lines[:, :HEADER_BYTES]
        receives: list[Any] = [
            comm.Recv_init([lines[index], mpi.BYTE], member, tag)
            for index, member in enumerate(members)
            if member != me
        ]
        sends = [self._prepare(mine[: HEADER_BYTES + length]) for length in (0, *lengths)]
        self._all = receives + [request for each in sends for request in each]
        # Receives stand first, so that a message finds its buffer when it arrives.
        self._rounds = [receives + each for each in sends]
        self._active = self._rounds[0]
        self._lengths = lengths
        self._start_all = mpi.Prequest.Startall
        self._wait_all = mpi.Request.Waitall
        self._test_all = mpi.Request.Testall

    def start(self, header: bytes) -> None:
        """See `HeaderExchange.start`; a byte behind the header for each step of length."""
        self._head[:] = header[:HEADER_BYTES]
        self._active = self._rounds[len(header) - HEADER_BYTES]
        self._start_all(self._active)

    def test(self) -> bool:
        """Whether all headers have arrived and this rank's was sent."""
        return bool(self._test_all(self._active))

    def meet(self, header: bytes) -> bytes:
        """Does all of a round at once; waiting here yields to other ranks."""
        # What `start` and `headers` do, spelled out: after large operations the
        # interpreter finds its caches cold, and each call costs three times as much.
        self._head[:] = header[:HEADER_BYTES]
        active = self._rounds[len(header) - HEADER_BYTES]
        self._start_all(active)
        self._wait(active)
        return self._heads.tobytes()

    def _wait(self, active: list[Any]) -> None:
        # MPI's own wait never sleeps, and a peer may be busy with something else for long.
        test, give_way = self._test_all, os.sched_yield
        for _ in range(_SPINS):
            if test(active):
                return
            give_way()
        for seconds in naps():
            if test(active):
                return
            time.sleep(seconds)

    def headers(self) -> bytes:
        """See `HeaderExchange.headers`."""
        return self._heads.tobytes()

    def absent(self) -> list[int]:
        """See `HeaderExchange.absent`; a header of this round names this rank's command."""
        headers = self._heads.view(np.int64)
        mine = headers[self._index]
        return [
            place
            for place, header in enumerate(headers)
            if bool(header[0]) != bool(mine[0]) or (header[_COMMAND] != mine[_COMMAND]).any()
        ]

    def _make_slot(self, dtype: np.dtype[Any], size: int) -> _MpiSlot:
        nbytes = dtype.itemsize * size
        parts = [line[HEADER_BYTES : HEADER_BYTES + nbytes].view(dtype) for line in self._lines]
        tier = 1 + sum(nbytes > length for length in self._lengths)
        return _MpiSlot(dtype, size, b"+" * tier, parts)

    def put(self, slot: _MpiSlot, data: Array) -> None:
        """See `HeaderExchange.put`."""
        slot.parts[self._index][:] = data

    def parts(self, slot: _MpiSlot) -> list[Array]:
        """See `HeaderExchange.parts`."""
        return slot.parts

    def tell(self, text: str) -> list[str]:
        """See `HeaderExchange.tell`."""
        mpi, comm, tag = self._mpi, self._comm, self._tag + _TEXT_TAG
        mine = cut_text(text)
        theirs = [bytearray(len(mine)) for _ in self._peers]
        pairs = list(zip(theirs, self._peers, strict=True))
        requests = [comm.Irecv([part, mpi.BYTE], peer, tag) for part, peer in pairs]
        requests += [comm.Isend([mine, mpi.BYTE], peer, tag) for peer in self._peers]
        self._wait_all(requests)
        return [read_text(part) for part in theirs]

    def free(self) -> None:
        """Frees the requests; no round may be under way."""
        for request in self._all:
            request.Free()

    def _prepare(self, part: Array) -> list[Any]:
        mpi, comm = self._mpi, self._comm
        return [comm.Send_init([part, mpi.BYTE], peer, self._tag) for peer in self._peers]


# Memory that the ranks of one machine share for the headers of their channels.
#
# The first rank of the machine makes it without a name in any file system and the
# others find it by its descriptor in /proc, so nothing is left behind however the
# ranks end. Where that is not possible, as between containers, there is none.


# Among more ranks the copies that each makes of all ranks' data cost more than a
# collective of MPI does.
# Up to here it beats MPI with 2, 4 and 8 ranks on 2 processors: an allreduce of 1 MiB
# takes 0.7 to 1.0 of its time, one of 256 KiB 0.3. A page is used when it first holds data.
_PAGE_BYTES = 1 << 20

_Key = tuple[Tag, tuple[int, ...]]


class NodeMemory:
    """The channels of one machine's ranks.

    Args:
        mpi: The module `mpi4py.MPI`.
        world: The communicator of all ranks; making this is collective over it.
        num_workers, num_groups: The session's.
    """

    def __init__(self, mpi: Any, world: Any, num_workers: int, num_groups: int) -> None:
        self._mpi = mpi
        self._me = int(world.Get_rank())
        node = world.Split_type(mpi.COMM_TYPE_SHARED)
        here: list[int] = sorted(node.allgather(self._me))
        self._here = set(here)
        pairs = [(Tag.PAIR, pair) for pair in combinations(here, 2)]
        self._places: dict[_Key, tuple[int, int]] = {}
        at = 0
        for tag, members in (*wide_channels(num_workers, num_groups), *pairs):
            if self._here.issuperset(members):
                has_data = tag != Tag.PAIR and len(members) <= _MOST_RANKS
                room = _PAGE_BYTES if has_data else 0
                self._places[tag, members] = at, room
                at += channel_bytes(len(members), room)
        self._memory = _share(mpi, node, at) if at and len(here) > 1 else None
        node.Free()

    def make_exchange(self, tag: Tag, members: tuple[int, ...]) -> SharedMemoryExchange | None:
        """Makes this rank's end of a channel; None where its ranks share no memory."""
        place = self._places.get((tag, members))
        if place is None or self._memory is None:
            return None
        at, room = place
        size = channel_bytes(len(members), room)
        return SharedMemoryExchange(
            self._memory[at : at + size], members.index(self._me), len(members), room
        )

    def make_team_exchange(
        self, comm: Any, members: tuple[int, ...]
    ) -> SharedMemoryExchange | None:
        """Makes this rank's end of a channel that begins later, in memory of its own.

        Collective over the members; None on all of them where they share no memory.

        Args:
            comm: Theirs, in their order.
            members: Their ranks in the world.
        """
        if not self._here.issuperset(members):
            return None
        count = len(members)
        room = _PAGE_BYTES if count <= _MOST_RANKS else 0
        memory = _share(self._mpi, comm, channel_bytes(count, room))
        return (
            None if memory is None else SharedMemoryExchange(memory, comm.Get_rank(), count, room)
        )


def _share(mpi: Any, node: Any, nbytes: int) -> memoryview | None:
    """Makes memory on the first of these ranks of a machine; None if one cannot map it."""
    first = node.Get_rank() == 0
    fd, path = -1, ""
    if first and keeps_order():
        try:
            fd = os.memfd_create("disco-headers", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
            path = f"/proc/{os.getpid()}/fd/{fd}"
        except (AttributeError, OSError):
            path = ""  # this system has no such memory, or no more of it
    path = node.bcast(path)
    mapped: mmap.mmap | None = None
    if path:
        try:
            mine = fd if first else os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(mine, nbytes)
            finally:
                if not first:
                    os.close(mine)
        except (OSError, ValueError):
            mapped = None  # another container, or another user
    all_have_it = node.allreduce(int(mapped is not None), mpi.MIN)
    if fd >= 0:
        os.close(fd)
    return memoryview(mapped) if mapped is not None and all_have_it else None
