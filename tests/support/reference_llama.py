"""A forward of Llama and of families like it in float64, from the published formulas alone.

It knows nothing of the example: it reads the tensors of a folder in Hugging Face's layout by their
names there, and is told how fast rotary positions turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Otherwise:
    """What other families than Llama do; each field without a value is as in Llama.

    Attributes:
        windows: How many positions a token sees in each layer; 0 for all.
        local_speeds: How fast pairs turn in layers that see a window.
        turned_scale: What turned numbers are multiplied by.
        norm_offset: What is added to the weights of norms.
        embedding_scale: What embeddings are multiplied by.
        query_scale: What queries are multiplied by.
        attention_cap: Scores become cap * tanh(score / cap).
        logit_cap: Likewise of logits.
    """

    windows: Sequence[int] = ()
    local_speeds: np.ndarray | None = None
    turned_scale: float = 1.0
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    query_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None


def logits(
    tensors: Mapping[str, np.ndarray],
    ids: Sequence[int],
    speeds: np.ndarray,
    *,
    heads: int,
    epsilon: float,
    activation: str = "silu",
    otherwise: Otherwise | None = None,
) -> np.ndarray:
    """[tokens, vocabulary]: what follows each token."""
    read = _whole({name: array.astype(np.float64) for name, array in tensors.items()})
    more = otherwise or Otherwise()
    count = len(ids)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ read[f"{name}.weight"].T + read.get(f"{name}.bias", 0)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        weight = read[f"{name}.weight"] + more.norm_offset
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight

    def split(h: np.ndarray, name: str) -> np.ndarray:
        each = read["model.layers.0.self_attn.q_proj.weight"].shape[0] // heads
        found = linear(h, f"{name}_proj").reshape(count, -1, each)
        return norm(found, f"{name}_norm") if f"{name}_norm.weight" in read else found

    def attention(h: np.ndarray, at: str, layer: int) -> np.ndarray:
        q, k, v = (split(h, f"{at}.self_attn.{name}") for name in "qkv")
        window = more.windows[layer] if more.windows else 0
        own = speeds if more.local_speeds is None or not window else more.local_speeds
        q, k = (_turned(each, own, more.turned_scale) for each in (q, k))
        k, v = (each.repeat(heads // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * (more.query_scale or q.shape[-1] ** -0.5)
        scores = _capped(scores, more.attention_cap) + _mask(count, window)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1)
        return linear(mixed, f"{at}.self_attn.o_proj")

    def feed_forward(h: np.ndarray, at: str) -> np.ndarray:
        gate = ACTIVATIONS[activation](linear(h, f"{at}.mlp.gate_proj"))
        return linear(gate * linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")

    x = read["model.embed_tokens.weight"][list(ids)] * more.embedding_scale
    layers = 1 + max(int(name.split(".")[2]) for name in read if name.startswith("model.layers."))
    for layer in range(layers):
        at = f"model.layers.{layer}"
        brought = attention(norm(x, f"{at}.input_layernorm"), at, layer)
        if f"{at}.pre_feedforward_layernorm.weight" in read:
            x = x + norm(brought, f"{at}.post_attention_layernorm")
            brought = feed_forward(norm(x, f"{at}.pre_feedforward_layernorm"), at)
            x = x + norm(brought, f"{at}.post_feedforward_layernorm")
        else:
            x = x + brought
            x = x + feed_forward(norm(x, f"{at}.post_attention_layernorm"), at)
    output = read.get("lm_head.weight", read["model.embed_tokens.weight"])
    return _capped(norm(x, "model.norm") @ output.T, more.logit_cap)


def _whole(read: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors with three for each fused one of attention, and two for gate and up."""
    found = dict(read)
    for name, array in read.items():
        at = name.rpartition(".self_attn.")[0] or name.rpartition(".mlp.")[0]
        if name.endswith("qkv_proj.weight"):
            queries = read[f"{at}.self_attn.o_proj.weight"].shape[1]
            parts = np.split(array, [queries, (queries + len(array)) // 2])
            for part, each in zip("qkv", parts, strict=True):
                found[f"{at}.self_attn.{part}_proj.weight"] = each
        elif name.endswith("gate_up_proj.weight"):
            for part, each in zip(("gate", "up"), np.split(array, 2), strict=True):
                found[f"{at}.mlp.{part}_proj.weight"] = each
    return found


def _turned(x: np.ndarray, speeds: np.ndarray, scale: float) -> np.ndarray:
    angles = np.outer(np.arange(len(x)), np.concatenate([speeds, speeds]))[:, None]
    turning, rest = np.split(x, [2 * len(speeds)], axis=-1)
    one, other = np.split(turning, 2, axis=-1)
    half = np.concatenate([-other, one], -1)
    return np.concatenate([scale * (turning * np.cos(angles) + half * np.sin(angles)), rest], -1)


def _mask(count: int, window: int) -> np.ndarray:
    behind = np.arange(count)[:, None] - np.arange(count)
    return np.where((behind < 0) | ((behind >= window) if window else False), -np.inf, 0.0)


def _capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else cap * np.tanh(x / cap)
