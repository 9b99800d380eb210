"""The same model in one process, without workers and blocks: what to compare with."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from llm.config import tensors_of
from llm.fused import unfuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from llm.config import Checkpoint
    from llm.traits import Rope

__all__ = ["Plain", "read_weights"]

Array = np.ndarray[Any, Any]


class Past(list[tuple[Array, Array]]):
    """Keys and values of each layer, [tokens, heads, head] each."""


class Plain:
    """All of a model, in float32.

    Args:
        checkpoint: The model.

    Raises:
        ModelError: A tensor is not there.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        config = self._config
        queries, kv = config.heads * config.head, config.kv_heads * config.head
        rows = {"query": queries, "key": kv, "value": kv, "gate": config.inner, "up": config.inner}
        self._weights = unfuse(read_weights(checkpoint), rows)
        self._layers = [
            {
                name.partition(".")[2]: array
                for name, array in self._weights.items()
                if name.startswith(f"{layer}.")
            }
            for layer in range(self._config.layers)
        ]

    def logits(
        self, tokens: Sequence[int], past: Past | None = None, *, last: int | None = None
    ) -> Array:
        """[tokens, vocabulary]: what follows each of them, computed at once.

        Args:
            tokens: The tokens.
            past: The keys and values of what came before them; gets theirs.
            last: Of how many of the last tokens; None for all.
        """
        config, weights = self._config, self._weights
        past = Past() if past is None else past
        traits = config.traits
        x = weights["embedding"][list(tokens)] * np.float32(traits.embedding_scale)
        start = len(past[0][0]) if past else 0
        far = self._turns(config.rope, len(tokens), start)
        near = (
            far if traits.local_rope is None else self._turns(traits.local_rope, len(tokens), start)
        )
        for layer in range(config.layers):
            own = self._layers[layer]
            turns = near if layer in traits.local else far
            more = self._attention(own, self._norm(x, own["norm"]), turns, past, layer)
            x = x + (self._norm(more, own["after_norm"]) if traits.after_norms else more)
            h = self._norm(x, own["inner_norm"])
            gate = _ACTIVATIONS[config.activation](_affine(h, own, "gate"))
            more = _affine(gate * _affine(h, own, "up"), own, "down")
            x = x + (self._norm(more, own["inner_after_norm"]) if traits.after_norms else more)
        head = weights.get("output", weights["embedding"])
        if last is not None:
            x = x[-last:]
        return _capped(self._norm(x, weights["norm"]) @ head.T, traits.logit_cap)

    def continue_greedily(
        self, tokens: Sequence[int], count: int, ends: set[int]
    ) -> tuple[list[int], float]:
        """Finds the likeliest next token, again and again, up to a token that ends an answer.

        Returns:
            The tokens without that one, and by how much the likeliest was ahead of the next
            one where it was least so.
        """
        found: list[int] = []
        least, past = np.inf, Past()
        following = list(tokens)
        for _ in range(count):
            last = self.logits(following, past, last=1)[0]
            second, first = np.sort(np.partition(last, -2)[-2:])
            least = min(least, float(first - second))
            following = [int(last.argmax())]
            if following[0] in ends:
                break
            found += following
        return found, least

    def _turns(self, rope: Rope, count: int, start: int) -> Array:
        """[count, 1, turned / 2], complex: what turns a pair at each position."""
        half = (rope.turned or self._config.head) // 2
        speeds = rope.base ** (np.arange(half, dtype=np.float64) / -half)
        speeds /= rope.divisors or 1.0
        angles = np.outer(np.arange(start, start + count), speeds)
        return rope.scale * np.exp(1j * angles)[:, None, :]

    def _turned(self, x: Array, turns: Array) -> Array:
        half = turns.shape[-1]
        x, rest = x[..., : 2 * half], x[..., 2 * half :]
        if self._config.interleaved:
            turned = (x[..., ::2] + 1j * x[..., 1::2]) * turns
            pairs = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
        else:
            turned = (x[..., :half] + 1j * x[..., half:]) * turns
            pairs = np.concatenate([turned.real, turned.imag], axis=-1)
        return np.concatenate([pairs.astype(x.dtype), rest], axis=-1)

    def _heads_of(self, own: dict[str, Array], h: Array, name: str) -> Array:
        heads = _affine(h, own, name).reshape(len(h), -1, self._config.head)
        return self._norm(heads, own[f"{name}_norm"]) if self._config.traits.head_norms else heads

    def _attention(
        self, own: dict[str, Array], h: Array, turns: Array, past: Past, layer: int
    ) -> Array:
        config, traits, count = self._config, self._config.traits, len(h)
        asked = self._turned(self._heads_of(own, h, "query"), turns)
        keys = self._turned(self._heads_of(own, h, "key"), turns)
        values = _affine(h, own, "value").reshape(count, -1, config.head)
        if layer < len(past):
            keys = np.concatenate([past[layer][0], keys])
            values = np.concatenate([past[layer][1], values])
        past[layer : layer + 1] = [(keys, values)]
        rows, columns = np.arange(len(keys) - count, len(keys))[:, None], np.arange(len(keys))
        hidden = columns > rows
        if layer in traits.local:
            hidden |= columns <= rows - traits.window
        scale = np.float32(traits.attention_scale or config.head**-0.5)
        out = np.empty_like(asked)
        for head in range(config.heads):
            shared = head * config.kv_heads // config.heads
            scores = asked[:, head] @ keys[:, shared].T * scale
            scores = _capped(scores, traits.attention_cap)
            scores[hidden] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = shares / shares.sum(axis=1, keepdims=True) @ values[:, shared]
        return _affine(out.reshape(count, -1), own, "out")

    def _norm(self, x: Array, weight: Array) -> Array:
        spread = np.square(x).mean(axis=-1, keepdims=True)
        whole = weight + np.float32(self._config.traits.norm_offset)
        return x / np.sqrt(spread + np.float32(self._config.epsilon)) * whole


