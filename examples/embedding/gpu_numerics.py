"""The functions of `numerics` on a GPU, by cupy: float32, whole arrays, no pieces.

Each line is one pass of the GPU over its memory and nothing here waits for it, so
the host is far ahead with asking while the GPU computes.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedding.layout import Layout
    from embedding.numerics import Floats

__all__ = [
    "AT_ONCE",
    "PADS",
    "add_and_norm",
    "gelu",
    "mean_rows",
    "normalise_rows",
    "softmax_unscaled",
    "take_rows",
]

# There is no cache to stay in, only memory to be sparing with: 256 MiB.
AT_ONCE: int = 1 << 26

# Asking for a computation costs about as much as computing some million numbers:
# padding is cheaper than taking each length by itself.
PADS: bool = True

# By name, because neither is installed where there is no GPU.
_xp: Any = import_module("cupy")
_erfc: Any = import_module("cupyx.scipy.special").erfc


def take_rows(table: Floats, rows: Any, out: Floats) -> None:
    """See `Arithmetic.take_rows`; an index that does not exist would be wrapped around."""
    _xp.take(table, rows, axis=0, out=out)


def gelu(values: Floats) -> None:
    """See `Arithmetic.gelu`; x * erfc(-x / sqrt(2)) / 2, whose erfc is exact to float32."""
    normal = values * -math.sqrt(0.5)
    _erfc(normal, out=normal)
    values *= 0.5
    values *= normal


def add_and_norm(
    values: Floats,
    residual: Floats | None,
    bias: Floats | None,
    norm: tuple[Floats, Floats],
    epsilon: float,
) -> None:
    """See `Arithmetic.add_and_norm`."""
    scale, shift = norm
    if residual is not None:
        values += residual
    if bias is not None:
        values += bias
    values -= values.mean(axis=1, keepdims=True)
    spread = _xp.square(values).mean(axis=1, keepdims=True)
    spread += epsilon
    values /= _xp.sqrt(spread)
    values *= scale
    values += shift


def softmax_unscaled(scores: Floats) -> Floats:
    """See `Arithmetic.softmax_unscaled`."""
    scores -= scores.max(axis=-1, keepdims=True)
    _xp.exp(scores, out=scores)
    return scores.sum(axis=-1, keepdims=True)


def mean_rows(rows: Floats, layout: Layout) -> Floats:
    """See `Arithmetic.mean_rows`; as a product with a matrix that is 1 where a row belongs."""
    places = _xp.arange(rows.shape[0])
    starts = layout.starts[:, None]
    belongs = (places >= starts) & (places < starts + layout.lengths[:, None])
    means = _xp.matmul(belongs.astype(rows.dtype), rows)
    means /= layout.lengths[:, None].astype(rows.dtype)
    return means


def normalise_rows(rows: Floats) -> Floats:
    """See `Arithmetic.normalise_rows`."""
    lengths = _xp.sqrt(_xp.square(rows).sum(axis=1, keepdims=True))
    rows /= _xp.maximum(lengths, 1e-12)
    return rows
