"""The functions of a transformer that numpy lacks, in float32 and in place.

They are memory-bound, so they work through cache-sized pieces, and they create
no temporary arrays larger than such a piece. `gpu_numerics` has the same for cupy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from embedding.layout import Layout

__all__ = [
    "AT_ONCE",
    "PADS",
    "Floats",
    "add_and_norm",
    "gelu",
    "mean_rows",
    "normalise_rows",
    "softmax_unscaled",
    "take_rows",
]

Floats = npt.NDArray[np.float32]

# What one rank works on between two matrix products stays in its cache: this
# many float32 of attention scores, or of the feed-forward part's inner layer.
AT_ONCE: int = 1 << 17

# A CPU takes sentences of each length by themselves, and spends nothing on padding.
PADS: bool = False

# Three arrays of this many float32 fit a core's second-level cache.
_PIECE = 16384

# Rows that layer normalisation takes at a time, for the same reason.
_ROWS = 128

_ONE = np.float32(1)

# The exact GELU is x * Phi(x) with Phi(x) = erfc(-x / sqrt(2)) / 2, the normal
# distribution (Hendrycks and Gimpel, arXiv:1606.08415). numpy has no erf, but
# it has a fast exp, and Phi(x) = 1 / (1 + exp(-l(x))) where l is the log-odds
# ln(Phi(x) / Phi(-x)). l is odd and smooth, so l(x) = 2 x q(x^2) with a short
# polynomial q. These are -2 times the coefficients of the q of degree 6 that
# makes the largest error of x * Phi(x) over |x| <= 5.2 smallest: 7e-8 in exact
# arithmetic. Beyond 5.2 this q stays above 1.5, so Phi is 0 or 1 to the last
# bit, as it should be. (The often-copied 7.1.26 of Abramowitz and Stegun is off
# by 1.5e-7 in erf, which is more, and takes an exp and a division as well.)
_MINUS_LOG_ODDS = tuple(
    np.float32(-2 * coefficient)
    for coefficient in (
        7.978842157334312e-01,
        3.633428454584242e-02,
        -3.313080667892432e-05,
        -5.523989352551223e-05,
        3.969069668528142e-06,
        -1.3344370599001714e-07,
        1.805549903013357e-09,
    )
)


def take_rows(table: Floats, rows: Any, out: Floats) -> None:
    """Copies the named rows of a table, each of which must exist."""
    # Checked before, so the faster mode that does not check is safe.
    np.take(table, rows, axis=0, out=out, mode="clip")


def gelu(values: Floats) -> None:
    """Replaces every value by its Gaussian error linear unit, in place.

    The error is below 6e-7 for every float32, most of it rounding.

    Args:
        values: Any shape, float32, C-contiguous.

    Raises:
        ValueError: The array is not contiguous, so that it cannot be changed in place.
    """
    if not values.flags.c_contiguous:
        raise ValueError("gelu works in place and needs a C-contiguous array")
    flat = values.reshape(-1)
    odds = np.empty(min(_PIECE, flat.size), np.float32)
    square = np.empty_like(odds)
    # exp overflows to infinity for very negative values, and x / infinity is the right 0.
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE]
            _gelu_piece(piece, odds[: piece.size], square[: piece.size])


def _gelu_piece(x: Floats, odds: Floats, square: Floats) -> None:
    np.multiply(x, x, out=square)
    np.multiply(square, _MINUS_LOG_ODDS[-1], out=odds)
    for coefficient in _MINUS_LOG_ODDS[-2:0:-1]:
        odds += coefficient
        odds *= square
    odds += _MINUS_LOG_ODDS[0]
    odds *= x
    np.exp(odds, out=odds)
    odds += _ONE
    x /= odds


def add_and_norm(
    values: Floats,
    residual: Floats | None,
    bias: Floats | None,
    norm: tuple[Floats, Floats],
    epsilon: float,
) -> None:
    """Adds the residual and the bias to each row, then normalises the row, in place.

    Args:
        values: [rows, width], float32; replaced by the result.
        residual: [rows, width], or None for nothing to add.
        bias: [width], or None for nothing to add.
        norm: The layer normalisation's scale and shift, [width] each.
        epsilon: What it adds to the variance.
    """
    scale, shift = norm
    width = np.float32(values.shape[1])
    # A product with a vector sums up rows several times faster than sum() or mean().
    average = np.full(values.shape[1], _ONE / width)
    epsilon32 = np.float32(epsilon)
    for start in range(0, values.shape[0], _ROWS):
        rows = values[start : start + _ROWS]
        if residual is not None:
            rows += residual[start : start + _ROWS]
        if bias is not None:
            rows += bias
        rows -= np.matmul(rows, average)[:, None]
        spread = np.einsum("ij,ij->i", rows, rows) / width
        rows *= (_ONE / np.sqrt(spread + epsilon32))[:, None]
        rows *= scale
        rows += shift


def softmax_unscaled(scores: Floats) -> Floats:
    """Replaces scores by their exponentials, in place, and returns what to divide by.

    Dividing is left to the caller, which can do it after the next matrix product,
    where there are fewer numbers to divide.

    Args:
        scores: [..., keys], float32; at least one of each row is finite.

    Returns:
        [..., 1], float32: the sums of the exponentials.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    # As a product with a vector, which is several times faster than sum().
    return np.matmul(scores, np.ones(scores.shape[-1], np.float32))[..., None]


def mean_rows(rows: Floats, layout: Layout) -> Floats:
    """Averages the rows of each sentence.

    Args:
        rows: [tokens, width].
        layout: Where the sentences stand among them.

    Returns:
        [sentences, width].
    """
    means = np.add.reduceat(rows, layout.starts, axis=0)
    means /= layout.lengths[:, None].astype(np.float32)
    return means


def normalise_rows(rows: Floats) -> Floats:
    """Divides each row of [count, width] by its Euclidean length, in place, and returns it."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.maximum(lengths, np.float32(1e-12))[:, None]
    return rows
