"""How the next token is chosen of all tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["choose"]

Array = np.ndarray[Any, Any]


def choose(logits: Array, seed: int, position: int, temperature: float, top_p: float) -> int:
    """Draws a token: of the likeliest ones that together have the probability `top_p`.

    The draw depends on seed and position alone, so it is the same whatever else is in the step,
    and when the sequence is computed once more (Philox, Salmon et al., SC 2011: a counter).

    Args:
        logits: [tokens].
        seed: The sequence's.
        position: The token's place in the sequence.
        temperature: What the logits are divided by, above 0.
        top_p: Above 0, at most 1 (Holtzman et al., arXiv:1904.09751).
    """
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    shares = np.exp(scaled[order] - scaled[order[0]])
    reach: Any = np.cumsum(shares)
    kept = int(reach.searchsorted(top_p * reach[-1])) + 1
    draw = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
    return int(order[min(int(reach[:kept].searchsorted(draw * reach[kept - 1])), kept - 1)])
