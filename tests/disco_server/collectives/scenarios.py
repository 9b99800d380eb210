"""What the ranks of the tests do; every function runs on all of them at once.

Data is made from the rank's number, so that each rank knows what the others have
and checks its own results. Functions return what is wrong, as text, or what a test
compares.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from disco_server.collectives.group import ProcessGroup
from disco_server.collectives.process_groups import ProcessGroups
from disco_server.collectives.types import AbortedError, CollectiveError, MismatchError, ReduceOp

Array = np.ndarray
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", BFLOAT16, "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = [np.dtype(each) for each in ["bool", *INTEGERS, *FLOATS, *COMPLEX]]
MOVED = [*DTYPES, np.dtype(ml_dtypes.float8_e4m3fn)]
Knows = Callable[[np.dtype, ReduceOp], bool]
# Riding along with the headers, one MPI call, and for halves and averages several pieces.
SIZES = (1, 7, 6001, 300_000)


@dataclass
class Place:
    """A rank in two sessions: one whose workers are not divided, and one with two groups."""

    rank: int
    flat: ProcessGroups
    grouped: ProcessGroups
    seq: int = 0

    def step(self) -> None:
        """Begins the next command."""
        self.seq += 1
        self.flat.position = self.seq
        self.grouped.position = self.seq

    def ways(self) -> Iterator[tuple[ProcessGroup, list[int]]]:
        """Every way to meet, and who takes part."""
        for group in (self.flat.group, self.grouped.world, self.grouped.group):
            yield group, list(group.members)


def make(rank: int, size: int, dtype: Any, salt: int = 0) -> Array:
    """A rank's data: small integers of both signs, so that sums are exact in any dtype."""
    numbers = (np.arange(size) * (rank + 2) + salt + rank) % 5
    if dtype.kind in "ifcV" or dtype == BFLOAT16:
        numbers = numbers - 2
    if dtype.kind == "b":
        numbers = numbers > 2
    return numbers.astype(dtype)


