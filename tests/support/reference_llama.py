"""A forward of the Llama architecture in float64, written from the published formulas alone.

It knows nothing of the example: it reads the tensors of a folder in Hugging Face's layout by their
names there, and is told how fast rotary positions turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    # Hendrycks and Gimpel, arXiv:1606.08415: x times the normal distribution up to x, and the
    # approximation that the same paper gives.
    "gelu": lambda x: x * np.vectorize(lambda each: 0.5 * math.erfc(-each / math.sqrt(2)))(x),
    "gelu_new": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * np.power(x, 3))))
    ),
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]


def plain_speeds(base: float, head: int) -> np.ndarray:
    """How fast each pair turns, in radians a position (Su et al., arXiv:2104.09864)."""
    return 1.0 / base ** (np.arange(0, head, 2) / head)


def llama3_speeds(
    base: float, head: int, factor: float, low: float, high: float, old_context: float
) -> np.ndarray:
    """The same of Llama 3.1, which stretches the slow pairs.

    After ``apply_scaling`` in models/llama3/reference_impl/model.py of
    https://github.com/meta-llama/llama-models: by the length of a wave, in positions.
    """
    speeds = plain_speeds(base, head)
    waves = 2 * np.pi / speeds
    smooth = (old_context / waves - low) / (high - low)
    mixed = (1 - smooth) * speeds / factor + smooth * speeds
    slow, fast = waves > old_context / low, waves < old_context / high
    return np.where(slow, speeds / factor, np.where(fast, speeds, mixed))


def logits(
    tensors: Mapping[str, np.ndarray],
    ids: Sequence[int],
    speeds: np.ndarray,
    *,
    heads: int,
    epsilon: float,
    activation: str = "silu",
) -> np.ndarray:
    """[tokens, vocabulary]: what follows each token."""
    read = {name: array.astype(np.float64) for name, array in tensors.items()}
    head = 2 * len(speeds)
    angles = np.outer(np.arange(len(ids)), np.concatenate([speeds, speeds]))[:, None]
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ read[f"{name}.weight"].T + read.get(f"{name}.bias", 0)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * read[f"{name}.weight"]

    def turned(x: np.ndarray) -> np.ndarray:
        half = np.concatenate([-x[..., head // 2 :], x[..., : head // 2]], -1)
        return x * np.cos(angles) + half * np.sin(angles)

    x = read["model.embed_tokens.weight"][list(ids)]
    layers = 1 + max(int(name.split(".")[2]) for name in read if name.startswith("model.layers."))
    for layer in range(layers):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (
            linear(h, f"{at}.self_attn.{name}_proj").reshape(len(ids), -1, head) for name in "qkv"
        )
        q, k = turned(q), turned(k)
        k, v = (each.repeat(heads // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(head) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1)
        x = x + linear(mixed, f"{at}.self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm")
        gate = ACTIVATIONS[activation](linear(h, f"{at}.mlp.gate_proj"))
        x = x + linear(gate * linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
    output = read.get("lm_head.weight", read["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ output.T
