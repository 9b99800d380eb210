"""The attention of some heads over sentences of different lengths, without padding where it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedding.arithmetic import Arithmetic
    from embedding.layout import Run
    from embedding.numerics import Floats

__all__ = ["mix"]


def mix(xp: Any, math: Arithmetic, run: Run, parts: Floats, scores: Floats, out: Floats) -> None:
    """Mixes the values of a run's tokens by the attention of each head.

    Args:
        xp: The module that computes, numpy or cupy.
        math: The functions that it lacks.
        run: Sentences of one length, or padded to one.
        parts: [3, sentences, heads, tokens, head], at any distance from each other:
            queries, divided by the square root of a head's width, keys and values.
        scores: At least [sentences * heads * tokens * tokens], room to work in.
        out: [sentences * tokens, heads * head]; gets the result.
    """
    queries, keys, values = parts
    sentences, heads, tokens, _ = queries.shape
    # Views only: BLAS takes rows and columns at any distance from each other.
    mixed = out.reshape(sentences, tokens, heads, -1).transpose(0, 2, 1, 3)
    scores = scores.reshape(-1)[: sentences * heads * tokens * tokens]
    scores = scores.reshape(sentences, heads, tokens, tokens)
    xp.matmul(queries, keys.swapaxes(2, 3), out=scores)
    if run.padding is not None:
        scores += run.padding.mask
    sums = math.softmax_unscaled(scores)
    xp.matmul(scores, values, out=mixed)
    mixed /= sums
