"""What one rank brings to a collective, checked before it agrees with its peers.

The checks here need this rank's arrays only. Each returns a `CollectiveSignature`: three
small numbers that the ranks compare, and what is wrong with the call, if
anything is. Nothing raises: a rank with a wrong call must still post to its peers,
which would wait for it otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.array_likes import loss_of
from disco_client.wire.values import dtype_from_name, is_array
from disco_server.collectives.types import Array, ReduceOp
from disco_server.devices.base import on_device

__all__ = [
    "NO_TAG",
    "CollectiveDtype",
    "CollectiveSignature",
    "Family",
    "Lines",
    "Op",
    "Parts",
    "Table",
    "add_root",
    "add_shapes",
    "add_tag",
    "check_counts",
    "check_equal",
    "check_parts",
    "check_point",
    "check_sizes",
    "check_table",
    "code_of",
    "describe",
    "dtype_of",
    "find_kind",
    "op_name",
    "read_lines",
    "sign_lines",
    "tag_problem",
]


class Op(IntEnum):
    """The collectives, as numbered in the headers ranks exchange."""

    ALLREDUCE = 1
    ALLGATHER = 2
    BROADCAST = 3
    SCATTER = 4
    GATHER = 5
    REDUCE_SCATTER = 6
    ALL_TO_ALL = 7
    BARRIER = 8
    SEND_RECV = 9
    MAKE_TEAMS = 10


class Family(IntEnum):
    """How elements are combined."""

    BOOL = 0
    INTEGER = 1
    FLOAT = 2
    HALF = 3
    """float16 and bfloat16: combined in float32, rounded once."""
    COMPLEX = 4
    OPAQUE = 5
    """Moved as bytes; no reduction supports it."""


class CollectiveDtype(NamedTuple):
    """A dtype that may enter a collective.

    Attributes:
        code: Its number in headers.
        name: Its name as numpy writes it.
        family: How its elements are combined.
        refused: The reductions that it does not support.
    """

    code: int
    name: str
    family: Family
    refused: frozenset[ReduceOp]


_REFUSED = {
    Family.BOOL: frozenset({ReduceOp.AVG}),
    Family.COMPLEX: frozenset({ReduceOp.MIN, ReduceOp.MAX}),
    Family.OPAQUE: frozenset(ReduceOp),
}
_NAMES: dict[Family, tuple[str, ...]] = {
    Family.BOOL: ("bool",),
    Family.INTEGER: ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    Family.FLOAT: ("float32", "float64"),
    Family.HALF: ("float16", "bfloat16"),
    Family.COMPLEX: ("complex64", "complex128"),
    Family.OPAQUE: (
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ),
}
_BY_NAME = {
    name: CollectiveDtype(code, name, family, _REFUSED.get(family, frozenset()))
    for code, (family, name) in enumerate(
        ((family, name) for family, names in _NAMES.items() for name in names), start=1
    )
}
# Looked up by the dtype object itself, which hashes fast; filled on first use,
# so that ml_dtypes need not be imported for its dtypes to be known.
_known: dict[np.dtype[Any], CollectiveDtype | None] = {}


_ON_DEVICE = 64
"""Added to the code of a dtype where the arrays are on a GPU."""

# What the libraries of GPUs cannot reduce, besides what no library can.
_REFUSED_ON_DEVICE = {
    "int16": frozenset(ReduceOp),
    "uint16": frozenset(ReduceOp),
    "complex64": frozenset({ReduceOp.PROD}),
    "complex128": frozenset({ReduceOp.PROD}),
}


NO_TAG = 1
"""What stands for the tag of a call that has none; not 0, by which headers know tokens."""


class CollectiveSignature(NamedTuple):
    """What a rank brings to a collective.

    Attributes:
        op: The collective, plus 16 times the reduction where there is one.
        dtype: The code of the dtype, 0 for none; another one for arrays on a GPU.
        elements: How many are in one part.
        problem: What is wrong on this rank; empty if nothing is.
        family: How the elements are combined.
        extra: What else must agree, as a number.
        note: The same as text, appended to the description of the call.
        tag: The checksum of the tag that the caller gave, 1 without one.
        tag_note: The tag as text, appended likewise.
    """

    op: int
    dtype: int
    elements: int
    problem: str = ""
    family: Family = Family.OPAQUE
    extra: int = 0
    note: str = ""
    tag: int = NO_TAG
    tag_note: str = ""

    @property
    def on_device(self) -> bool:
        """Whether the arrays are on a GPU."""
        return self.dtype > _ON_DEVICE


def find_kind(dtype: np.dtype[Any]) -> CollectiveDtype | None:
    """Finds what is known of a dtype; None if it may not enter a collective."""
    try:
        return _known[dtype]
    except KeyError:
        kind = _BY_NAME.get(dtype.name) if dtype.isnative else None
        _known[dtype] = kind
        return kind


def check_equal(
    op: Op, src: object, dst: object, reduce: ReduceOp | None = None, *, parts: int = 1
) -> CollectiveSignature:
    """Checks a collective whose source and destination are equally long.

    Args:
        op: The collective.
        src: The source; where only the root's counts, the others give `dst`.
        dst: The destination.
        reduce: The reduction, where there is one.
        parts: Into how many equal parts both must fall.
    """
    code = code_of(op, reduce)
    source, target = _as_array(src), _as_array(dst)
    if source is None:
        return CollectiveSignature(code, 0, 0, f"the source must be an array, not {_name(src)}")
    if target is None:
        return CollectiveSignature(
            code, 0, 0, f"the destination must be an array, not {_name(dst)}"
        )
    size = source.size
    if target.size != size:
        problem = f"the destination {_text(target)} needs {size} elements, as {_text(source)} has"
    elif size % parts:
        problem = f"{_text(source)} cannot be split into {parts} equal parts"
    else:
        problem = _check_writeable(target)
    return _check(code, source, target, size // parts, reduce, problem)


def check_parts(
    op: Op, src: object, dst: object, parts: int, reduce: ReduceOp | None = None, *, root: bool
) -> CollectiveSignature:
    """Checks a collective between one array of all parts and one array a part.

    Args:
        op: ALLGATHER and GATHER have all parts in the destination, SCATTER and
            REDUCE_SCATTER in the source.
        src: The source.
        dst: The destination.
        parts: How many ranks take part.
        reduce: The reduction, where there is one.
        root: Whether this rank has the array of all parts; if it has not, that
            array is not looked at.
    """
    code = code_of(op, reduce)
    joins = op in (Op.ALLGATHER, Op.GATHER)
    if not root:
        src, dst = (src, src) if joins else (dst, dst)
    source, target = _as_array(src), _as_array(dst)
    if source is None:
        return CollectiveSignature(code, 0, 0, f"the source must be an array, not {_name(src)}")
    if target is None:
        return CollectiveSignature(
            code, 0, 0, f"the destination must be an array, not {_name(dst)}"
        )
    problem = ""
    whole, part = (target, source) if joins else (source, target)
    if root and whole.size != part.size * parts:
        problem = f"{_text(whole)} does not hold {parts} parts like {_text(part)}"
    elif root or not joins:
        problem = _check_writeable(target)
    return _check(code, source, target, part.size, reduce, problem)


def check_sizes(
    op: Op,
    src: object,
    dst: object,
    sizes: tuple[int, int],
    elements: int,
    reduce: ReduceOp | None = None,
    *,
    writes: bool = True,
) -> CollectiveSignature:
    """Checks a collective whose sizes are known beforehand.

    Args:
        op: The collective.
        src: The source; where this rank has none, the same as `dst`.
        dst: The destination; where this rank has none, the same as `src`.
        sizes: How many elements the source and the destination must have.
        elements: What the ranks compare.
        reduce: The reduction, where there is one.
        writes: Whether this rank has a destination.
    """
    code = code_of(op, reduce)
    source, target = _as_array(src), _as_array(dst)
    if source is None:
        return CollectiveSignature(code, 0, 0, f"the source must be an array, not {_name(src)}")
    if target is None:
        return CollectiveSignature(
            code, 0, 0, f"the destination must be an array, not {_name(dst)}"
        )
    if writes and target.size != sizes[1]:
        problem = f"the destination {_text(target)} should have {sizes[1]} elements"
    elif source.size != sizes[0]:
        problem = f"the source {_text(source)} should have {sizes[0]} elements"
    else:
        problem = _check_writeable(target) if writes else ""
    return _check(code, source, target, elements, reduce, problem)


def check_point(
    buf: object, peer: int, me: int, workers: int, *, receives: bool
) -> CollectiveSignature:
    """Checks one end of a transfer between two workers."""
    code = int(Op.SEND_RECV)
    array = _as_array(buf)
    if array is None:
        return CollectiveSignature(code, 0, 0, f"the buffer must be an array, not {_name(buf)}")
    problem = ""
    if not 0 <= peer < workers or peer == me:
        problem = f"worker {peer} is not another one of the {workers} workers"
    elif receives:
        problem = _check_writeable(array)
    signature = _check(code, array, array, array.size, None, problem)
    return signature._replace(extra=peer if receives else me)


def add_shapes(signature: CollectiveSignature, src: object, dst: object) -> CollectiveSignature:
    """Adds to a signature a checksum of the shapes that all ranks must have in common.

    Not of an array that only the root has, nor of parts that may differ.
    """
    op = Op(signature.op & 15)
    if op in (Op.BARRIER, Op.MAKE_TEAMS) or (signature.note and op is not Op.BROADCAST):
        return signature
    if op in (Op.BROADCAST, Op.SCATTER):
        arrays = [dst]
    elif op is Op.GATHER:
        arrays = [src]
    else:
        arrays = [each for each in (src, dst) if each is not None]
    shapes = [array.shape for each in arrays if (array := _as_array(each)) is not None]
    return signature._replace(extra=signature.extra ^ crc32(repr(shapes).encode()))


_TAG_CHARACTERS = 80


def tag_problem(tag: object) -> str:
    """Says what is wrong with a tag; empty if nothing is."""
    return "" if isinstance(tag, str) else f"the tag must be a str, not {type(tag).__name__}"


def add_tag(signature: CollectiveSignature, tag: object) -> CollectiveSignature:
    """Adds to a signature the tag by which its caller knows the call; all ranks must give the same.

    Args:
        signature: Of the call.
        tag: The tag, a str.
    """
    if problem := tag_problem(tag):
        return signature._replace(
            problem=signature.problem or problem, tag_note=", a tag that is no str"
        )
    # The text itself, of a subclass too, whatever that makes of str().
    digest, note = _read_tag(str.__str__(cast("str", tag)))
    return signature._replace(tag=digest, tag_note=note)


@lru_cache(maxsize=512)
def _read_tag(tag: str) -> tuple[int, str]:
    # A text that UTF-8 cannot encode is a tag as well.
    digest = _checksum(tag.encode("utf-8", "surrogatepass")) + NO_TAG + 1
    text = repr(tag)
    if len(text) > _TAG_CHARACTERS:
        text = f"{text[:_TAG_CHARACTERS]}... (checksum {digest:x})"
    return digest, f", tag {text}"


def op_name(op: int) -> str:
    """Names the operation of a `CollectiveSignature`: "allreduce(sum)", "barrier"."""
    name = Op(op & 15).name.lower()
    if name in ("allreduce", "reduce_scatter"):
        return f"{name}({ReduceOp(op >> 4).name.lower()})"
    return name


def dtype_of(signature: CollectiveSignature) -> tuple[str, int]:
    """The name of the dtype of a signature and its bytes; "" and 0 where it has none."""
    code = signature.dtype % _ON_DEVICE
    name = next((kind.name for kind in _BY_NAME.values() if kind.code == code), "")
    return name, dtype_from_name(name).itemsize if name else 0


def describe(signature: CollectiveSignature, src: object, dst: object) -> str:
    """Says what a rank brought: "allreduce(sum) of float32[3], destination float32[3]"."""
    name = op_name(signature.op)
    parts = [f"of {_text(src)}"] if src is not None else []
    if dst is not None:
        parts.append(f"destination {_text(dst)}")
    return f"{name} {', '.join(parts)}".rstrip() + signature.note + signature.tag_note


# Adding two enums costs as much as the rest of a check; looking their sum up does not.
_CODES = {(op, reduce): int(op) + 16 * int(reduce) for op in Op for reduce in ReduceOp}


def code_of(op: Op, reduce: ReduceOp | None) -> int:
    """What stands for an operation in a `CollectiveSignature`."""
    return int(op) if reduce is None else _CODES[op, reduce]


def _check(
    code: int, src: Array, dst: Array, elements: int, reduce: ReduceOp | None, problem: str
) -> CollectiveSignature:
    dtype = src.dtype
    kind = find_kind(dtype)
    if kind is None:
        return CollectiveSignature(code, 0, 0, f"dtype {dtype} cannot take part in a collective")
    if dst.dtype is not dtype and dst.dtype != dtype:
        problem = f"the destination {_text(dst)} must be {dtype}, as the source {_text(src)} is"
    elif kind.refused and not problem and reduce is not None:
        problem = _check_reduction(kind, reduce)
    if type(src) is np.ndarray is type(dst):
        return CollectiveSignature(code, kind.code, elements, problem, kind.family)
    return _check_place(
        CollectiveSignature(code, kind.code, elements, problem, kind.family), src, dst, reduce
    )


def _check_place(
    signature: CollectiveSignature, src: Array, dst: Array, reduce: ReduceOp | None
) -> CollectiveSignature:
    """Adds to a signature what matters where an array may be on a GPU."""
    device = on_device(src)
    problem = signature.problem
    if device is not on_device(dst):
        problem = f"the destination {_text(dst)} must be where the source {_text(src)} is"
    elif device and not problem and reduce in _REFUSED_ON_DEVICE.get(src.dtype.name, ()):
        problem = f"{src.dtype} on a GPU has no such reduction; convert it to another dtype first"
    return signature._replace(problem=problem, dtype=signature.dtype + _ON_DEVICE * device)


def _check_writeable(array: Array) -> str:
    if on_device(array) or array.flags.writeable:
        return ""
    return f"the destination {_text(array)} is read-only"


def _check_reduction(kind: CollectiveDtype, reduce: ReduceOp) -> str:
    if reduce not in kind.refused:
        return ""
    if kind.family is Family.BOOL:
        return "bool has no avg; use sum or max for or, prod or min for and"
    if kind.family is Family.COMPLEX:
        return f"{kind.name} has no order, so no {reduce.name.lower()}"
    return f"{kind.name} can be moved but not reduced; convert it to float32 first"


def _as_array(value: object) -> Array | None:
    if type(value) is np.ndarray or on_device(value):
        return cast("Array", value)
    return value if is_array(value) and not loss_of(value) else None


def _text(value: object) -> str:
    array = _as_array(value)
    if array is None:
        return _name(value)
    where = " on a GPU" if on_device(array) else ""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]{where}"


def _name(value: object) -> str:
    if value is None:
        return "None"
    reason = f" ({loss_of(value)})" if is_array(value) else ""
    return type(value).__name__ + reason


# Checks of what collectives of teams bring besides arrays: counts, tables, roots, lines.
#
# The ranks compare a checksum of these in their headers; where it differs they send each
# other the text. As above nothing raises where a rank must still post to its peers.


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
        note: A description, for messages.
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
) -> tuple[CollectiveSignature, Parts | None]:
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
        return CollectiveSignature(code_of(op, reduce), 0, 0, parts), None
    joins = op in (Op.ALLGATHER, Op.GATHER)
    own, total, writes = parts.counts[rank], parts.total, True
    sizes = (own, total) if joins else (total, own)
    if root is not None and root != rank:
        # The array of all parts is not looked at.
        sizes, writes = (own, own), not joins
        src, dst = (src, src) if joins else (dst, dst)
    signature = check_sizes(op, src, dst, sizes, total, reduce, writes=writes)
    signature = signature._replace(extra=parts.digest, note=parts.note)
    if root is not None:
        signature = add_root(signature, root, size)
    return signature, None if parts.even and not root else parts


def check_table(
    src: object, dst: object, table: Sequence[Sequence[int]], size: int, rank: int
) -> tuple[CollectiveSignature, Table | None]:
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
        return CollectiveSignature(
            int(Op.ALL_TO_ALL), 0, 0, "the counts must be rows of integers"
        ), None
    if [len(row) for row in rows] != [size] * size:
        problem = f"the counts must be {size} rows of {size} numbers"
        return CollectiveSignature(int(Op.ALL_TO_ALL), 0, 0, problem), None
    parts = _parts_of(tuple(count for row in rows for count in row))
    if isinstance(parts, str):
        return CollectiveSignature(int(Op.ALL_TO_ALL), 0, 0, parts), None
    sizes = (sum(rows[rank]), sum(row[rank] for row in rows))
    signature = check_sizes(Op.ALL_TO_ALL, src, dst, sizes, parts.total)
    note = _note("counts", [list(row) for row in rows], parts.digest)
    return signature._replace(extra=parts.digest, note=note), None if parts.even else rows


def add_root(signature: CollectiveSignature, root: int, size: int) -> CollectiveSignature:
    """Adds to a signature from or to which rank it goes; all ranks must name the same."""
    try:
        at = operator.index(root)
    except TypeError:
        at = -1
    if not 0 <= at < size:
        return signature._replace(problem=f"the root {root!r} is not one of the {size} members")
    # Added to a checksum of the same counts it always makes a difference.
    return signature._replace(extra=signature.extra + at, note=f"{signature.note}, root {at}")


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
            raise ConfigError(f"a team needs a worker, but one of {_parts_text(found)} is empty")
        for worker in line:
            if not 0 <= worker < workers:
                raise ConfigError(f"worker {worker} of a team is not one of {workers} workers")
            if worker in seen:
                raise ConfigError(
                    f"worker {worker} is in two places of the teams {_parts_text(found)}"
                )
            seen.add(worker)
    return found


def sign_lines(lines: Lines) -> CollectiveSignature:
    """What a rank brings that wants teams of these lines."""
    # The lengths tell [[0, 1]] from [[0], [1]].
    numbers = (*map(len, lines), *(worker for line in lines for worker in line))
    text = _note("", [list(line) for line in lines], digest := _digest(numbers))
    return CollectiveSignature(
        int(Op.MAKE_TEAMS), 0, len(lines), extra=digest, note=f" of{text[1:]}"
    )


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
    """A checksum that leaves room in a header's number for a root to be added."""
    return _checksum(",".join(map(str, numbers)).encode())


def _checksum(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=7).digest(), "little")


def _note(name: str, numbers: list[int] | list[list[int]], digest: int) -> str:
    text = str(numbers)
    if len(text) > _NOTE_CHARACTERS:
        text = f"{text[:_NOTE_CHARACTERS]}... (checksum {digest:x})"
    return f", {name} {text}" if name else f", {text}"


def _parts_text(lines: Lines) -> str:
    return str([list(line) for line in lines])
