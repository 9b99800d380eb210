"""Products with matrices in blocks of 4 or 8 bits, compiled by numba.

The same products in numpy would first widen each matrix to float32, which takes eight times the
memory. A compiler makes a loop over `LANES` rows of a matrix one instruction for all of them, so
that is the innermost loop everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from llm.blocks import BLOCK, LANES

__all__ = ["Kernels", "kernels"]

STEP = 8
"""Numbers of a row that are read at once."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions for matrices of some bits a number.

    All take ``numbers`` [tiles, blocks, bits, LANES], unsigned integers of 32 bits with the numbers
    of a row one behind the other from the lowest bits on; ``scale`` and ``least`` [tiles, blocks,
    LANES], the bits of float16: a weight is ``number * scale + least``; then rows of float32, and
    the array for the products.

    Attributes:
        one: Multiplies one row, ``x`` [in], whose sums over each block, ``sums`` [blocks], are
            given too; writes ``y`` [tiles * LANES].
        four: Multiplies four rows, ``x`` [4, in]; writes ``y`` [4, tiles * LANES].
    """

    one: Callable[[Array, Array, Array, Array, Array, Array], None]
    four: Callable[[Array, Array, Array, Array, Array], None]


@numba.njit(inline="always")
def _wide(bits: Any) -> Any:
    """The float32 of a finite float16, given as its bits."""
    v = np.uint32(bits)
    magnitude = (v & np.uint32(0x7FFF)) << np.uint32(13)
    sign = (v & np.uint32(0x8000)) << np.uint32(16)
    # The exponents differ by 112, and subnormal numbers come out right as well.
    return np.uint32(magnitude | sign).view(np.float32) * np.float32(2.0**112)


@numba.njit(inline="always")
def _add(sums: Any, weight: Any, x: Any, k: Any) -> Any:
    """Adds what a weight makes of four rows' number k."""
    return (
        sums[0] + weight * x[0, k],
        sums[1] + weight * x[1, k],
        sums[2] + weight * x[2, k],
        sums[3] + weight * x[3, k],
    )


def kernels(bits: int) -> Kernels:
    """Compiles the functions for 4 or 8 bits a number, at their first call."""
    options: dict[str, Any] = {"fastmath": True, "error_model": "numpy", "nogil": True}
    mask, each, words = np.uint32((1 << bits) - 1), 32 // bits, STEP * bits // 32

    @numba.njit(inline="always")
    def number(numbers: Any, t: Any, b: Any, step: Any, i: Any, lane: Any) -> Any:
        word = numbers[t, b, step * words + i // each, lane]
        return np.float32(np.int32((word >> np.uint32(bits * (i % each))) & mask))

    @numba.njit(**options)
    def one(numbers: Any, scale: Any, least: Any, x: Any, sums: Any, y: Any) -> None:
        total = np.empty(LANES, np.float32)
        for t in range(numbers.shape[0]):
            total[:] = np.float32(0)
            for b in range(numbers.shape[1]):
                for lane in range(LANES):
                    found = np.float32(0)
                    for step in range(BLOCK // STEP):
                        for i in range(STEP):
                            k = step * STEP + i
                            found += number(numbers, t, b, step, i, lane) * x[b * BLOCK + k]
                    total[lane] += (
                        _wide(scale[t, b, lane]) * found + _wide(least[t, b, lane]) * sums[b]
                    )
            for lane in range(LANES):
                y[t * LANES + lane] = total[lane]

    @numba.njit(**options)
    def four(numbers: Any, scale: Any, least: Any, x: Any, y: Any) -> None:
        total = np.empty((4, LANES), np.float32)
        for t in range(numbers.shape[0]):
            total[:] = np.float32(0)
            for b in range(numbers.shape[1]):
                for step in range(BLOCK // STEP):
                    k = b * BLOCK + step * STEP
                    for lane in range(LANES):
                        d, m = _wide(scale[t, b, lane]), _wide(least[t, b, lane])
                        s = (total[0, lane], total[1, lane], total[2, lane], total[3, lane])
                        # Written out: of a loop in a loop the compiler makes no vectors.
                        s = _add(s, number(numbers, t, b, step, 0, lane) * d + m, x, k)
                        s = _add(s, number(numbers, t, b, step, 1, lane) * d + m, x, k + 1)
                        s = _add(s, number(numbers, t, b, step, 2, lane) * d + m, x, k + 2)
                        s = _add(s, number(numbers, t, b, step, 3, lane) * d + m, x, k + 3)
                        s = _add(s, number(numbers, t, b, step, 4, lane) * d + m, x, k + 4)
                        s = _add(s, number(numbers, t, b, step, 5, lane) * d + m, x, k + 5)
                        s = _add(s, number(numbers, t, b, step, 6, lane) * d + m, x, k + 6)
                        s = _add(s, number(numbers, t, b, step, 7, lane) * d + m, x, k + 7)
                        total[0, lane], total[1, lane] = s[0], s[1]
                        total[2, lane], total[3, lane] = s[2], s[3]
            for row in range(4):
                for lane in range(LANES):
                    y[row, t * LANES + lane] = total[row, lane]

    return Kernels(one, four)
