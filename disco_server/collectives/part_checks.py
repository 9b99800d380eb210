"""Checks of what collectives of teams bring besides arrays: counts, tables, roots, lines.

The ranks compare a checksum of these in their rows; where it differs they tell each
other the text. As in `checks` nothing raises where a rank must still meet its peers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, cast

from disco_client.errors import ConfigError
from disco_server.collectives.base import ReduceOp
from disco_server.collectives.checks import Offer, Op, check_sizes, code_of

__all__ = [
    "Lines",
    "Parts",
    "Table",
    "add_root",
    "check_counts",
    "check_table",
    "offer_lines",
    "read_lines",
]

Table = tuple[tuple[int, ...], ...]
"""How many elements each rank (row) sends to each rank (column)."""

Lines = tuple[tuple[int, ...], ...]
"""The workers of each team, in the order of their ranks there."""

_MOST_ELEMENTS = 1 << 48
_NOTE_CHARACTERS = 120


class Parts(NamedTuple):
    """How many elements the part of each rank has.

    Attributes:
        counts: The numbers.
        total: Their sum.
        widest: The largest.
        even: Whether all are equal.
        digest: A checksum.
        note: For people.
    """

    counts: tuple[int, ...]
    total: int
    widest: int
    even: bool
    digest: int
    note: str


def check_counts(
    op: Op,
    src: object,
    dst: object,
    counts: Sequence[int],
    size: int,
    rank: int,
    reduce: ReduceOp | None = None,
    *,
    root: int | None = None,
) -> tuple[Offer, Parts | None]:
    """Checks a collective between one array of all parts and one array a part.

    Args:
        op: ALLGATHER and GATHER have all parts in the destination, SCATTER and
            REDUCE_SCATTER in the source.
        src: The source.
        dst: The destination.
        counts: How many elements the part of each rank has.
        size: How many ranks there are.
        rank: This one.
        reduce: The reduction, where there is one.
        root: The only rank that has all parts; None if all have.

    Returns:
        What this rank brings; and the parts, unless they are equal and the root, if
        there is one, is the first rank.
    """
    parts = _read_counts(counts, size)
    if isinstance(parts, str):
        return Offer(code_of(op, reduce), 0, 0, parts), None
    joins = op in (Op.ALLGATHER, Op.GATHER)
    own, total, writes = parts.counts[rank], parts.total, True
    sizes = (own, total) if joins else (total, own)
    if root is not None and root != rank:
        # The array of all parts is not looked at.
        sizes, writes = (own, own), not joins
        src, dst = (src, src) if joins else (dst, dst)
    offer = check_sizes(op, src, dst, sizes, total, reduce, writes=writes)
    offer = offer._replace(extra=parts.digest, note=parts.note)
    if root is not None:
        offer = add_root(offer, root, size)
    return offer, None if parts.even and not root else parts


def check_table(
    src: object, dst: object, table: Sequence[Sequence[int]], size: int, rank: int
) -> tuple[Offer, Table | None]:
    """Checks an `all_to_all` whose parts differ.

    Args:
        src: The source.
        dst: The destination.
        table: How many elements each rank (row) sends to each rank (column).
        size: How many ranks there are.
        rank: This one.

    Returns:
        What this rank brings; and the table, unless all its numbers are equal.
    """
    try:
        rows = tuple(tuple(map(operator.index, row)) for row in table)
    except TypeError:
        return Offer(int(Op.ALL_TO_ALL), 0, 0, "the counts must be rows of integers"), None
    if [len(row) for row in rows] != [size] * size:
        problem = f"the counts must be {size} rows of {size} numbers"
        return Offer(int(Op.ALL_TO_ALL), 0, 0, problem), None
    parts = _parts_of(tuple(count for row in rows for count in row))
    if isinstance(parts, str):
        return Offer(int(Op.ALL_TO_ALL), 0, 0, parts), None
    sizes = (sum(rows[rank]), sum(row[rank] for row in rows))
    offer = check_sizes(Op.ALL_TO_ALL, src, dst, sizes, parts.total)
    note = _note("counts", [list(row) for row in rows], parts.digest)
    return offer._replace(extra=parts.digest, note=note), None if parts.even else rows


def add_root(offer: Offer, root: int, size: int) -> Offer:
    """Adds to an offer from or to which rank it goes; all ranks must mean the same."""
    try:
        at = operator.index(root)
    except TypeError:
        at = -1
    if not 0 <= at < size:
        return offer._replace(problem=f"the root {root!r} is not one of the {size} members")
    # Added to a checksum of the same counts it always makes a difference.
    return offer._replace(extra=offer.extra + at, note=f"{offer.note}, root {at}")


def read_lines(lines: object, workers: int) -> Lines:
    """Reads the lines of teams.

    Args:
        lines: For each team its workers, in the order of their ranks.
        workers: How many the session has.

    Raises:
        ConfigError: They are no lines of workers, a line is empty, or a worker is
            not one of the session's or in two places.
    """
    try:
        found = tuple(
            tuple(map(operator.index, line)) for line in cast("Iterable[Iterable[int]]", lines)
        )
    except TypeError:
        raise ConfigError(f"expected lists of workers, one for each team, got {lines!r}") from None
    seen: set[int] = set()
    for line in found:
        if not line:
            raise ConfigError(f"a team needs a worker, but one of {_text(found)} is empty")
        for worker in line:
            if not 0 <= worker < workers:
                raise ConfigError(f"worker {worker} of a team is not one of {workers} workers")
            if worker in seen:
                raise ConfigError(f"worker {worker} is in two places of the teams {_text(found)}")
            seen.add(worker)
    return found


def offer_lines(lines: Lines) -> Offer:
    """What a rank brings that wants teams of these lines."""
    # The lengths tell [[0, 1]] from [[0], [1]].
    numbers = (*map(len, lines), *(worker for line in lines for worker in line))
    text = _note("", [list(line) for line in lines], digest := _digest(numbers))
    return Offer(int(Op.MAKE_TEAMS), 0, len(lines), extra=digest, note=f" of{text[1:]}")


def _read_counts(counts: Sequence[int], size: int) -> Parts | str:
    try:
        numbers = tuple(map(operator.index, counts))
    except TypeError:
        return "the counts must be integers, one for each member"
    if len(numbers) != size:
        return f"there are {size} members, but {len(numbers)} counts"
    return _parts_of(numbers)


@lru_cache(maxsize=512)
def _parts_of(counts: tuple[int, ...]) -> Parts | str:
    if any(not 0 <= count <= _MOST_ELEMENTS for count in counts):
        return f"counts must be from 0 to {_MOST_ELEMENTS}"
    digest = _digest(counts)
    widest = max(counts)
    even = widest == min(counts)
    return Parts(counts, sum(counts), widest, even, digest, _note("counts", [*counts], digest))


def _digest(numbers: Iterable[int]) -> int:
    """A checksum that leaves room in a row's number for a root to be added."""
    text = ",".join(map(str, numbers))
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")


def _note(name: str, numbers: list[int] | list[list[int]], digest: int) -> str:
    text = str(numbers)
    if len(text) > _NOTE_CHARACTERS:
        text = f"{text[:_NOTE_CHARACTERS]}... (checksum {digest:x})"
    return f", {name} {text}" if name else f", {text}"


def _text(lines: Lines) -> str:
    return str([list(line) for line in lines])
