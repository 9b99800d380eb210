"""The collectives of some ranks: of all workers, of a group or of a team.

Each is validated, agreed on and then run, in this order; what can fail on one rank
alone comes before the agreement. Small data travels with the agreement's headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from disco_server.collectives import validation
from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.header_exchange import NO_DATA, HeaderExchange, Slot
from disco_server.collectives.numeric import combine, settle, spread
from disco_server.collectives.types import Array, MismatchError, ReduceOp
from disco_server.collectives.validation import CollectiveSignature, Family, Op
from disco_server.devices.base import on_device, overlap
from disco_server.devices.foreign import between, destination

if TYPE_CHECKING:
    from disco_server.collectives.preflight import Channel
    from disco_server.collectives.validation import Parts

__all__ = [
    "Backend",
    "Known",
    "LoneBackend",
    "ProcessGroup",
    "Transfer",
    "slot_of_one",
]


class Backend(Protocol):
    """Moves and combines arrays among the ranks of one group, once they agreed to begin.

    Arrays are C-contiguous, have the right sizes and at least one element. Ranks are
    those of the group, from 0; see `ProcessGroup` for what each operation does. Where
    `counts` or a table is None all parts are as long as one another. No backend averages
    integers: no library does it without that the sum wraps, so `ProcessGroup` does it by sums.
    """

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        family: Family,
        counts: Sequence[int] | None = None,
    ) -> None:
        """Combines and leaves each rank its part."""

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """Brings every source to every rank."""

    def broadcast(self, src: Array, dst: Array, root: int = 0) -> None:
        """Copies the root's source to all."""

    def scatter(
        self, src: Array | None, dst: Array, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Gives each rank its part of the root's source."""

    def gather(
        self, src: Array, dst: Array | None, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Collects every source at the root."""

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Sends `table[i][j]` elements from each rank i to each rank j.

        Without a table source and destination may be one array.
        """

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""


class Transfer(Protocol):
    """One end of a transfer between two workers of the session."""

    def __call__(self, buf: Array, worker: int, *, receives: bool, tag: str | None = None) -> None:
        """Sends to a worker or receives from one."""


# Every rank widens the halves of all ranks, which numpy does slowly.
_MOST_HALF_BYTES = 16 << 10
_MOST_WITH_HEADER = 64 << 10
"""How many bytes that one rank has for others travel with its header, where that has room."""


class Known(NamedTuple):
    """A sound allreduce of one dtype, size, operation and tag, seen before.

    Attributes:
        signature: What it brings.
        slots: Where its data is exchanged, piece by piece; none if it is too large.
        received: How many bytes of other members this rank receives by it.
    """

    signature: CollectiveSignature
    slots: tuple[tuple[slice, Slot], ...]
    received: int


_MOST_KNOWN = 256
_AVERAGED_AT_ONCE = 1 << 17
"""Integers that are averaged in one step: their sums, of 64 bits, stay in a cache."""
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_AVG, _INTEGER = ReduceOp.AVG, Family.INTEGER
_HOST = np.ndarray
_BARRIER = CollectiveSignature(int(Op.BARRIER), 0, 0)


_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Agreeing(Protocol):
    _agreement: Agreement


_Self = TypeVar("_Self", bound=_Agreeing)


def guarded(
    method: Callable[Concatenate[_Self, _P], _R],
) -> Callable[Concatenate[_Self, _P], _R]:
    """A method that no exception from outside breaks off: its peers would wait for it."""

    @wraps(method)
    def run(self: _Self, /, *args: _P.args, **named: _P.kwargs) -> _R:
        with self._agreement.guard:
            return method(self, *args, **named)

    return run


class ProcessGroup:
    """Some workers of a session in an order of their own, as one of them sees it.

    All workers are one, each of a session's groups is, and `Worker.make_teams` makes more.
    Every method except `send` and `recv` is collective among the members, which must
    call it in the same order. Before anything moves they compare what they brought, so a
    wrong call raises on all of them and none waits for ever::

        CollectiveError
        ├── MismatchError      members brought different things; none began
        ├── AbortedError       another member cannot enter; none began
        ├── UnavailableError   the library is missing or did not start
        └── CommunicatorLost   it failed in use; no operation works any more

    After the first two the group can be used as before; every collective may raise them.

    Arrays are numpy's of the dtypes in `validation`, cupy's where a library for GPUs was
    started, or another library's that speaks DLPack. Only element counts matter, never
    shapes: parts lie flat, one after the other, in the order of the members, and may be
    empty. Where `counts` or a table is None all parts are as long as one another, and a
    `root` of None is the first rank. A destination may be the source itself, or the part of
    the source or destination that belongs to this rank; other overlaps are copied first.
    Arrays that are not C-contiguous work through a contiguous copy. A `tag` is a name that
    the caller gives the call, a str, such as that of the tensor; members that come with
    another one, or with none, do not fit, whatever their arrays are.

    Args:
        members: The worker ids, in the order of their ranks here.
        worker_id: This rank's.
        agreement: How it agrees with others.
        backend: How data moves on the host.
        channel: Where the members agree; None if this rank is alone.
        exchange: What carries the headers of that channel.
        transfer: Sends to a worker or receives from one.

    Attributes:
        members: The worker ids, in the order of their ranks here.
        rank: This rank's place among them, from 0.
        size: How many they are.
        backend: How data moves on the host.
        device_backend: How data on GPUs moves, where a library for it was started.
        known: Allreduces seen before, by operation, then dtype, size and tag. Finding
            one saves most checks, which matter where a call takes microseconds.
        received_bytes: How many bytes of other members this rank has received so
            far. It counts what an operation needs, not how a library transfers it, with
            `own` this rank's part and n the elements of an array, times their size:

            - allgather: the size of the destination - own
            - all_to_all: what comes from other members
            - reduce_scatter: (size - 1) * own
            - allreduce: (size - 1) * own + n - own, where own is what
              `partition.cut(0, n, size, rank)` gives this rank
            - broadcast: n, but at the root 0
            - scatter: own, but at the root 0
            - gather: at the root the size of the destination - own, elsewhere 0
            - recv: n
    """

    def __init__(
        self,
        members: Sequence[int],
        worker_id: int,
        agreement: Agreement,
        backend: Backend,
        channel: Channel | None = None,
        exchange: HeaderExchange | None = None,
        *,
        transfer: Transfer | None = None,
    ) -> None:
        self.members = tuple(members)
        self.rank = self.members.index(worker_id)
        self.size = len(self.members)
        self.received_bytes = 0
        self.backend = backend
        self.device_backend: Backend | None = None
        self.channel = channel
        self.exchange = exchange
        self.known: list[dict[tuple[object, ...], Known]] = [{} for _ in ReduceOp]
        self._agreement = agreement
        self._agree = agreement.agree
        self._notes = agreement.notes
        self._transfer = transfer

    def backend_of(self, array: Array) -> Backend:
        """How the data of such an array moves, once the ranks agreed to begin."""
        if self.device_backend is not None and on_device(array):
            return self.device_backend
        return self.backend

    def find_slot(self, src: Array, widest: int) -> Slot | None:
        """The slot in which sources travel with the headers; None if they are too large.

        Args:
            src: This rank's.
            widest: How many elements the longest one of all ranks has.
        """
        exchange = self.exchange
        if exchange is None or src.dtype.itemsize * widest > exchange.data_bytes:
            return None
        return exchange.find_slot(src.dtype, widest)

    def find_slots(self, src: Array, family: Family) -> tuple[tuple[slice, Slot], ...]:
        """The slots in which data to be reduced travels, in one round or in several.

        It depends on nothing but what the headers compare, so all ranks find the same.
        """
        exchange = self.exchange
        if exchange is None or src.nbytes > exchange.most_bytes:
            return ()
        if family is Family.HALF and src.nbytes > _MOST_HALF_BYTES:
            return ()
        return self._cut(exchange, src)

    def find_rounds(self, src: Array) -> tuple[tuple[slice, Slot], ...]:
        """The slots in which data to be gathered travels, round by round; as `find_slots`."""
        exchange = self.exchange
        if exchange is None or src.nbytes > exchange.most_gathered:
            return ()
        return self._cut(exchange, src)

    @staticmethod
    def _cut(exchange: HeaderExchange, src: Array) -> tuple[tuple[slice, Slot], ...]:
        piece = exchange.data_bytes // src.itemsize
        bounds = [*range(0, src.size, piece), src.size]
        return tuple(
            (slice(start, stop), exchange.find_slot(src.dtype, stop - start))
            for start, stop in pairwise(bounds)
        )

    def put(self, slot: Slot | None, src: Array) -> bytes:
        """Puts data that travels with a header; returns the payload behind that header."""
        if slot is None or self.exchange is None:
            return NO_DATA
        flat = src.reshape(-1)
        if flat.size != slot.size:
            filled = np.zeros(slot.size, src.dtype)
            filled[: flat.size] = flat
            flat = filled
        self.exchange.put(slot, flat)
        return slot.payload

    def take_all(self, slot: Slot, dst: Array, counts: Sequence[int] | None) -> None:
        """After a round: copies the data of all ranks, one part after the other.

        Args:
            slot: Where it was put.
            dst: Where it goes.
            counts: How many elements each rank brought, if not all as many.
        """
        exchange = self.exchange
        if exchange is not None:
            parts = exchange.parts(slot)
            if counts is not None:
                parts = [part[:count] for part, count in zip(parts, counts, strict=True)]
            if dst.flags.c_contiguous:
                np.concatenate(parts, out=dst.reshape(-1))
            else:
                dst[...] = np.concatenate(parts).reshape(dst.shape)

    @guarded
    def allreduce(self, src: Array, dst: Array, op: ReduceOp, *, tag: str | None = None) -> None:
        """Combines equally long sources element by element, everywhere.

        Sums of integers wrap. AVG is the sum divided by the number of ranks; of integers it is
        exact, as if added up without limits, and cut toward zero.
        float16 and bfloat16 are combined in float32 and rounded once. Booleans have
        SUM and MAX as "or", PROD and MIN as "and".

        Args:
            src: n elements.
            dst: n elements of the same dtype; may be `src`.
            op: The operation.
            tag: The call's name, equal on all members.
        """
        on_host = type(src) is _HOST is type(dst)
        if not on_host:
            src, dst = between(src, dst)
            on_host = type(src) is _HOST is type(dst)
        known = None
        if on_host and tag is None:
            known = self.known[op].get((src.dtype, src.size))
        elif on_host and isinstance(tag, str):
            known = self.known[op].get((src.dtype, src.size, tag))
        # Arrays of a kind that was checked before need few checks.
        if (
            known is not None
            and dst.flags.carray
            and (
                src is dst
                or (dst.dtype is src.dtype and dst.size == src.size and src.flags.c_contiguous)
            )
        ):
            self._allreduce(known, src, dst, op)
        else:
            self._check_allreduce(src, dst, op, tag)

    def _check_allreduce(
        self, src: Array, dst: Array, op: ReduceOp, tag: str | None = None
    ) -> None:
        """Checks what is not known yet, and reduces."""
        agreement = self._agreement
        signature = agreement.admit(validation.check_equal(Op.ALLREDUCE, src, dst, op), tag)
        if signature.problem or not signature.elements:
            agreement.meet(self.channel, signature, src, dst)
            self._notes.leave()
            return
        source, target = agreement.stage(signature, src, dst)
        each, more = divmod(src.size, self.size)
        own = each + (self.rank < more)
        received = ((self.size - 2) * own + src.size) * src.dtype.itemsize
        slots = () if signature.on_device else self.find_slots(src, signature.family)
        known = Known(signature, slots, received)
        self._allreduce(known, source, target, op)
        unstage(target, dst)
        if signature.on_device:
            return
        if len(self.known[op]) >= _MOST_KNOWN:
            self.known[op].clear()
        key = (src.dtype, src.size)
        self.known[op][key if tag is None else (*key, tag)] = known

    def _allreduce(self, known: Known, src: Array, dst: Array, op: ReduceOp) -> None:
        """Reduces contiguous arrays that were checked."""
        signature, slots, received = known
        channel, exchange = self.channel, self.exchange
        if not slots or channel is None or exchange is None:
            self._agreement.meet(channel, signature, src, dst)
            if op is _AVG and signature.family is _INTEGER:
                self._average(src, dst)
            else:
                self.backend_of(src).allreduce(src, dst, op, signature.family)
        elif len(slots) == 1:
            slot, source = slots[0][1], src.reshape(-1)
            target = source if src is dst else dst.reshape(-1)
            if exchange.reduces:
                exchange.put_reduction(source, target, op, signature.family)
                self._agree(channel, signature, src, dst, slot.payload, first=True)
            else:
                exchange.put(slot, source)
                self._agree(channel, signature, src, dst, slot.payload, first=True)
                combine(exchange.parts(slot), target, op, signature.family)
        else:
            self._allreduce_pieces(known, src, dst, op)
        self._notes.leave()
        self.received_bytes += received

    def _average(self, src: Array, dst: Array) -> None:
        """Averages contiguous integers, piece by piece, so that little memory is needed."""
        backend, source, target = self.backend_of(src), src.reshape(-1), dst.reshape(-1)
        if src is not dst and _share(src, dst):
            source = source.copy()  # an early piece of one is a late piece of the other
        for start in range(0, source.size, _AVERAGED_AT_ONCE):
            piece = slice(start, start + _AVERAGED_AT_ONCE)
            terms = spread(source[piece], self.size)
            for term in terms:
                backend.allreduce(term, term, ReduceOp.SUM, _INTEGER)
            target[piece] = settle(terms, self.size)

    def _allreduce_pieces(self, known: Known, src: Array, dst: Array, op: ReduceOp) -> None:
        """Reduces contiguous arrays whose pieces travel in several rounds."""
        channel, exchange = cast("Channel", self.channel), cast("HeaderExchange", self.exchange)
        source, target = src.reshape(-1), dst.reshape(-1)
        if src is not dst and np.may_share_memory(src, dst):
            source = source.copy()  # an early piece of one is a late piece of the other
        for number, (piece, slot) in enumerate(known.slots):
            exchange.put(slot, source[piece])
            self._agree(channel, known.signature, src, dst, slot.payload, first=number == 0)
            combine(exchange.parts(slot), target[piece], op, known.signature.family)

    @guarded
    def allgather(
        self,
        src: Array,
        dst: Array,
        counts: Sequence[int] | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Brings every member's source to every member.

        Args:
            src: This rank's part.
            dst: The parts of all, of the same dtype; this rank's part of it may be `src`.
            counts: How many elements each member has; equal on all members.
            tag: The call's name, equal on all members.
        """
        if type(src) is not _HOST or type(dst) is not _HOST:
            src, dst = between(src, dst)
        agreement, parts = self._agreement, None
        slot, rounds = None, ()
        # As in allreduce, what is small should cost little besides the agreement round.
        if counts is None:
            signature = validation.check_parts(Op.ALLGATHER, src, dst, self.size, root=True)
        else:
            signature, parts = validation.check_counts(
                Op.ALLGATHER, src, dst, counts, self.size, self.rank
            )
        if tag is not None:
            signature = validation.add_tag(signature, tag)
        if signature.problem or not signature.elements or signature.on_device:
            signature = agreement.admit(signature)
        else:
            slot = self.find_slot(src, src.size if parts is None else parts.widest)
            if slot is None and parts is None:
                rounds = self.find_rounds(src)
        if slot is not None:
            agreement.meet(self.channel, signature, src, dst, self.put(slot, src))
            self.take_all(slot, dst, None if parts is None else parts.counts)
        else:
            source, target = agreement.stage(signature, src, dst)
            if rounds:
                self._allgather(signature, rounds, source, target)
            else:
                agreement.meet(self.channel, signature, src, dst)
                self._allgather_whole(signature, source, target, parts)
            unstage(target, dst)
        self._count(dst, dst.size - src.size)
        self._notes.leave()

    def _allgather(
        self,
        signature: CollectiveSignature,
        rounds: Sequence[tuple[slice, Slot]],
        src: Array,
        dst: Array,
    ) -> None:
        """Gathers contiguous arrays whose parts travel in several rounds."""
        channel, exchange = cast("Channel", self.channel), cast("HeaderExchange", self.exchange)
        parts = dst.reshape(self.size, -1)
        in_place = src.ctypes.data == parts[self.rank].ctypes.data
        if not in_place and np.may_share_memory(src, dst):
            src = src.copy()  # an early piece of one part is a late piece of the source
        source = src.reshape(-1)
        for number, (piece, slot) in enumerate(rounds):
            exchange.put(slot, source[piece])
            self._agree(channel, signature, src, dst, slot.payload, first=number == 0)
            for part, came in zip(parts, exchange.parts(slot), strict=True):
                part[piece] = came

    def _allgather_whole(
        self, signature: CollectiveSignature, src: Array, dst: Array, parts: Parts | None
    ) -> None:
        """Gathers contiguous arrays by a library, after the ranks have agreed."""
        if not signature.elements:
            return
        counts = None if parts is None else parts.counts
        self.backend_of(src).allgather(src, dst, counts)

    @guarded
    def broadcast(
        self,
        src: Array | None,
        dst: Array,
        root: int | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Copies one member's source to every member.

        Args:
            src: n elements at the root; elsewhere not looked at.
            dst: n elements of the same dtype; may be `src`.
            root: Whose source, by its rank here; equal on all members.
            tag: The call's name, equal on all members.
        """
        agreement = self._agreement
        at = root or 0
        source = src if self.rank == at else dst
        if type(source) is not _HOST or type(dst) is not _HOST:
            source, dst = between(source, dst)
        signature = validation.check_equal(Op.BROADCAST, source, dst)
        if root is not None:
            signature = validation.add_root(signature, root, self.size)
        signature = agreement.admit(signature, tag)
        staged, target = agreement.stage(signature, cast("Array", source), dst)
        slot = slot_of_one(self.exchange, signature, target)
        if slot is not None:
            self._broadcast(signature, slot, staged, dst, at)
        else:
            agreement.meet(self.channel, signature, source, dst)
            if signature.elements:
                self.backend_of(staged).broadcast(staged, target, at)
                unstage(target, dst)
        self._count(dst, dst.size if self.rank != at else 0)
        self._notes.leave()

    def _broadcast(
        self, signature: CollectiveSignature, slot: Slot, src: Array, dst: Array, root: int
    ) -> None:
        """Copies a small source, which travels with the root's header."""
        exchange, payload = cast("HeaderExchange", self.exchange), NO_DATA
        if self.rank == root:
            exchange.put(slot, src.reshape(-1))
            payload = slot.payload
        self._agreement.meet(self.channel, signature, src, dst, payload)
        if self.rank != root:
            dst[...] = exchange.part(slot, root).reshape(dst.shape)
        elif src is not dst:
            dst[...] = src.reshape(dst.shape)

    @guarded
    def scatter(
        self,
        src: Array | None,
        dst: Array,
        counts: Sequence[int] | None = None,
        root: int | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Gives each member its part of one member's source.

        Args:
            src: The parts of all at the root; elsewhere not looked at.
            dst: This rank's part, of the same dtype.
            counts: How many elements each member gets; equal on all members.
            root: Whose source, by its rank here; equal on all members.
            tag: The call's name, equal on all members.
        """
        agreement = self._agreement
        at = root or 0
        has_all = self.rank == at
        if type(dst) is not _HOST or (has_all and type(src) is not _HOST):
            src, dst = between(src if has_all else None, dst)
        signature, parts = self._check(Op.SCATTER, src, dst, counts, root=at, tag=tag)
        whole = cast("Array", src) if has_all else dst
        source, target = agreement.stage(signature, whole, dst)
        agreement.meet(self.channel, signature, src if has_all else None, dst)
        if signature.elements:
            lengths = None if parts is None else parts.counts
            self.backend_of(target).scatter(source, target, lengths, at)
            unstage(target, dst)
        self._count(dst, 0 if has_all else dst.size)
        self._notes.leave()

    @guarded
    def gather(
        self,
        src: Array,
        dst: Array | None,
        counts: Sequence[int] | None = None,
        root: int | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Collects every member's source at one member.

        Args:
            src: This rank's part.
            dst: The parts of all, of the same dtype, at the root; elsewhere not looked at.
            counts: How many elements each member has; equal on all members.
            root: Where to, by its rank here; equal on all members.
            tag: The call's name, equal on all members.
        """
        agreement = self._agreement
        at = root or 0
        has_all = self.rank == at
        if type(src) is not _HOST or (has_all and type(dst) is not _HOST):
            src, dst = between(src, dst if has_all else None)
        signature, parts = self._check(Op.GATHER, src, dst, counts, root=at, tag=tag)
        whole = cast("Array", dst) if has_all else src
        source, target = agreement.stage(signature, src, whole)
        agreement.meet(self.channel, signature, src, dst if has_all else None)
        if signature.elements:
            lengths = None if parts is None else parts.counts
            self.backend_of(source).gather(source, target, lengths, at)
            if has_all:
                unstage(target, whole)
        if has_all:
            self._count(whole, whole.size - src.size)
        self._notes.leave()

    @guarded
    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        counts: Sequence[int] | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Combines sources as `allreduce` does and leaves each member its part.

        Args:
            src: The parts of all.
            dst: This rank's part, of the same dtype; may be that part of `src`.
            op: The operation.
            counts: How many elements each member gets; equal on all members.
            tag: The call's name, equal on all members.
        """
        if type(src) is not _HOST or type(dst) is not _HOST:
            src, dst = between(src, dst)
        agreement = self._agreement
        signature, parts = self._check(Op.REDUCE_SCATTER, src, dst, counts, op, tag=tag)
        source, target = agreement.stage(signature, src, dst)
        terms: list[tuple[Array, Array]] = []
        if op is _AVG and signature.family is _INTEGER and not signature.problem:
            # Before the agreement, because there may be no memory for it.
            spreads = spread(source.reshape(-1), self.size)
            terms = [(each, each[: dst.size].copy()) for each in spreads]
        agreement.meet(self.channel, signature, src, dst)
        if signature.elements:
            lengths = None if parts is None else parts.counts
            backend = self.backend_of(source)
            for term, own in terms:
                backend.reduce_scatter(term, own, ReduceOp.SUM, _INTEGER, lengths)
            if terms:
                target.reshape(-1)[...] = settle([own for _, own in terms], self.size)
            else:
                backend.reduce_scatter(source, target, op, signature.family, lengths)
            unstage(target, dst)
        self._count(dst, (self.size - 1) * dst.size)
        self._notes.leave()

    @guarded
    def all_to_all(
        self,
        src: Array,
        dst: Array,
        table: Sequence[Sequence[int]] | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        """Sends a part of every member's source to every member.

        Args:
            src: The parts for all members.
            dst: The parts from all members, of the same dtype; may be `src` if it
                is as long.
            table: `table[i][j]` elements go from member i to member j; equal on all
                members.
            tag: The call's name, equal on all members.
        """
        if type(src) is not _HOST or type(dst) is not _HOST:
            src, dst = between(src, dst)
        agreement = self._agreement
        parts = None
        if table is None:
            signature = validation.check_equal(Op.ALL_TO_ALL, src, dst, parts=self.size)
        else:
            signature, parts = validation.check_table(src, dst, table, self.size, self.rank)
        signature = agreement.admit(signature, tag)
        source, target = agreement.stage(signature, src, dst)
        agreement.meet(self.channel, signature, src, dst)
        if signature.elements:
            self.backend_of(source).all_to_all(source, target, parts)
            unstage(target, dst)
        own = dst.size // self.size if table is None else int(table[self.rank][self.rank])
        self._count(dst, dst.size - own)
        self._notes.leave()

    @guarded
    def barrier(self, *, tag: str | None = None) -> None:
        """Waits until every member has entered; the agreement round itself is the barrier.

        Args:
            tag: The call's name, equal on all members.
        """
        signature = _BARRIER if tag is None else validation.add_tag(_BARRIER, tag)
        self._agreement.meet(self.channel, signature, None, None)
        self._notes.leave()

    def _check(
        self,
        op: Op,
        src: object,
        dst: object,
        counts: Sequence[int] | None,
        reduce: ReduceOp | None = None,
        *,
        root: int | None = None,
        tag: str | None = None,
    ) -> tuple[CollectiveSignature, Parts | None]:
        """Checks a collective of one array of all parts and one array a part.

        Returns:
            What this rank brings, and how long the parts are if that matters.
        """
        if counts is None:
            whole = root is None or self.rank == root
            signature = validation.check_parts(op, src, dst, self.size, reduce, root=whole)
            return self._agreement.admit(signature, tag), None
        signature, parts = validation.check_counts(
            op, src, dst, counts, self.size, self.rank, reduce, root=root
        )
        return self._agreement.admit(signature, tag), parts

    @guarded
    def send(self, buf: Array, rank: int, *, tag: str | None = None) -> None:
        """Gives an array to another member, which must be in the matching `recv`.

        It returns only when the receiver has entered, so workers that all send
        around a ring before any of them receives wait for ever.

        Args:
            buf: The array.
            rank: The receiver, by its rank here.
            tag: The transfer's name, equal on both.

        Raises:
            MismatchError: The receiver expects another dtype or count, or `rank` is not
                another member.
            AbortedError: The receiver cannot enter.
        """
        self._move(buf, rank, receives=False, tag=tag)

    @guarded
    def recv(self, buf: Array, rank: int, *, tag: str | None = None) -> None:
        """Fills an array from another member, which must be in the matching `send`.

        Args:
            buf: The array.
            rank: The sender, by its rank here.
            tag: The transfer's name, equal on both.

        Raises:
            MismatchError: The sender brought another dtype or count, or `rank` is not
                another member.
            AbortedError: The sender cannot enter.
        """
        buf = destination(buf)
        self._move(buf, rank, receives=True, tag=tag)
        self._count(buf, buf.size)

    def _move(self, buf: Array, rank: int, *, receives: bool, tag: str | None) -> None:
        if self._transfer is None or not 0 <= rank < self.size:
            me = self.members[self.rank]
            raise MismatchError((me,), f"{rank} is not the rank of one of {self.size} members")
        self._transfer(buf, self.members[rank], receives=receives, tag=tag)

    def _count(self, array: Array, elements: int) -> None:
        self.received_bytes += elements * array.dtype.itemsize

    def __repr__(self) -> str:
        workers = ", ".join(map(str, self.members))
        return f"<ProcessGroup of workers {workers}, rank {self.rank}>"


def slot_of_one(
    exchange: HeaderExchange | None, signature: CollectiveSignature, array: Array
) -> Slot | None:
    """Finds the slot in which data that one rank has for others travels with its header.

    Args:
        exchange: What carries the headers; None for nothing.
        signature: What this rank brings.
        array: The data, or where it goes.

    Returns:
        None if there is nothing to move, or not by headers. It depends on nothing but what the
        headers compare, so all ranks that begin find the same.
    """
    if exchange is None or not signature.elements or signature.problem or signature.on_device:
        return None
    return None if array.nbytes > _MOST_WITH_HEADER else exchange.find_slot_of(array)


def _share(one: Array, other: Array) -> bool:
    """Whether two contiguous arrays share memory."""
    return overlap(one, other) if on_device(one) else np.may_share_memory(one, other)


# The data operations of a rank that is alone: each of them is one copy.
#
# They work on arrays of either kind, so a team of one worker holds nothing of any library.


class LoneBackend:
    """See `Backend`; roots, counts and reductions make no difference here."""

    def copy(self, src: Array | None, dst: Array | None, *rest: Any, **more: Any) -> None:
        """Copies the source to the destination, which may be the source."""
        del rest, more
        if src is None or dst is None or src is dst:
            return
        # numpy detects overlapping arrays by itself, the libraries of GPUs do not.
        if on_device(src) and overlap(src, dst):
            src = src.copy()
        dst.reshape(-1)[...] = src.reshape(-1)

    allreduce = reduce_scatter = allgather = broadcast = scatter = gather = all_to_all = copy

    def send(self, buf: Array, rank: int) -> None:
        """Never called, but a part of `Backend`: a lone rank has no peer."""
        del buf
        msg = f"a worker that is alone cannot send to or receive from rank {rank}"
        raise RuntimeError(msg)

    recv = send
