"""Products with matrices in blocks of 4 or 8 bits, compiled by numba.

The same products in numpy would first widen each matrix to float32, which takes eight times the
memory. A compiler makes a loop over `LANES` rows of a matrix one instruction for all of them, so
that is the innermost loop everywhere.

Matrices are given as ``numbers`` [tiles, blocks, bits, LANES], unsigned integers of 32 bits with
the numbers of a row one behind the other from the lowest bits on; ``scale`` and ``least`` [tiles,
blocks, LANES], the bits of float16: a weight is ``number * scale + least``. ``nibbles`` is a tuple
whose length, known when a function is compiled, says how many times four bits a number has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from llm.blocks import LANES, NUMBERS

__all__ = ["compiled", "multiply_four", "multiply_one"]

STEP = 8
"""Numbers of a row that are read at once."""
TOGETHER = 8
"""Blocks whose products are added up before they are added to those before them."""
BYTE = 8
"""Bits whose highest one is a number's sign."""
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


@numba.njit(**_OPTIONS)
def _wide(bits: Any) -> Any:
    """The float32 of a finite float16, given as its bits."""
    v = np.uint32(bits)
    magnitude = (v & np.uint32(0x7FFF)) << np.uint32(13)
    sign = (v & np.uint32(0x8000)) << np.uint32(16)
    # The exponents differ by 112, and subnormal numbers come out right as well.
    return np.uint32(magnitude | sign).view(np.float32) * np.float32(2.0**112)


@numba.njit(**_OPTIONS)
def _number(numbers: Any, nibbles: Any, t: Any, b: Any, step: Any, i: Any, lane: Any) -> Any:
    """Number i of a step, as float32: from 0 to 15 of four bits, from -128 to 127 of eight."""
    bits = 4 * len(nibbles)
    each = 32 // bits
    word = numbers[t, b, step * len(nibbles) + i // each, lane]
    stored = (word >> np.uint32(bits * (i % each))) & np.uint32((1 << bits) - 1)
    # The subtraction is exact; of integers, it would be one of 64 bits.
    return np.float32(np.int32(stored)) - np.float32(128 if bits == BYTE else 0)


@numba.njit(**_OPTIONS)
def _coded(numbers: Any, nibbles: Any, t: Any, b: Any, step: Any, i: Any, lane: Any) -> Any:
    """Number i of a step, in another form where that takes an instruction less.

    Of four bits it is 1 + number / 16: the bits of the number are the highest of a float32's
    fraction, and need no conversion. `_decoded` has the factors for that.
    """
    if len(nibbles) > 1:
        return _number(numbers, nibbles, t, b, step, i, lane)
    word = (numbers[t, b, step, lane] >> np.uint32(4 * i)) << np.uint32(19)
    return np.uint32((word & np.uint32(15 << 19)) | np.uint32(0x3F800000)).view(np.float32)


@numba.njit(**_OPTIONS)
def _decoded(nibbles: Any, scale: Any, least: Any) -> Any:
    """What a coded number is multiplied by, and what is added then, to be the weight."""
    d, m = _wide(scale), _wide(least)
    return (d * np.float32(16), m - d * np.float32(16)) if len(nibbles) == 1 else (d, m)


@numba.njit(**_OPTIONS)
def _add(sums: Any, weight: Any, x: Any, k: Any) -> Any:
    """Adds what a weight makes of four rows' number k."""
    return (
        sums[0] + weight * x[0, k],
        sums[1] + weight * x[1, k],
        sums[2] + weight * x[2, k],
        sums[3] + weight * x[3, k],
    )


@compiled(*(f"void({bits}, {_MATRIX}, float32[::1], float32[::1])" for bits in _OF_BITS))
def multiply_one(nibbles: Any, numbers: Any, scale: Any, least: Any, x: Any, y: Any) -> None:
    """Multiplies one row.

    Args:
        nibbles: See above, as numbers, scale and least.
        numbers: The matrix.
        scale: Its scales.
        least: What is added to each number.
        x: [in], float32.
        y: [tiles * LANES], float32; gets the products.
    """
    sums = np.empty(numbers.shape[1], np.float32)
    for b in range(numbers.shape[1]):
        found = np.float32(0)
        for k in range(NUMBERS):
            found += x[b * NUMBERS + k]
        sums[b] = found
    total = np.empty(LANES, np.float32)
    for t in range(numbers.shape[0]):
        total[:] = np.float32(0)
        for b in range(numbers.shape[1]):
            for lane in range(LANES):
                found = np.float32(0)
                for step in range(NUMBERS // STEP):
                    for i in range(STEP):
                        coded = _coded(numbers, nibbles, t, b, step, i, lane)
                        found += coded * x[b * NUMBERS + step * STEP + i]
                d, m = _decoded(nibbles, scale[t, b, lane], least[t, b, lane])
                total[lane] += d * found + m * sums[b]
        for lane in range(LANES):
            y[t * LANES + lane] = total[lane]


@compiled(*(f"void({bits}, {_MATRIX}, float32[:,::1], float32[:,::1])" for bits in _OF_BITS))
def multiply_four(nibbles: Any, numbers: Any, scale: Any, least: Any, x: Any, y: Any) -> None:
    """Multiplies four rows.

    Args:
        nibbles: See above, as numbers, scale and least.
        numbers: The matrix.
        scale: Its scales.
        least: What is added to each number.
        x: [4, in], float32.
        y: [4, tiles * LANES], float32; gets the products.
    """
    total = np.empty((4, LANES), np.float32)
    part = np.zeros((4, LANES), np.float32)  # sums of sums lose less than one long sum does
    for t in range(numbers.shape[0]):
        total[:] = np.float32(0)
        for b in range(numbers.shape[1]):
            for step in range(NUMBERS // STEP):
                k = b * NUMBERS + step * STEP
                for lane in range(LANES):
                    d, m = _wide(scale[t, b, lane]), _wide(least[t, b, lane])
                    s = (part[0, lane], part[1, lane], part[2, lane], part[3, lane])
                    # Written out: of a loop in a loop the compiler makes no vectors.
                    s = _add(s, _number(numbers, nibbles, t, b, step, 0, lane) * d + m, x, k)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 1, lane) * d + m, x, k + 1)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 2, lane) * d + m, x, k + 2)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 3, lane) * d + m, x, k + 3)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 4, lane) * d + m, x, k + 4)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 5, lane) * d + m, x, k + 5)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 6, lane) * d + m, x, k + 6)
                    s = _add(s, _number(numbers, nibbles, t, b, step, 7, lane) * d + m, x, k + 7)
                    part[0, lane], part[1, lane] = s[0], s[1]
                    part[2, lane], part[3, lane] = s[2], s[3]
            if b % TOGETHER == TOGETHER - 1 or b == numbers.shape[1] - 1:
                for row in range(4):
                    for lane in range(LANES):
                        total[row, lane] += part[row, lane]
                        part[row, lane] = np.float32(0)
        for row in range(4):
            for lane in range(LANES):
                y[row, t * LANES + lane] = total[row, lane]
