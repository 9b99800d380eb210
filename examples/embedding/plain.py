"""The same model in one process, written for the eye: what the split forward is checked against.

It shares with the split forward the settings, the file and nothing else but the
GELU: no slices, no work space, no pieces, one sentence at a time and therefore
no padding and no mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from embedding.numerics import gelu
from embedding.settings import learn_bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedding.numerics import Floats
    from embedding.settings import ModelSettings

__all__ = ["PlainModel"]


class PlainModel:
    """A whole BERT-style encoder in numpy.

    Args:
        settings: The model's figures.
    """

    def __init__(self, settings: ModelSettings) -> None:
        learn_bfloat16()
        tensors = cast("dict[str, Floats]", load_file(settings.folder / "model.safetensors"))
        self._settings = settings
        self._tensors = {
            name[max(0, name.find("embeddings."), name.find("encoder.")) :]
            .replace(".gamma", ".weight")
            .replace(".beta", ".bias"): tensor
            for name, tensor in tensors.items()
        }

    def embed(self, tokens: Sequence[int]) -> Floats:
        """Embeds one sentence.

        Args:
            tokens: Its token numbers, the special ones included.

        Returns:
            [H], float32, of length 1.
        """
        embeddings = self._tensor("embeddings.word_embeddings.weight")[list(tokens)]
        positions = self._tensor("embeddings.position_embeddings.weight")[: len(tokens)]
        kind = self._tensor("embeddings.token_type_embeddings.weight")[0]
        x = self._norm("embeddings.LayerNorm", embeddings + positions + kind)
        for layer in range(self._settings.layers):
            name = f"encoder.layer.{layer}"
            attended = self._dense(f"{name}.attention.output.dense", self._attention(name, x))
            x = self._norm(f"{name}.attention.output.LayerNorm", x + attended)
            inner = self._dense(f"{name}.intermediate.dense", x)
            gelu(inner)
            fed = self._dense(f"{name}.output.dense", inner)
            x = self._norm(f"{name}.output.LayerNorm", x + fed)
        pooled = x[0] if self._settings.pooling == "cls" else x.mean(axis=0)
        return pooled / np.linalg.norm(pooled)

    def _attention(self, name: str, x: Floats) -> Floats:
        width = self._settings.hidden // self._settings.heads
        query, key, value = (
            self._dense(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value")
        )
        outputs: list[Floats] = []
        for head in range(self._settings.heads):
            own = slice(head * width, (head + 1) * width)
            scores = query[:, own] @ key[:, own].T / np.float32(np.sqrt(width))
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(weights / weights.sum(axis=1, keepdims=True) @ value[:, own])
        return np.concatenate(outputs, axis=1)

    def _dense(self, name: str, x: Floats) -> Floats:
        return x @ self._tensor(f"{name}.weight").T + self._tensor(f"{name}.bias")

    def _norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(self._settings.norm_epsilon))
        return scaled * self._tensor(f"{name}.weight") + self._tensor(f"{name}.bias")

    def _tensor(self, name: str) -> Floats:
        return self._tensors[name].astype(np.float32, copy=False)
