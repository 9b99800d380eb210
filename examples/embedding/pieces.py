"""What a worker computes of its parts where Disco has no function: for `embedding.tensors`.

Each function takes the parts of distributed tensors that this worker holds, and says
nothing of other workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import disco_server
from embedding.arithmetic import arithmetic_for
from embedding.attention import mix
from embedding.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedding.numerics import Floats

__all__ = ["add_and_norm", "attention", "gelu", "sentence_means"]


@disco_server.register_func("examples.embedding.attention")
def attention(qkv: Floats, bias: Floats, *, lengths: Sequence[int], head: int) -> Floats:
    """The attention of some heads.

    Args:
        qkv: [tokens, heads * 3 * head]: of each head queries, keys and values.
        bias: [heads * 3 * head], to be added to it.
        lengths: How many tokens each sentence has.
        head: The width of a head.

    Returns:
        [tokens, heads * head].
    """
    xp = disco_server.current_worker().xp
    math = arithmetic_for(xp)
    qkv = qkv + bias
    tokens, heads = qkv.shape[0], qkv.shape[1] // (3 * head)
    out = xp.empty((tokens, heads * head), np.float32)
    if not heads:
        return out
    layout = lay_out(
        np.asarray(lengths, np.int32), heads, math.AT_ONCE, pads=math.PADS, place=xp.asarray
    )
    most = max(run.sentences * run.tokens**2 for run in layout.runs)
    scores = xp.empty(most * heads, np.float32)
    for run in layout.runs:
        rows = qkv[run.rows] if run.padding is None else xp.take(qkv, run.padding.rows, axis=0)
        parts = rows.reshape(run.sentences, run.tokens, heads, 3, head).transpose(3, 0, 2, 1, 4)
        if run.padding is None:
            mix(xp, math, run, parts, scores, out[run.rows])
        else:
            mixed = xp.empty((run.sentences * run.tokens, heads * head), np.float32)
            mix(xp, math, run, parts, scores, mixed)
            math.take_rows(mixed, run.padding.places, out[run.rows])
    return out


@disco_server.register_func("examples.embedding.gelu")
def gelu(x: Floats, bias: Floats) -> Floats:
    """The exact Gaussian error linear unit of each element and its column's bias."""
    out = x + bias
    arithmetic_for(disco_server.current_worker().xp).gelu(out)
    return out


@disco_server.register_func("examples.embedding.add_and_norm")
def add_and_norm(
    x: Floats, residual: Floats, bias: Floats, scale: Floats, shift: Floats, *, epsilon: float
) -> Floats:
    """The layer normalisation of a sum, in one pass over its rows.

    Args:
        x: [rows, width].
        residual: [rows, width], to be added to it.
        bias: [width], to be added to each row.
        scale: [width], of the norm.
        shift: [width], of the norm.
        epsilon: What the norm adds to the variance.
    """
    out = x + residual
    math = arithmetic_for(disco_server.current_worker().xp)
    math.add_and_norm(out, None, bias, (scale, shift), epsilon)
    return out


@disco_server.register_func("examples.embedding.sentence_means")
def sentence_means(rows: Floats, *, lengths: Sequence[int]) -> Floats:
    """Averages the rows of each sentence: [sentences, width] of [tokens, width]."""
    xp = disco_server.current_worker().xp
    math = arithmetic_for(xp)
    layout = lay_out(np.asarray(lengths, np.int32), 1, 1, pads=False, place=xp.asarray)
    return math.mean_rows(rows, layout)