def _capped(x: Array, cap: float) -> Array:
    return np.tanh(x / np.float32(cap)) * np.float32(cap) if cap else x


def _affine(x: Array, own: dict[str, Array], name: str) -> Array:
    return x @ own[name].T + own.get(f"{name}_bias", np.float32(0))


def _erf(x: Array) -> Array:
    return np.array([[math.erf(each) for each in row] for row in x.tolist()], np.float32)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + _erf(x / np.float32(2**0.5))),
    "gelu_tanh": lambda x: (
        x / 2 * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + 0.044715 * x * x * x)))
    ),
    "relu": lambda x: x * (x > 0),
}


def read_weights(checkpoint: Checkpoint, stay: Collection[str] = ()) -> dict[str, Array]:
    """All tensors in float32, matrices as [out, in], by the names of `Checkpoint.names`.

    Args:
        checkpoint: The model.
        stay: Tensors that stay as a GGUF file stores them: bytes, [out, bytes of in].

    Raises:
        ModelError: A tensor is not there, or one is that the model would leave out.
    """
    kept = {checkpoint.names[ours] for ours in stay}
    read = _read_gguf(checkpoint, kept) if checkpoint.is_gguf else _read_folder(checkpoint)
    checkpoint.check(read)
    return {ours: read[theirs] for ours, theirs in checkpoint.names.items()}


def _read_gguf(checkpoint: Checkpoint, stay: Collection[str]) -> dict[str, Array]:
    from gguf import GGUFReader, dequantize

    return {
        tensor.name: tensor.data
        if tensor.name in stay
        else dequantize(tensor.data, tensor.tensor_type)
        for tensor in GGUFReader(checkpoint.path).tensors
    }


def _read_folder(checkpoint: Checkpoint) -> dict[str, Array]:
    importlib.import_module("ml_dtypes")  # then numpy knows bfloat16
    load_file: Any = importlib.import_module("safetensors.numpy").load_file
    places = tensors_of(checkpoint.path)
    files = {path: load_file(path) for path, _ in places.values()}
    needed = checkpoint.names.values()
    used = {places[name] for name in needed if name in places}
    return {
        name: files[place[0]][place[1]].astype(np.float32)
        for name, place in places.items()
        if name in needed or place not in used
    }
