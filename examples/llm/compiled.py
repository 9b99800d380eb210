"""The small parts of a layer, compiled by numba: with few rows a call of numpy costs more than they.

Each has its counterpart in numpy in `llm.layers`, which workers without numba use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm.kernels import compiled

__all__ = ["attend", "normalize", "silu", "turn"]

@compiled
def normalize(x: Any, weight: Any, epsilon: Any) -> Any:
    """RMS normalisation of [..., width] along the last axis; see `llm.layers.Share.normalize`."""
    found = np.empty_like(x)
    width = x.shape[-1]
    rows, out = x.reshape(-1, width), found.reshape(-1, width)
    for row in range(rows.shape[0]):
        total = np.float32(0)
        for i in range(width):
            total += rows[row, i] * rows[row, i]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
        for i in range(width):
            out[row, i] = rows[row, i] * scale * weight[i]
    return found


@compiled
def turn(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Turns pairs of [rows, heads, head] by the angles of their rows.

    Args:
        x: The numbers, contiguous.
        cos: [rows, 1, half], of the angles.
        sin: Likewise.
        interleaved: Whether the numbers of a pair are neighbours; else half a head apart.
    """
    found = np.empty_like(x)
    half = cos.shape[-1]
    step, apart = (2, 1) if interleaved else (1, half)
    for row in range(x.shape[0]):
        for head in range(x.shape[1]):
            for pair in range(half):
                one, c, s = pair * step, cos[row, 0, pair], sin[row, 0, pair]
                a, b = x[row, head, one], x[row, head, one + apart]
                found[row, head, one] = a * c - b * s
                found[row, head, one + apart] = a * s + b * c
    return found


@compiled
def silu(x: Any) -> None:
    """x / (1 + exp(-x)), in place."""
    flat = x.reshape(-1)
    for i in range(flat.size):
        flat[i] /= np.float32(1) + np.exp(-flat[i])


@compiled
def attend(  # noqa: PLR0913, PLR0917  (a compiled function takes arrays, not objects)
    asked: Any,
    keys: Any,
    values: Any,
    tables: Any,
    positions: Any,
    heads: Any,
    block: int,
    window: int,
    cap: Any,
) -> Any:
    """[rows, heads, head]: what single rows of sequences find in the cache.

    Args:
        asked: [rows, heads, head], the queries, scaled.
        keys: [heads of keys and values, places, head].
        values: Likewise.
        tables: [rows, blocks], integers: the cache's blocks of each row's sequence.
        positions: [rows], integers: a row looks at the positions up to its own one.
        heads: [heads], integers: which heads of keys and values each query head reads.
        block: Positions of a block.
        window: How many positions a row looks at, at most; 0 for all.
        cap: By what scores are softened, ``cap * tanh(score / cap)``; 0 for nothing.
    """
    found = np.zeros_like(asked)
    width = asked.shape[-1]
    scores = np.empty(tables.shape[1] * block, np.float32)
    for row in range(asked.shape[0]):
        end = positions[row] + 1
        start = max(0, end - window) if window else 0
        for head in range(asked.shape[1]):
            kv = heads[head]
            most = np.float32(-np.inf)
            for at in range(start, end):
                place = tables[row, at // block] * block + at % block
                score = np.float32(0)
                for i in range(width):
                    score += asked[row, head, i] * keys[kv, place, i]
                if cap:
                    score = cap * np.tanh(score / cap)
                scores[at] = score
                most = max(most, score)
            total = np.float32(0)
            for at in range(start, end):
                scores[at] = np.exp(scores[at] - most)
                total += scores[at]
            for at in range(start, end):
                place = tables[row, at // block] * block + at % block
                share = scores[at] / total
                for i in range(width):
                    found[row, head, i] += share * values[kv, place, i]
    return found
