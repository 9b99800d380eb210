"""Parts of random tensors: blocks of fixed size, each drawn from a counter of its own.

The elements of a tensor in C order are cut into blocks. Each block is drawn by numpy's generator
from Philox with the key of the generator, and with the number of the block and that of the draw
in the upper half of its counter, of which a block counts in the lower half (2**128 steps). So a
worker draws a block without those before it, and no two blocks of a generator have numbers in
common. The source of Philox is Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from disco_client.wire.blocks import run_axis, spanned, strides_of
from disco_server.rank.worker import current_worker

__all__ = ["random_part"]

Array = Any
Pieces = Sequence[Sequence[Sequence[int]]]
"""Of each axis the first index and the one behind the last of each piece."""


_METHODS = frozenset(
    name
    for name in dir(np.random.Generator)
    if name[0] != "_" and name not in ("bit_generator", "bytes", "shuffle", "spawn")
)


_INTO = frozenset(["random", "standard_exponential", "standard_normal"])
"""Methods without parameters that draw into an array."""


class _Draw(NamedTuple):
    """How a block is drawn.

    Attributes:
        name: The generator's method.
        units: The shape of what is drawn independently, such as the rows of `multinomial`.
        row: How many elements each of these has.
        length: How many of these a block has.
        key: The generator's.
        number: Of the draw.
        options: Of the method.
        parameters: Each takes the numbers of the first unit and of that behind the last.
    """

    name: str
    units: Sequence[int]
    row: int
    length: int
    key: Sequence[int]
    number: int
    options: Mapping[str, Any]
    parameters: Sequence[Callable[[int, int], Any]]

    def block(self, number: int) -> Array:
        """The elements of a block in a row."""
        first = number * self.length
        last = min(first + self.length, math.prod(self.units))
        method = self._method(number)
        given = [parameter(first, last) for parameter in self.parameters]
        count = last - first
        if self.name == "permutation":
            out = method(*given)
        elif self.name == "permuted":
            out = method(*given, axis=-1)
        elif self.name == "choice":
            chances = given[1] if len(given) > 1 else None
            out = method(given[0], size=count * self.row, p=chances, **self.options)
        else:
            out = method(*given, size=count, **self.options)
        return out.reshape(-1)

    def block_into(self, number: int, out: Array) -> None:
        """Writes all elements of a block into a row of memory."""
        if self.name in _INTO:
            self._method(number)(out=out, **self.options)
        else:
            out[...] = self.block(number)

    def _method(self, number: int) -> Callable[..., Array]:
        counter = np.array([0, 0, number, self.number], np.uint64)
        philox = np.random.Philox(key=np.array(self.key, np.uint64), counter=counter)
        return getattr(np.random.Generator(philox), self.name)  # type: ignore[no-any-return]


class _BlockReader:
    """Elements of a tensor in C order; the block that was read last is kept."""

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw
        self._size = draw.length * draw.row
        self._number = -1
        self._block: Array = None

    def read_into(self, out: Array, start: int) -> None:
        """Fills a row of elements.

        Args:
            out: The row.
            start: The number of its first element.
        """
        at, stop = start, start + len(out)
        while at < stop:
            number = at // self._size
            first = number * self._size
            last = min(stop, first + self._size)
            target = out[at - start : last - start]
            if len(target) == self._size:
                self._draw.block_into(number, target)
            else:
                target[...] = self._read(number)[at - first : last - first]
            at = last

    def _read(self, number: int) -> Array:
        if number != self._number:
            self._number, self._block = number, self._draw.block(number)
        return self._block


def random_part(
    xp: Any,
    pieces: Pieces,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    how: Mapping[str, Any],
    *values: Any,
) -> Array:
    """Draws this worker's part of a random tensor, on the host, and brings it to its device.

    Args:
        xp: The module of its arrays.
        pieces: What it has of each axis.
        dtype: Of the elements.
        shape: Of the tensor.
        how: The ``name`` of the generator's method and its ``options``; the ``key``, and the
            ``number`` of the draw; how many of the ``axes``, the first ones, number what is drawn
            independently, and what ``length`` of these a block has; of each parameter, how many
            axes one value has (``inner``), and whether the worker has those of its blocks alone,
            in a row (``parts``).
        *values: The parameters.
    """
    if how["name"] not in _METHODS:
        msg = f"numpy.random.Generator has no method {how['name']!r} that makes arrays"
        raise ValueError(msg)
    axes, length = how["axes"], how["length"]
    units, row = shape[:axes], math.prod(shape[axes:])
    begin, _ = spanned(units, pieces[:axes], length)
    host = current_worker().arrays.to_host
    parameters = [
        _parameter(value if np.isscalar(value) else host(value), units, inner, begin, is_part)
        for value, inner, is_part in zip(values, how["inner"], how["parts"], strict=True)
    ]
    key = tuple(map(int, how["key"]))
    draw = _Draw(how["name"], units, row, length, key, how["number"], how["options"], parameters)
    out = np.empty([sum(last - first for first, last in axis) for axis in pieces], dtype)
    if out.size:
        whole = out.ndim == 0
        _fill(
            out.reshape(1) if whole else out,
            [1] if whole else shape,
            [[[0, 1]]] if whole else pieces,
            _BlockReader(draw),
            length * row,
        )
    return xp.asarray(out)


def _parameter(
    value: Any, units: Sequence[int], inner: int, begin: int, is_part: object
) -> Callable[[int, int], Any]:
    if is_part:
        return lambda first, last: value[first - begin : last - begin]
    if np.ndim(value) == inner:
        return lambda _first, _last: value
    core = value.shape[value.ndim - inner :]
    wide = np.broadcast_to(value, (*units, *core))
    if not inner:
        return lambda first, last: wide.flat[first:last]
    return lambda first, last: wide[np.unravel_index(np.arange(first, last), tuple(units))]


def _fill(out: Array, shape: Sequence[int], pieces: Pieces, run: _BlockReader, block: int) -> None:
    """Fills a part of a tensor, run by run.

    Args:
        out: The part.
        shape: Of the tensor.
        pieces: What the part has of each axis.
        run: The elements of the tensor.
        block: How many a block of them has.
    """
    axis, strides = run_axis(shape, pieces, block), strides_of(shape)
    behind = [_indices(held) for held in pieces[axis + 1 :]]
    if list(map(len, behind)) == list(shape[axis + 1 :]):
        read = partial(_read_all, run)
    else:
        read = partial(_read_some, run, shape[axis + 1 :], behind, max(1, block // strides[axis]))
    before = [_indices(held) for held in pieces[:axis]]
    for places in itertools.product(*map(enumerate, before)):
        here = tuple(local for local, _ in places)
        offset = sum(index * stride for (_, index), stride in zip(places, strides, strict=False))
        at = 0
        for first, last in pieces[axis]:
            there = out[(*here, slice(at, at + last - first))]
            start = offset + first * strides[axis]
            read(there, start)
            at += last - first


def _indices(held: Sequence[Sequence[int]]) -> list[int]:
    return [index for first, last in held for index in range(first, last)]


def _read_all(run: _BlockReader, out: Array, start: int) -> None:
    """Fills what is one row, as a part is contiguous."""
    run.read_into(out.reshape(-1), start)


def _read_some(
    run: _BlockReader,
    behind: Sequence[int],
    wanted: Sequence[Sequence[int]],
    rows: int,
    out: Array,
    start: int,
) -> None:
    """Fills rows of which not all is wanted.

    Args:
        run: The elements of the tensor.
        behind: The shape of a row.
        wanted: Of each of its axes the indices that are.
        rows: How many are read at a time.
        out: Gets them.
        start: The number of the first row's first element.
    """
    size = math.prod(behind)
    items = tuple(map(_item, wanted))
    chosen = items if all(isinstance(each, slice) for each in items) else np.ix_(*wanted)
    for at in range(0, len(out), rows):
        some = out[at : at + rows]
        whole = np.empty(len(some) * size, out.dtype)
        run.read_into(whole, start + at * size)
        some[...] = whole.reshape(len(some), *behind)[(slice(None), *chosen)]


def _item(wanted: Sequence[int]) -> slice | None:
    """Indices as a slice, if they are one."""
    if wanted and wanted[-1] - wanted[0] == len(wanted) - 1:
        return slice(wanted[0], wanted[-1] + 1)
    return None
