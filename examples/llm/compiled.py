"""The small parts of a layer, compiled by numba: of a few rows, numpy's calls cost more than these.

Each has its counterpart in numpy in `llm.layers`, which workers without numba use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm.kernels import compiled

__all__ = ["attend", "normalize", "silu_times", "store", "turn"]


@compiled(
    "float32[:,::1](float32[:,::1], float32[::1], float32)",
    "float32[:,:,::1](float32[:,:,::1], float32[::1], float32)",
)
def normalize(x: Any, weight: Any, epsilon: Any) -> Any:
    """RMS normalisation of contiguous [..., width]; see `llm.layers.Share.normalize`."""
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


@compiled("float32[:,:,::1](float32[:,:,:], float32[:,:,::1], float32[:,:,::1], int64)")
def turn(x: Any, cos: Any, sin: Any, apart: int) -> Any:
    """Turns pairs of [rows, heads, head]; see `llm.turning.Angles.turn`.

    Args:
        x: The heads, whose numbers behind those that turn stay.
        cos: [rows, 1, pairs], of the angles.
        sin: Likewise.
        apart: How far the two numbers of a pair are from each other; 1 for neighbours.
    """
    found = np.empty(x.shape, np.float32)
    pairs = cos.shape[-1]
    step = 2 if apart == 1 else 1
    for row in range(x.shape[0]):
        for head in range(x.shape[1]):
            for pair in range(pairs):
                one, c, s = pair * step, cos[row, 0, pair], sin[row, 0, pair]
                a, b = x[row, head, one], x[row, head, one + apart]
                found[row, head, one] = a * c - b * s
                found[row, head, one + apart] = a * s + b * c
            for rest in range(2 * pairs, x.shape[2]):
                found[row, head, rest] = x[row, head, rest]
    return found


@compiled("void(float32[:,:,:,::1], int64[::1], float32[:,:,:], float32[:,:,:])")
def store(cache: Any, places: Any, keys: Any, values: Any) -> None:
    """Keeps the keys and values of rows; see `llm.layers.Share`.

    Args:
        cache: [2, heads, places, head], of a layer.
        places: [rows], where the cache keeps them.
        keys: [rows, heads, head].
        values: Likewise.
    """
    for row in range(places.shape[0]):
        for head in range(keys.shape[1]):
            for i in range(keys.shape[2]):
                cache[0, head, places[row], i] = keys[row, head, i]
                cache[1, head, places[row], i] = values[row, head, i]


@compiled("float32[:,::1](float32[:,:], float32[:,:])")
def silu_times(gate: Any, up: Any) -> Any:
    """[rows, columns]: up times what SiLU makes of gate."""
    found = np.empty(gate.shape, np.float32)
    for row in range(gate.shape[0]):
        for i in range(gate.shape[1]):
            x = gate[row, i]
            found[row, i] = x / (np.float32(1) + np.exp(-x)) * up[row, i]
    return found


@compiled(
    "void(float32[:,:,::1], float32[:,:,::1], float32[:,:,:,::1], int64[::1], int32[:,::1],"
    " int64[::1], int64[::1], int64, int64, float32)"
)
def attend(  # noqa: PLR0913, PLR0917  (a compiled function takes arrays, not objects)
    mixed: Any,
    asked: Any,
    cache: Any,
    rows: Any,
    tables: Any,
    positions: Any,
    read_by: Any,
    block: int,
    window: int,
    cap: Any,
) -> None:
    """Writes what single rows of sequences find in a layer's cache.

    Args:
        mixed: [rows of the step, heads, head]; gets the values.
        asked: Likewise, the queries, scaled.
        cache: [2, heads of keys and values, places, head]: keys, and values.
        rows: [rows], which rows of the step.
        tables: [rows, blocks], integers: the cache's blocks of each row's sequence.
        positions: [rows], integers: a row looks at the positions up to its own one.
        read_by: [heads], integers: which heads of keys and values each query head reads.
        block: Positions of a block.
        window: How many positions a row looks at, at most; 0 for all.
        cap: By what scores are softened, ``cap * tanh(score / cap)``; 0 for nothing.
    """
    keys, values = cache[0], cache[1]
    width = asked.shape[-1]
    scores = np.empty(tables.shape[1] * block, np.float32)
    for n in range(rows.shape[0]):
        row, end = rows[n], positions[n] + 1
        start = max(0, end - window) if window else 0
        for head in range(asked.shape[1]):
            kv = read_by[head]
            most = np.float32(-np.inf)
            for at in range(start, end):
                place = tables[n, at // block] * block + at % block
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
            mixed[row, head, :] = np.float32(0)
            for at in range(start, end):
                place = tables[n, at // block] * block + at % block
                share = scores[at] / total
                for i in range(width):
                    mixed[row, head, i] += share * values[kv, place, i]