def reduce_by_hand(parts: list[Array], op: ReduceOp) -> Array:
    """What a reduction should give, in the plainest numpy."""
    dtype = parts[0].dtype
    if dtype.kind == "b":
        stacked = np.stack(parts)
        return stacked.any(0) if op in (ReduceOp.SUM, ReduceOp.MAX) else stacked.all(0)
    half = dtype in (np.float16, BFLOAT16)
    stacked = np.stack(parts).astype(np.float32) if half else np.stack(parts)
    kept = stacked.dtype
    if op is ReduceOp.PROD:
        return np.prod(stacked, axis=0, dtype=kept).astype(dtype)
    if op is ReduceOp.MIN:
        return stacked.min(0).astype(dtype)
    if op is ReduceOp.MAX:
        return stacked.max(0).astype(dtype)
    if op is ReduceOp.AVG and dtype.kind in "iu":
        totals = stacked.astype(np.int64).sum(0)
        return (np.sign(totals) * (np.abs(totals) // len(parts))).astype(dtype)
    total = stacked.sum(0, dtype=kept)
    if op is ReduceOp.SUM:
        return total.astype(dtype)
    return (total / len(parts)).astype(dtype)


def known(dtype: np.dtype, op: ReduceOp) -> bool:
    if dtype.kind == "b":
        return op is not ReduceOp.AVG
    return dtype.kind != "c" or op not in (ReduceOp.MIN, ReduceOp.MAX)


def differ(name: str, got: Array, want: Array) -> list[str]:
    if got.dtype == want.dtype and np.array_equal(got.ravel(), want.ravel()):
        return []
    return [f"{name}: got {got.ravel()[:6]}, not {want.ravel()[:6]}"]


def reductions(place: Place, sizes: list[int], knows: Knows = known) -> list[str]:
    """Allreduce and reduce_scatter of every dtype, operation and way."""
    wrong: list[str] = []
    for group, members in place.ways():
        for dtype in DTYPES:
            for op in ReduceOp:
                if not knows(dtype, op):
                    continue
                for size in sizes:
                    place.step()
                    name = f"{dtype} {op.name} {size} {members}"
                    parts = [make(member, size, dtype) for member in members]
                    want = reduce_by_hand(parts, op)
                    src = make(place.rank, size, dtype)
                    dst = np.empty_like(src)
                    group.allreduce(src, dst, op)
                    wrong += differ(f"allreduce {name}", dst, want)
                    group.allreduce(src, src, op)
                    wrong += differ(f"allreduce in place {name}", src, want)
                    wrong += reduce_scatter(place, group, members, size, dtype, op)
    return wrong


def reduce_scatter(place, group, members, size, dtype, op) -> list[str]:
    parts = [make(member, size * len(members), dtype, 1) for member in members]
    mine = members.index(place.rank)
    src = make(place.rank, size * len(members), dtype, 1)
    dst = np.empty(size, dtype)
    group.reduce_scatter(src, dst, op)
    want = reduce_by_hand([part.reshape(len(members), -1)[mine] for part in parts], op)
    wrong = differ(f"reduce_scatter {dtype} {op.name} {size}", dst, want)
    # Into this rank's own part of the source.
    own = src.reshape(len(members), -1)[mine]
    group.reduce_scatter(src, own, op)
    return wrong + differ(f"reduce_scatter in place {dtype} {op.name} {size}", own, want)


def moves(place: Place, dtypes: Sequence[np.dtype] = MOVED) -> list[str]:
    """Everything that only moves, of every dtype, in both directions and in place."""
    wrong: list[str] = []
    for group, members in place.ways():
        for dtype in dtypes:
            for size in (1, 6001):
                place.step()
                wrong += gathers(place, group, members, size, dtype)
                wrong += spreads(place, group, members, size, dtype)
    return wrong


def gathers(place, group, members, size, dtype) -> list[str]:
    count, mine = len(members), members.index(place.rank)
    want = np.concatenate([make(member, size, dtype) for member in members])
    src = make(place.rank, size, dtype)
    name = f"{dtype} {size} {members}"
    dst = np.zeros(count * size, dtype)
    group.allgather(src, dst)
    wrong = differ(f"allgather {name}", dst, want)
    dst = np.zeros(count * size, dtype)
    dst.reshape(count, -1)[mine] = src
    group.allgather(dst.reshape(count, -1)[mine], dst)
    wrong += differ(f"allgather in place {name}", dst, want)
    root = mine == 0
    # An array on a rank that is not the root is not looked at.
    dst = np.zeros(count * size if root else 3, dtype)
    group.gather(src, dst)
    wrong += differ(f"gather {name}", dst, want if root else np.zeros(3, dtype))
    group.gather(src if not root else dst[:size], dst if root else None)
    wrong += differ(f"gather in place {name}", dst, want if root else np.zeros(3, dtype))
    matrix = make(place.rank, count * size, dtype, 3)
    want = np.concatenate(
        [make(each, count * size, dtype, 3).reshape(count, -1)[mine] for each in members]
    )
    dst = np.empty_like(matrix)
    group.all_to_all(matrix, dst)
    wrong += differ(f"all_to_all {name}", dst, want)
    group.all_to_all(matrix, matrix)
    return wrong + differ(f"all_to_all in place {name}", matrix, want)


def spreads(place, group, members, size, dtype) -> list[str]:
    count, mine = len(members), members.index(place.rank)
    root = mine == 0
    name = f"{dtype} {size} {members}"
    want = make(members[0], size, dtype, 4)
    src = make(place.rank, size, dtype, 4)
    dst = np.zeros(size, dtype)
    group.broadcast(src if root else None, dst)
    wrong = differ(f"broadcast {name}", dst, want)
    group.broadcast(src, src)
    wrong += differ(f"broadcast in place {name}", src, want)
    whole = make(members[0], size * count, dtype, 5)
    want = whole.reshape(count, -1)[mine]
    dst = np.zeros(size, dtype)
    group.scatter(whole if root else None, dst)
    wrong += differ(f"scatter {name}", dst, want)
    dst = whole[:size] if root else np.zeros(size, dtype)
    group.scatter(whole if root else None, dst)
    return wrong + differ(f"scatter in place {name}", dst, want)


def shapes(place: Place) -> list[str]:
    """Arrays of other shapes, strides, no dimensions and no elements."""
    world, wrong = place.flat.world, []
    place.step()
    # (3, 3, 2) from four ranks is (3, 4, 6) to the one who gathers flat parts.
    src = make(place.rank, 18, np.dtype("float32")).reshape(3, 3, 2)
    dst = np.empty((3, 4, 6), np.float32)
    world.allgather(src, dst)
    want = np.concatenate([make(each, 18, src.dtype) for each in range(4)])
    wrong += differ("implicit reshape", dst, want)
    for width in (10, 12_000):
        wide = np.arange(width * 4, dtype=np.float64).reshape(4, width) + place.rank
        target = np.zeros((width, 4)).T
        assert not target.flags.c_contiguous
        world.allreduce(wide[:, ::2], target[:, ::2], ReduceOp.SUM)
        world.allreduce(wide[:, ::2], target[:, ::2], ReduceOp.SUM)
        total = 4 * np.arange(width * 4, dtype=np.float64).reshape(4, width) + 6
        wrong += differ("strided", target[:, ::2], total[:, ::2])
        wrong += differ("between the strides", target[:, 1::2], np.zeros((4, width // 2)))
        world.broadcast(wide.T if place.rank == 0 else None, target.T)
        wrong += differ("transposed", target, np.arange(width * 4.0).reshape(4, width))
    scalar = np.array(place.rank, np.int64)
    world.allreduce(scalar, scalar, ReduceOp.MAX)
    wrong += differ("no dimensions", scalar, np.array(3))
    empty = np.zeros((0, 5), np.float32)
    world.allreduce(empty, empty, ReduceOp.SUM)
    world.allgather(empty, empty)
    world.all_to_all(empty, empty)
    line = np.arange(20.0)
    world.allreduce(line[:16], line[4:], ReduceOp.SUM)
    wrong += differ("overlap", line, np.concatenate([np.arange(4.0), 4 * np.arange(16.0)]))
    return wrong


def halves_round_once(place: Place) -> list[str]:
    """Sums of halves are those of float32, rounded at the end."""
    wrong: list[str] = []
    for dtype in (np.dtype(np.float16), BFLOAT16):
        for size in (100, 50_000):
            place.step()
            parts = [np.full(size, 1 + each / 128, np.float32).astype(dtype) for each in range(4)]
            dst = np.empty(size, dtype)
            place.flat.world.allreduce(parts[place.rank], dst, ReduceOp.SUM)
            exact = np.stack(parts).astype(np.float32).sum(0).astype(dtype)
            wrong += differ(f"{dtype} {size}", dst, exact)
    big = np.full(10, 60000, np.float16)
    place.flat.world.allreduce(big, big, ReduceOp.SUM)
    return wrong + differ("beyond float16", big, np.full(10, np.inf, np.float16))


def integers_wrap(place: Place) -> list[str]:
    """Sums of integers wrap; their averages do not, and are cut toward zero."""
    wrong: list[str] = []
    for size in (5, 20_000, 300_000):
        place.step()
        dst = np.full(size, 100, np.int8)
        place.flat.world.allreduce(dst, dst, ReduceOp.SUM)
        wrong += differ("wrapped", dst, np.full(size, -112, np.int8))
        dst = np.full(size, -3 if place.rank else -2, np.int32)
        place.flat.world.allreduce(dst, dst, ReduceOp.AVG)
        wrong += differ("toward zero", dst, np.full(size, -2, np.int32))
        for dtype in map(np.dtype, ("int8", "uint8", "int16", "uint32", "int64", "uint64")):
            most = int(np.iinfo(dtype).max) - 5
            src = np.full(size * 4, most, dtype)
            dst = np.empty(size * 4, dtype)
            place.flat.world.allreduce(src, dst, ReduceOp.AVG)
            wrong += differ(f"average {dtype}", dst, src)
            place.flat.world.reduce_scatter(src, dst[:size], ReduceOp.AVG)
            wrong += differ(f"scattered average {dtype}", dst[:size], src[:size])
            counts = [size, 0, size * 2, size]
            part = np.empty(counts[place.rank], dtype)
            place.flat.world.reduce_scatter(src, part, ReduceOp.AVG, counts)
            wrong += differ(f"uneven average {dtype}", part, src[: part.size])
    return wrong


def refused(place: Place, case: str) -> list[Any]:
    """One rank brings something odd; afterwards the communicator must be sound."""
    world, dst = place.flat.world, np.full(3, 7, np.float32)
    src = np.ones(3, np.float32)
    long = np.ones(5000, np.float32)
    odd = {
        "count": lambda: world.allreduce(np.ones(4, np.float32), dst[:], ReduceOp.SUM),
        "dtype": lambda: world.allreduce(src.astype("i4"), dst.astype("i4"), ReduceOp.SUM),
        "reduction": lambda: world.allreduce(src, dst, ReduceOp.MAX),
        "operation": lambda: world.broadcast(None, dst),
        "destination": lambda: world.allreduce(src, dst[:2], ReduceOp.SUM),
        "read-only": lambda: world.allreduce(src, np.broadcast_to(dst, 3), ReduceOp.SUM),
        "nothing": lambda: world.allreduce(None, dst, ReduceOp.SUM),
        "large": lambda: world.allreduce(long, long, ReduceOp.SUM),
    }
    wrong_by_itself = {
        "strings": lambda: world.allgather(np.array(["a"]), np.array(["a"] * 4)),
        "parts": lambda: world.scatter(np.ones(13, np.float32), dst),
        "order": lambda: world.allreduce(src.astype("c16"), dst.astype("c16"), ReduceOp.MAX),
    }
    act = wrong_by_itself.get(case, lambda: world.allreduce(src, dst, ReduceOp.SUM))
    if place.rank == 2:
        act = odd.get(case, act)
    place.step()
    try:
        act()
    except MismatchError as error:
        untouched = dst.tolist() == [7, 7, 7]
        after = np.zeros(3, np.float32)
        world.allreduce(src, after, ReduceOp.SUM)
        return [list(error.ranks), str(error), untouched, after.tolist()]
    return ["no error"]


def fails(place: Place, failing: list[int], in_group: bool, idle: bool) -> Any:
    """Some ranks fail a command in which the others enter a collective."""
    groups = place.grouped
    place.step()
    data = np.ones(3, np.float32)
    outcome: Any = "failed"
    if place.rank in failing:
        groups.cannot_enter(place.seq)
    else:
        try:
            (groups.group if in_group else groups.world).allreduce(data, data, ReduceOp.SUM)
            outcome = data.tolist()
        except AbortedError as error:
            outcome = [list(error.ranks), error.op, error.seq == place.seq]
            groups.cannot_enter(place.seq)
    if idle:
        # All idle until nobody needs anybody's turn any more.
        deadline = time.monotonic() + 0.05
        while groups.poll() and time.monotonic() < deadline:
            pass
    place.step()
    sums = np.full(2, place.rank, np.float32)
    groups.world.allreduce(sums, sums, ReduceOp.SUM)
    part = np.full(2, place.rank, np.float32)
    groups.group.allreduce(part, part, ReduceOp.SUM)
    return [outcome, sums.tolist(), part.tolist(), groups.poll()]


def random_log(place: Place, seed: int, commands: int) -> list[str]:
    """A log drawn from a seed, in which ranks fail here and there; nobody must hang.

    Returns what ran, for the test to compare among ranks.
    """
    groups, chance = place.grouped, random.Random(seed)
    ran: list[str] = []
    for _ in range(commands):
        place.step()
        todo = [chance.choice(("world", "group", "pair")) for _ in range(chance.randrange(3))]
        pairs = [chance.sample(range(4), 2) for _ in todo]
        fates = {rank: chance.randrange(3) for rank in range(4) if chance.random() < 0.25}
        naps = [chance.random() < 0.2 for _ in range(4)]
        try:
            for index, (what, pair) in enumerate(zip(todo, pairs, strict=True)):
                give_up(fates.get(place.rank) == index)
                if not meet(place, groups, what, pair):
                    continue
                first = groups.group.members[0]
                who = first if what == "group" else pair if what == "pair" else 0
                ran.append(f"{place.seq}.{index} {what} {who}")
            give_up(place.rank in fates)
        except CollectiveError:
            groups.cannot_enter(place.seq)
        if naps[place.rank]:
            for _ in range(3):
                groups.poll()
    place.step()
    groups.world.barrier()
    return ran


def give_up(fails: bool) -> None:
    if fails:
        raise CollectiveError("fails by itself")


def meet(place: Place, groups: ProcessGroups, what: str, pair: list[int]) -> bool:
    if what == "pair":
        if place.rank not in pair:
            return False
        data = np.array([place.seq * 10 + place.rank])
        if place.rank == pair[0]:
            groups.world.send(data, pair[1])
        else:
            groups.world.recv(data, pair[0])
            assert data[0] == place.seq * 10 + pair[0]
        return True
    group = groups.group if what == "group" else groups.world
    data = np.full(3, place.seq * 10 + place.rank)
    got = np.empty((group.size, 3), data.dtype)
    group.allgather(data, got)
    assert got[:, 0].tolist() == [place.seq * 10 + each for each in group.members]
    return True


def transfers(place: Place) -> list[str]:
    """Groups pass arrays on, small and large; worker 2 sends to worker 0."""
    groups, wrong = place.grouped, []
    world = groups.world
    for size in (3, 100_000):
        for dtype in (np.dtype(np.float32), BFLOAT16):
            place.step()
            data = make(place.rank, size, dtype)
            if place.rank < groups.group.size:
                world.send(data, place.rank + groups.group.size)
            else:
                world.recv(data, place.rank - groups.group.size)
                wrong += differ("next group", data, make(place.rank - 2, size, dtype))
            if place.rank == 2:
                world.send(data[::2], 0)
            elif place.rank == 0:
                target = np.zeros(size, dtype)
                world.recv(target[::2], 2)
                wrong += differ("from worker 2", target[::2], make(0, size, dtype)[::2])
                wrong += differ("between", target[1::2], np.zeros(size // 2, dtype))
    return wrong


def wrong_transfers(place: Place) -> list[Any]:
    """Transfers whose ends do not fit, or whose other end cannot come."""
    groups = place.grouped
    world = groups.world
    said: list[Any] = []
    cases = {
        "count": lambda: (
            world.send(np.ones(3), 1) if place.rank == 0 else world.recv(np.ones(4), 0)
        ),
        "both": lambda: world.send(np.ones(3), 1) if place.rank == 0 else world.send(np.ones(3), 0),
        "self": lambda: world.send(np.ones(3), place.rank),
        "nobody": lambda: world.recv(np.ones(3), 9),
    }
    for act in cases.values():
        place.step()
        if place.rank > 1:
            continue
        try:
            act()
            said.append("no error")
        except MismatchError as error:
            said.append(str(error))
    place.step()
    if place.rank == 1:
        groups.cannot_enter(place.seq)
    elif place.rank == 0:
        try:
            world.recv(np.ones(3), 1)
            said.append("no error")
        except AbortedError as error:
            said.append(str(error))
    place.step()
    world.barrier()
    return said


def second_try(place: Place) -> list[Any]:
    """A function that catches the abort and goes on meets the refusal again, then peace."""
    groups = place.flat
    place.step()
    if place.rank == 3:
        groups.cannot_enter(place.seq)
        while groups.poll():
            pass
        outcome: list[Any] = []
    else:
        outcome = []
        for _ in range(3):
            try:
                groups.world.barrier()
                outcome.append("ran")
            except AbortedError as error:
                outcome.append(list(error.ranks))
        groups.cannot_enter(place.seq)
    place.step()
    groups.world.barrier()
    return outcome


def left_pending(place: Place) -> bool:
    """One rank fails and nobody comes: its tokens are still out when all leave."""
    place.step()
    if place.rank == 1:
        place.grouped.cannot_enter(place.seq)
        return place.grouped.poll()
    return place.grouped.poll()
