"""Tensors of files that are several matrices, whose rows follow each other.

Phi's files have query, key and value as one tensor, and gate and up as another. A worker is given
its rows of each matrix in that order, which are one array to it until it is cut here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FUSED", "unfuse"]

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
