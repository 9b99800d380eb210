"""Tensors of files that are several matrices, whose rows follow each other.

Phi's files have query, key and value as one tensor, and gate and up as another. A worker is given
its rows of each matrix in that order. Other files have each matrix as a tensor of its own; workers
multiply by all of them at once, as if they were one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FUSED", "fuse", "join_biases", "unfuse"]

Array = np.ndarray[Any, Any]

FUSED = {"query_key_value": ("query", "key", "value"), "gate_up": ("gate", "up")}
"""Our names of the tensors, and of their matrices."""


def unfuse(weights: Mapping[str, Array], rows: Mapping[str, int]) -> dict[str, Array]:
    """Cuts what is fused.

    Args:
        weights: By the names of `llm.config.Checkpoint.names`.
        rows: How many rows each matrix of a layer has there.

    Returns:
        All of them, with a view for each matrix in place of a fused tensor.
    """
    found: dict[str, Array] = {}
    for name, array in weights.items():
        layer, _, own = name.rpartition(".")
        at = 0
        for part in FUSED.get(own, ()):
            found[f"{layer}.{part}"] = array[at : at + rows[part]]
            at += rows[part]
        if own not in FUSED:
            found[name] = array
    return found


def fuse(names: Iterable[str]) -> dict[str, list[str]]:
    """Which tensors are multiplied as one.

    Args:
        names: Of `llm.config.Checkpoint.names`, biases among them.

    Returns:
        Each tensor's name, or the name of a fused one, with the names of its parts in their order.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        layer, dot, own = name.rpartition(".")
        base = own.removesuffix("_bias")
        fused = next((whole for whole, parts in FUSED.items() if base in parts), base)
        found.setdefault(f"{layer}{dot}{fused}{own[len(base) :]}", []).append(name)
    for name, parts in found.items():
        order = FUSED.get(name.rpartition(".")[2].removesuffix("_bias"), ())
        if len(parts) > 1:
            parts.sort(key=lambda part: order.index(part.rpartition(".")[2].removesuffix("_bias")))
    return found


def join_biases(name: str, weights: Mapping[str, Array], rows: Mapping[str, int]) -> Array:
    """[rows]: a bias, or those of the parts of a fused tensor; 0 for parts that have none.

    Args:
        name: As `fuse` has it, such as ``3.query_key_value_bias``.
        weights: By the names of `llm.config.Checkpoint.names`.
        rows: How many rows each matrix of a layer has there.
    """
    if name in weights:
        return weights[name]
    layer, _, own = name.rpartition(".")
    parts = [(part, weights.get(f"{layer}.{part}_bias")) for part in FUSED[own[: -len("_bias")]]]
    return np.concatenate(
        [np.zeros(rows[part], np.float32) if bias is None else bias for part, bias in parts]
    )
