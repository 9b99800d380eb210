"""The same decoder in plain numpy, in one process and without a cache: what to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decoder.settings import DecoderSettings, Floats

__all__ = ["generate"]


def generate(
    settings: DecoderSettings, weights: Mapping[str, Floats], prompt: Sequence[int], count: int
) -> list[int]:
    """Finds the likeliest next token, again and again, each time from all that came before.

    Args:
        settings: The figures.
        weights: See `decoder.settings.random_weights`.
        prompt: The tokens to begin with.
        count: How many to find.
    """
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(_logits(settings, weights, tokens))))
    return tokens[len(prompt) :]


def _logits(
    settings: DecoderSettings, weights: Mapping[str, Floats], tokens: Sequence[int]
) -> Floats:
    state: Any = weights["words"][list(tokens)]
    for layer in range(settings.layers):
        own = {
            name.partition(".")[2]: array
            for name, array in weights.items()
            if name.startswith(f"{layer}.")
        }
        x = _norm(state, own["norm"], settings.epsilon)
        state = state + _attention(settings, own, x)
        x = _norm(state, own["inner_norm"], settings.epsilon)
        gate = x @ own["gate"]
        gate /= 1 + np.exp(-gate)
        state = state + (gate * (x @ own["up"])) @ own["down"]
    return _norm(state[-1], weights["norm"], settings.epsilon) @ weights["head"]


def _attention(settings: DecoderSettings, own: Mapping[str, Floats], x: Floats) -> Floats:
    count, head = x.shape[0], settings.head
    asked = _turned((x @ own["query"]).reshape(count, -1, head), settings)
    keys = _turned((x @ own["key"]).reshape(count, -1, head), settings)
    values = (x @ own["value"]).reshape(count, -1, head)
    shared = settings.heads // settings.kv_heads
    out = np.empty_like(asked)
    for number in range(settings.heads):
        scores = asked[:, number] @ keys[:, number // shared].T / np.sqrt(np.float32(head))
        scores[np.triu_indices(count, 1)] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        out[:, number] = shares @ values[:, number // shared]
    return out.reshape(count, -1) @ own["out"]


def _turned(x: Floats, settings: DecoderSettings) -> Floats:
    """Rotary positions, as complex numbers: a pair is turned by its angle."""
    half = settings.head // 2
    count: int = x.shape[0]
    speeds = settings.base ** (np.arange(half, dtype=np.float64) / -half)
    turns = np.exp(1j * np.outer(np.arange(count), speeds))[:, None, :]
    turned = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1).astype(np.float32)


def _norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    spread = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(spread + np.float32(epsilon)) * weight
