"""What the ranks of the tests of teams do; see `scenarios.py`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from itertools import accumulate, product
from typing import Any

import numpy as np
from scenarios import (
    BFLOAT16,
    DTYPES,
    Array,
    Knows,
    Place,
    differ,
    give_up,
    known,
    make,
    reduce_by_hand,
)

from disco_client.errors import ConfigError
from disco_client.wire.partition import cut
from disco_server.collectives.group import ProcessGroup
from disco_server.collectives.types import AbortedError, CollectiveError, MismatchError, ReduceOp

Lines = list[list[int]]
# One of each way in which elements are moved and combined.
SOME = [np.dtype(each) for each in ("bool", "int16", "float32", "float16", "complex64")]
SOME.append(BFLOAT16)


def layouts(size: int) -> list[list[int]]:
    """How many elements each of so many members has: equal, uneven, mostly nothing."""
    return [
        [3] * size,
        [(5 * each + 2) % 7 for each in range(size)],
        [0] * (size - 1) + [4],
        [3000 + each for each in range(size)],
        [0] * size,
    ]


def split(whole: Array, counts: list[int]) -> list[Array]:
    stops = accumulate(counts)
    return [whole[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]


def entered(place: Place, lines: Lines) -> ProcessGroup | None:
    place.step()
    return place.flat.teams.make(lines)


def team_reductions(place: Place, lines: Lines, knows: Knows = known) -> list[str]:
    """Every dtype and operation, apart and in place, in equal and uneven parts."""
    team, wrong = entered(place, lines), []
    if team is None:
        return []
    for dtype, op in product(DTYPES, ReduceOp):
        if not knows(dtype, op):
            continue
        for counts in layouts(team.size):
            name, total = f"{dtype} {op.name} {counts} {team.members}", sum(counts)
            want = reduce_by_hand([make(each, total, dtype) for each in team.members], op)
            src = make(place.rank, total, dtype)
            dst = np.zeros(total, dtype)
            team.allreduce(src, dst, op)
            wrong += differ(f"allreduce {name}", dst, want)
            mine = split(want, counts)[team.rank]
            dst = np.zeros(mine.size, dtype)
            team.reduce_scatter(src, dst, op, counts)
            wrong += differ(f"reduce_scatter {name}", dst, mine)
            own = split(src, counts)[team.rank]
            team.reduce_scatter(src, own, op, counts)
            wrong += differ(f"reduce_scatter in place {name}", own, mine)
    return wrong


def team_moves(place: Place, lines: Lines) -> list[str]:
    """Everything that only moves, from and to every root, in place and apart."""
    team, wrong = entered(place, lines), []
    if team is None:
        return []
    for dtype in SOME:
        for counts in layouts(team.size):
            wrong += gathers(team, counts, dtype)
            wrong += spreads(team, counts, dtype)
            wrong += exchanges(team, counts, dtype)
    return wrong


def gathers(team: ProcessGroup, counts: list[int], dtype: np.dtype) -> list[str]:
    name, total = f"{dtype} {counts} {team.members}", sum(counts)
    pairs = list(zip(team.members, counts, strict=True))
    want = np.concatenate([make(member, count, dtype) for member, count in pairs])
    src = make(team.members[team.rank], counts[team.rank], dtype)
    dst = np.zeros(total, dtype)
    team.allgather(src, dst, counts)
    wrong = differ(f"allgather {name}", dst, want)
    dst = np.zeros(total, dtype)
    own = split(dst, counts)[team.rank]
    own[:] = src
    team.allgather(own, dst, counts)
    wrong += differ(f"allgather in place {name}", dst, want)
    for root in range(team.size):
        is_root = team.rank == root
        dst = np.zeros(total if is_root else 2, dtype)
        team.gather(src, dst if is_root or root else None, counts, root)
        wrong += differ(f"gather {root} {name}", dst, want if is_root else np.zeros(2, dtype))
        if is_root:
            own = split(dst, counts)[root]
            dst[:], own[:] = 0, src.copy()
        team.gather(own if is_root else src, dst, counts, root)
        wrong += differ(f"gather in place {name}", dst, want if is_root else np.zeros(2, dtype))
    return wrong


def spreads(team: ProcessGroup, counts: list[int], dtype: np.dtype) -> list[str]:
    wrong: list[str] = []
    for root in range(team.size):
        name, is_root = f"{root} {dtype} {counts} {team.members}", team.rank == root
        whole = make(team.members[root], sum(counts), dtype, 2)
        mine = split(whole, counts)[team.rank]
        src = whole.copy() if is_root else None
        dst = np.zeros(mine.size, dtype)
        team.scatter(src, dst, counts, root)
        wrong += differ(f"scatter {name}", dst, mine)
        if src is not None:
            dst = split(src, counts)[root]
        team.scatter(src, dst, counts, root)
        wrong += differ(f"scatter in place {name}", dst, mine)
        dst = np.zeros(whole.size, dtype)
        team.broadcast(whole if is_root else None, dst, root)
        wrong += differ(f"broadcast {name}", dst, whole)
        both = whole.copy() if is_root else np.zeros(whole.size, dtype)
        team.broadcast(both, both, root)
        wrong += differ(f"broadcast in place {name}", both, whole)
    return wrong


def table_of(counts: list[int]) -> list[list[int]]:
    """Who sends how many elements to whom: rows that differ, some of them empty."""
    size = len(counts)
    return [[counts[(i + 2 * j) % size] for j in range(size)] for i in range(size)]


def exchanges(team: ProcessGroup, counts: list[int], dtype: np.dtype) -> list[str]:
    table = table_of(counts)
    sources = [
        make(member, sum(row), dtype, 3) for member, row in zip(team.members, table, strict=True)
    ]
    parts = [split(each, row)[team.rank] for each, row in zip(sources, table, strict=True)]
    want = np.concatenate(parts)
    src, dst = sources[team.rank].copy(), np.zeros(want.size, dtype)
    team.all_to_all(src, dst, table)
    wrong = differ(f"all_to_all {dtype} {table}", dst, want)
    room = np.zeros(max(src.size, dst.size), dtype)
    room[: src.size] = src
    team.all_to_all(room[: src.size], room[: dst.size], table)
    return wrong + differ(f"all_to_all in place {dtype} {table}", room[: dst.size], want)


def team_shapes(place: Place, lines: Lines) -> list[str]:
    """Strided, transposed and overlapping arrays; shapes do not matter."""
    team, wrong = entered(place, lines), []
    if team is None:
        return []
    for width in (4, 9000):
        counts = [width + each for each in range(team.size)]
        mine, total = counts[team.rank], sum(counts)
        pairs = zip(team.members, counts, strict=True)
        want = np.concatenate([make(member, count, np.dtype("f8")) for member, count in pairs])
        room = np.zeros(2 * mine)
        room[::2] = make(place.rank, mine, np.dtype("f8"))
        target = np.zeros((2, total)).T
        team.allgather(room[::2], target[:, 1], counts)
        wrong += differ("allgather strided", target[:, 1], want)
        wrong += differ("between the strides", target[:, 0], np.zeros(total))
        # Shifted by one element: neither in place nor apart.
        room = np.zeros(total + 1)
        room[:mine] = make(place.rank, mine, np.dtype("f8"))
        team.allgather(room[:mine], room[1:], counts)
        wrong += differ("allgather overlapping", room[1:], want)
        room[:total] = place.rank
        team.reduce_scatter(room[:total], room[total + 1 - mine :], ReduceOp.MAX, counts)
        wrong += differ(
            "overlap", room[total + 1 - mine :], np.full(mine, float(max(team.members)))
        )
        whole = want if team.rank == team.size - 1 else None
        part = np.zeros(3 * mine)[::3]
        team.scatter(whole, part, counts, team.size - 1)
        wrong += differ("scatter strided", part, split(want, counts)[team.rank])
        both = np.zeros((2, total))[:, ::-1]
        team.gather(part, both[0], counts, team.size - 1)
        if whole is not None:
            wrong += differ("gather reversed", both[0], want)
    return wrong


def team_bytes(place: Place, lines: Lines) -> list[Any]:
    """What each operation adds to the counters of the team and of the rank, and should add."""
    team = entered(place, lines)
    if team is None:
        return [place.flat.teams.received_bytes]
    size, rank, root = team.size, team.rank, team.size - 1
    counts = [2 + 3 * each for each in range(size)]
    own, total = counts[rank], sum(counts)
    table = table_of(counts)
    sent, received = sum(table[rank]), sum(row[rank] for row in table)
    start, stop = cut(0, total, size, rank)
    share = stop - start
    whole, part = np.zeros(total, np.float32), np.zeros(own, np.float32)
    out, back = np.zeros(sent, "i2"), np.zeros(received, "i2")
    away, home = rank != root, rank == root
    acts: dict[str, tuple[Callable[[], None], int]] = {
        "allgather": (lambda: team.allgather(part, whole, counts), (total - own) * 4),
        "all_to_all": (
            lambda: team.all_to_all(out, back, table),
            (received - table[rank][rank]) * 2,
        ),
        "reduce_scatter": (
            lambda: team.reduce_scatter(whole, part, ReduceOp.SUM, counts),
            (size - 1) * own * 4,
        ),
        "allreduce": (
            lambda: team.allreduce(whole, whole, ReduceOp.SUM),
            ((size - 1) * share + total - share) * 4,
        ),
        "broadcast": (lambda: team.broadcast(whole, whole, root), away * total * 4),
        "scatter": (lambda: team.scatter(whole, part, counts, root), away * own * 4),
        "gather": (lambda: team.gather(part, whole, counts, root), home * (total - own) * 4),
        "barrier": (team.barrier, 0),
        "refused": (lambda: team.allgather(part[:1], whole, counts), 0),
    }
    if size > 1 and rank == 0:
        acts["send"] = lambda: team.send(part[:2], 1), 0
    elif rank == 1:
        acts["recv"] = lambda: team.recv(part[:2], 0), 8
    seen: list[Any] = []
    for name, (act, want) in acts.items():
        before, of_all = team.received_bytes, place.flat.teams.received_bytes
        with contextlib.suppress(MismatchError):
            act()
        seen.append(
            [name, team.received_bytes - before, place.flat.teams.received_bytes - of_all, want]
        )
    return seen


def made_again(place: Place) -> list[Any]:
    """The same lines give the same team, alone and among others; another order another one."""
    axis, both = [[0, 2], [1, 3]], [[2, 0], [3, 1]]
    first, again = entered(place, axis), entered(place, axis)
    some, turned = entered(place, [[1, 3]]), entered(place, both)
    assert first is not None
    assert turned is not None
    out = np.zeros(2)
    turned.allgather(np.array([float(place.rank)]), out, [1, 1])
    return [
        first is again,
        first is some,
        some is None,
        turned is not first,
        list(turned.members),
        turned.rank,
        out.tolist(),
    ]


def odd_lines(place: Place) -> list[Any]:
    """Wrong lines are refused by each rank alone; then different ones by all."""
    groups, said = place.flat, []
    for lines in ([[0, 1], [1, 2]], [[0, 4]], [[0], []], [[0, -1]], [["a"]], 3):
        place.step()
        try:
            groups.teams.make(lines)
        except ConfigError as error:
            said.append(str(error))
    place.step()
    try:
        groups.teams.make([[0, 3]] if place.rank == 2 else [[0, 3], [1, 2]])
    except MismatchError as error:
        said += [list(error.ranks), str(error)]
    team = entered(place, [[0, 3], [1, 2]])
    assert team is not None
    total = np.array([place.rank])
    team.allreduce(total, total, ReduceOp.SUM)
    return [*said, total.tolist()]


def failing_maker(place: Place, failing: int) -> list[Any]:
    """One rank fails before the teams are made: nobody has any, until they are made again."""
    groups, outcome = place.flat, []
    place.step()
    lines = [[failing, (failing + 3) % 4, (failing + 1) % 4], [(failing + 2) % 4]]
    if place.rank == failing:
        groups.cannot_enter(place.seq)
    else:
        try:
            groups.teams.make(lines)
        except AbortedError as error:
            outcome = [list(error.ranks), error.op]
            groups.cannot_enter(place.seq)
    before = len(groups._agreement.preflight.channels)
    team = entered(place, lines)
    channels = len(groups._agreement.preflight.channels) - before
    total = np.array([place.rank])
    if team is not None:
        team.allreduce(total, total, ReduceOp.SUM)
    return [outcome, channels, total.tolist()]


def broken_maker(place: Place, broken: int) -> list[Any]:
    """One rank cannot build its end: all learn why, none has a channel; later it works."""
    groups, lines = place.flat, [[1, 3, broken], [2 - broken]]
    real = groups.teams._open_line

    def open_line(*arguments: Any) -> Any:
        built = real(*arguments)
        if place.rank == broken:
            raise MemoryError("no room")
        return built

    groups.teams._open_line = open_line
    before = len(groups._agreement.preflight.channels)
    place.step()
    try:
        groups.teams.make(lines)
        said: list[Any] = ["no error"]
    except MismatchError as error:
        said = [list(error.ranks), str(error)]
    finally:
        groups.teams._open_line = real
    said.append(len(groups._agreement.preflight.channels) - before)
    team = entered(place, lines)
    assert team is not None
    total = np.array([place.rank])
    team.allreduce(total, total, ReduceOp.SUM)
    return [*said, total.tolist()]


def failing_member(place: Place, size: int) -> list[Any]:
    """A member fails before a collective of its team: the others' end, other teams' do not."""
    team, outcome = entered(place, [[2, 0], [1, 3]]), []
    assert team is not None
    place.step()
    counts = [size, 0]
    src = np.full(counts[team.rank], 7.0)
    dst = np.zeros(size)
    if place.rank == 2:
        place.flat.cannot_enter(place.seq)
    else:
        try:
            team.allgather(src, dst, counts)
            outcome = [float(dst.sum())]
        except AbortedError as error:
            outcome = [list(error.ranks), error.op]
            place.flat.cannot_enter(place.seq)
    place.step()
    team.allgather(src, dst, counts)
    everyone = np.zeros(4)
    place.flat.world.allgather(np.array([float(place.rank)]), everyone)
    return [outcome, float(dst.sum()), everyone.tolist()]


def odd_member(place: Place, case: str) -> list[Any]:
    """One member brings other numbers: refused on all members, and nobody else."""
    team = entered(place, [[0, 2, 3]])
    place.step()
    if team is None:
        return []
    size = team.size
    odd = place.rank == 2
    counts = [1, 2, 2] if odd else [1, 2, 1]
    table = [[1, 0, 2], [0, 0, 0], [1, 1, 1 + odd]]
    part, whole, dst = np.ones(counts[team.rank]), np.zeros(sum(counts)), np.full(9, 5.0)
    acts = {
        "counts": lambda: team.allgather(part, whole, counts),
        "table": lambda: team.all_to_all(
            np.ones(sum(table[team.rank])), dst[: sum(row[team.rank] for row in table)], table
        ),
        "root": lambda: team.broadcast(dst, dst, 1 if odd else 2),
        "no root": lambda: team.broadcast(dst, dst, 3 if odd else 2),
        "too few": lambda: team.gather(part, whole, counts[: 2 + (not odd)]),
        "negative": lambda: team.scatter(whole, part, [3, -1, 2] if odd else counts),
        "no numbers": lambda: team.reduce_scatter(
            whole, part, ReduceOp.MAX, ["a"] * 3 if odd else counts
        ),
        "no rows": lambda: team.all_to_all(whole, whole, counts if odd else table),
        "square": lambda: team.all_to_all(whole, whole, [[1]] if odd else table),
        "source": lambda: team.gather(np.ones(9) if odd else part, whole, [1, 2, 1]),
        "destination": lambda: team.scatter(
            whole[:4], dst[: 5 if odd else counts[team.rank]], [1, 2, 1]
        ),
        "nothing": lambda: team.allgather(None if odd else part, whole, [1, 2, 1]),
        "nowhere": lambda: team.allgather(part, None if odd else whole, [1, 2, 1]),
        "dtype": lambda: team.allreduce(
            np.ones(3, "i4" if odd else "f4"), np.ones(3, "i4" if odd else "f4"), ReduceOp.SUM
        ),
        "read-only": lambda: team.allreduce(
            part[:1], np.broadcast_to(part[:1], 1) if odd else part[:1], ReduceOp.SUM
        ),
    }
    try:
        acts[case]()
        said: list[Any] = ["no error"]
    except MismatchError as error:
        said = [list(error.ranks), str(error)]
    out = np.zeros(size)
    team.allgather(np.array([float(place.rank)]), out, [1] * size)
    return [*said, dst.tolist() == [5.0] * 9, out.tolist()]


def wrong_peers(place: Place) -> list[str]:
    """Sending to who is no other member is refused at once."""
    team, said = entered(place, [[0, 2], [1]]), []
    if team is None:
        return said
    for rank in (-1, 7, team.rank):
        try:
            team.send(np.ones(2), rank)
        except MismatchError as error:
            said.append(str(error))
    return said


def team_transfers(place: Place) -> list[Any]:
    """Members send around by their ranks in the team."""
    team = entered(place, [[3, 1, 0]])
    if team is None:
        return []
    got = np.zeros(2)
    for sender in range(3):
        if team.rank == sender:
            team.send(np.full(2, float(place.rank)), (sender + 1) % 3)
        elif team.rank == (sender + 1) % 3:
            team.recv(got, sender)
    return got.tolist()


def in_turns(place: Place) -> list[str]:
    """Both axes of a mesh, the world and a group, one after the other and in one command."""
    wrong: list[str] = []
    rows, columns = entered(place, [[0, 1], [2, 3]]), entered(place, [[0, 2], [1, 3]])
    assert rows is not None
    assert columns is not None
    for size in (5, 50_000):
        for turn in range(20):
            if turn % 3:
                place.step()
            mine = np.full(size, float(place.rank + turn))
            for team in (columns, rows):
                total = np.zeros(size)
                team.allreduce(mine, total, ReduceOp.SUM)
                want = float(sum(team.members) + 2 * turn)
                wrong += differ(f"{team} {turn}", total, np.full(size, want))
            place.flat.world.allreduce(mine, total, ReduceOp.SUM)
            wrong += differ(f"all {turn}", total, np.full(size, 6.0 + 4 * turn))
    return wrong


def team_log(place: Place, seed: int, commands: int) -> list[str]:
    """A log drawn from a seed in which teams are made and used, and ranks fail."""
    groups, chance = place.flat, random.Random(seed)
    wanted = [[[0, 1], [2, 3]], [[2, 0], [1, 3]], [[3, 1, 0]], [[seed % 4], [0, 1, 2, 3]]]
    wanted[3] = [wanted[3][1]]
    wanted.append([[(seed + 1) % 4, (seed + 3) % 4]])
    teams: dict[int, ProcessGroup | None] = {}
    ran: list[str] = []
    for _ in range(commands):
        place.step()
        which, makes = chance.randrange(5), chance.random() < 0.3
        fates = {rank for rank in range(4) if chance.random() < 0.15}
        late = chance.random() < 0.5
        try:
            give_up(place.rank in fates and not late)
            if makes:
                teams[which] = groups.teams.make(wanted[which])
                ran.append(f"{place.seq} made {which}")
            elif which not in teams:
                give_up(True)
            else:
                team = teams[which]
                if team is not None:
                    out = np.zeros(team.size)
                    mine = np.array([float(place.rank)])
                    team.allgather(mine, out, [1] * team.size)
                    assert out.tolist() == list(team.members)
                    ran.append(f"{place.seq} team {team.members}")
            give_up(place.rank in fates)
        except CollectiveError:
            groups.cannot_enter(place.seq)
        for _ in range(chance.randrange(3)):
            groups.poll()
    place.step()
    groups.world.barrier()
    return ran
