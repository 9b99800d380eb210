"""Products with matrices in blocks of 4 or 8 bits, compiled by numba.

The same products in numpy would first widen each matrix to float32, which takes eight times the
memory. The innermost loop is written with `llm.vectors`: from one in Python the compiler makes code
that multiplies two thirds as many numbers in a second for one row, and two fifths for four.

Matrices are given as ``numbers`` [tiles, blocks, bits, LANES], unsigned integers of 32 bits with
the numbers of a row one behind the other from the lowest bits on; ``scale`` and ``least`` [tiles,
blocks, LANES], the bits of float16: a weight is ``number * scale + least``. ``nibbles`` is a tuple
whose length, known when a function is compiled, says how many times four bits a number has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from llm.blocks import LANES, NUMBERS
from llm.vectors import FLOATS, HALVES, WORDS, Vectors, index, lanes

__all__ = ["compiled", "multiply"]

cgutils: Any = importlib.import_module("numba.core.cgutils")  # which says nothing of its types

BYTE = 8
"""Bits whose highest one is a number's sign."""
SUMS = {1: 4, 4: 2}
"""Of so many rows, how many sums each has of a block: a core adds to eight of them at once."""
AHEAD = 4096
"""How many words of a matrix are asked of the memory before they are needed."""
_OPTIONS: dict[str, Any] = {
    # All that makes sums vectors; infinities and what is not a number stay what they are.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "nogil": True,
}


def compiled(*signatures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function for arguments of some types, or finds what another process compiled."""

    def compile_it(func: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(list(signatures), cache=True, **_OPTIONS)(func)
        except (OSError, RuntimeError):  # a full disk, or no folder that this process may write to
            return numba.njit(list(signatures), **_OPTIONS)(func)

    return compile_it


_MATRIX = "uint32[:,:,:,::1], uint16[:,:,::1], uint16[:,:,::1]"
_OF_BITS = ("UniTuple(int64, 1)", "UniTuple(int64, 2)")
"""The types of a matrix, and of `nibbles` for four and for eight bits."""


def _multiply_tile(rows: int) -> Any:
    """The product of some rows with the `LANES` rows of a tile, for functions that are compiled.

    Its arguments are those of `multiply`, ``sums`` [rows, blocks] of each row's numbers, and then
    which tile it is and which is the first of the rows.
    """

    @intrinsic
    def product(  # noqa: PLR0913, PLR0917  (a compiled function takes arrays, not objects)
        _typing: Any,
        nibbles: Any,
        numbers: Any,
        scale: Any,
        least: Any,
        x: Any,
        y: Any,
        sums: Any,
        tile: Any,
        row: Any,
    ) -> Any:
        def write(context: Any, build: Any, signature: Any, args: Any) -> Any:
            arrays = [
                context.make_array(kind)(context, build, value)
                for kind, value in zip(signature.args[1:7], args[1:7], strict=True)
            ]
            _write_tile(build, 4 * nibbles.count, rows, arrays, *args[7:])
            return context.get_dummy_value()

        return types.void(nibbles, numbers, scale, least, x, y, sums, tile, row), write

    return product


def _write_tile(build: Any, bits: int, rows: int, arrays: Any, tile: Any, row: Any) -> None:
    """Writes the loop over the blocks of a tile, and what it leaves in y."""
    numbers, scale, least, x, y, sums = arrays
    vectors = Vectors(build)
    blocks, depth, width = (cgutils.unpack_tuple(build, of.shape)[1] for of in (numbers, x, y))
    totals = [cgutils.alloca_once_value(build, lanes(0, FLOATS)) for _ in range(rows)]
    which = [build.add(row, index(r)) for r in range(rows)]
    with cgutils.for_range(build, blocks) as loop:
        block = build.add(build.mul(tile, blocks), loop.index)
        words = build.mul(block, index(bits * LANES))
        columns = [
            build.add(build.mul(r, depth), build.mul(loop.index, index(NUMBERS))) for r in which
        ]
        found = _write_block(vectors, bits, numbers.data, words, x.data, columns)
        block = build.mul(block, index(LANES))
        d = vectors.widen(vectors.load(scale.data, block, HALVES))
        m = vectors.widen(vectors.load(least.data, block, HALVES))
        if bits == BYTE:
            m = build.fsub(m, build.fmul(d, lanes(128.0, FLOATS)))
        for r in range(rows):
            of_row = vectors.repeat(sums.data, build.add(build.mul(which[r], blocks), loop.index))
            total = vectors.add_product(build.load(totals[r]), m, of_row)
            build.store(vectors.add_product(total, d, found[r]), totals[r])
    for r in range(rows):
        first = build.add(build.mul(which[r], width), build.mul(tile, index(LANES)))
        vectors.store(build.load(totals[r]), y.data, first)


def _write_block(
    vectors: Vectors, bits: int, numbers: Any, words: Any, x: Any, columns: list[Any]
) -> list[Any]:
    """The sums of a block's numbers times those of each row of x."""
    build, each = vectors.build, 32 // bits
    sums = [[lanes(0, FLOATS)] * SUMS[len(columns)] for _ in columns]
    read: Any = None
    for k in range(NUMBERS):
        if k % each == 0:
            first = k // each * LANES
            vectors.prefetch(numbers, build.add(words, index(first + AHEAD)))
            read = vectors.load(numbers, build.add(words, index(first)), WORDS)
        number = vectors.number(read, bits, k % each)
        for own, column in zip(sums, columns, strict=True):
            i = k % len(own)
            own[i] = vectors.add_product(
                own[i], number, vectors.repeat(x, build.add(column, index(k)))
            )
    for own in sums:
        while len(own) > 1:
            own.append(build.fadd(own.pop(0), own.pop(0)))
    return [own[0] for own in sums]


_multiply_one, _multiply_four = _multiply_tile(1), _multiply_tile(4)


@compiled(*(f"void({bits}, {_MATRIX}, float32[:,::1], float32[:,::1])" for bits in _OF_BITS))
def multiply(nibbles: Any, numbers: Any, scale: Any, least: Any, x: Any, y: Any) -> None:
    """Multiplies rows.

    Args:
        nibbles: See above, as numbers, scale and least.
        numbers: The matrix.
        scale: Its scales.
        least: What is added to each number.
        x: [rows, in], float32.
        y: [rows, tiles * LANES], float32; gets the products.
    """
    rows, blocks = x.shape[0], numbers.shape[1]
    sums = np.empty((rows, blocks), np.float32)
    for row in range(rows):
        for block in range(blocks):
            found = np.float32(0)
            for k in range(NUMBERS):
                found += x[row, block * NUMBERS + k]
            sums[row, block] = found
    fours = rows // 4 * 4
    for tile in range(numbers.shape[0]):  # which stays in the core's cache for all rows
        for row in range(0, fours, 4):
            _multiply_four(nibbles, numbers, scale, least, x, y, sums, tile, row)
        for row in range(fours, rows):
            _multiply_one(nibbles, numbers, scale, least, x, y, sums, tile, row)
