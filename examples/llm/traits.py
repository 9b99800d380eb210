"""What sets a model apart from the plainest one: positions, windows, norms, scales."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rope", "Traits"]


@dataclass(frozen=True, slots=True)
class Rope:
    """How the numbers of a head turn with their position (Su et al., arXiv:2104.09864).

    Attributes:
        base: Of the angles.
        divisors: [turned / 2], what the speeds are divided by; empty for 1.
        turned: How many numbers of a head turn, the first ones; 0 for all.
        scale: What the turned numbers are multiplied by.
    """

    base: float = 10000.0
    divisors: tuple[float, ...] = ()
    turned: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Traits:
    """What a family, or a model of it, does otherwise.

    Attributes:
        window: How many positions a token sees in the layers named in `local`, its own included.
        local: The numbers of these layers; the others see all positions before.
        local_rope: The rotary positions of these layers; None for those of the others.
        head_norms: Whether each head of queries and keys is normalised before it turns.
        after_norms: Whether what attention and the feed-forward part bring is normalised.
        norm_offset: What is added to the weights of all norms.
        embedding_scale: What the embeddings are multiplied by.
        attention_scale: What queries are multiplied by; 0 for head ** -0.5.
        attention_cap: The scores of attention become cap * tanh(score / cap); 0 for no cap.
        logit_cap: Likewise of the logits.
        fused: Whether query, key and value are one tensor of the files, and gate and up.
    """

    window: int = 0
    local: tuple[int, ...] = ()
    local_rope: Rope | None = None
    head_norms: bool = False
    after_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    fused: bool = False
