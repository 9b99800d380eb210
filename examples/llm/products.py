"""Products with a matrix of weights, as a worker computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm.blocks import Blocks

__all__ = ["Matrix", "affine", "matrix", "nbytes_of", "product"]

Array = np.ndarray[Any, Any]
Matrix = Array | Blocks | tuple[Any, ...]
"""A matrix of [in, out]: float32, or blocks, or several of these side by side."""


def matrix(parts: Sequence[tuple[Array, str]]) -> Matrix:
    """A matrix as it is multiplied.

    Args:
        parts: Matrices whose rows follow each other, each as it is stored: [out, in], float32, or
            [out, bytes of in] of blocks; with the format of these blocks (see
            `llm.blocks.FORMATS`), empty for float32.
    """
    forms = {form for _, form in parts}
    if len(forms) > 1:
        return tuple(matrix([part]) for part in parts)
    stored = parts[0][0] if len(parts) == 1 else np.concatenate([part for part, _ in parts])
    form = forms.pop()
    # BLAS multiplies a matrix of [in, out] by few rows up to three times as fast.
    return Blocks.read(stored, form) if form else np.ascontiguousarray(stored.T)


def nbytes_of(weight: Matrix) -> int:
    """The bytes that a matrix takes."""
    return sum(map(nbytes_of, weight)) if isinstance(weight, tuple) else weight.nbytes


def affine(rows: Array, own: dict[str, Any], name: str) -> Array:
    """[rows, out]: rows times a layer's matrix, and its bias where it has one."""
    found = product(rows, own[name])
    bias = own.get(f"{name}_bias")
    if bias is not None:
        found += bias
    return found


def product(rows: Array, weight: Matrix) -> Array:
    """[rows, out]: rows times a matrix.

    OpenBLAS copies the matrix before a product of more than one row, unless the product is a
    small one; for a few rows that costs more than the rest. So these are made of small ones.
    """
    if isinstance(weight, Blocks):
        return weight.product(rows)
    if isinstance(weight, tuple):
        return np.concatenate([product(rows, part) for part in weight], axis=1)
    count, depth = rows.shape
    if not 1 < count <= _FEW or count * weight.size <= _SMALL:
        return rows @ weight
    found = np.empty((count, weight.shape[1]), np.float32)
    width = max(_SMALL // (count * depth) // _LANES, 1) * _LANES
    for first in range(0, weight.shape[1], width):
        columns = slice(first, first + width)
        np.matmul(rows, weight[:, columns], out=found[:, columns])
    return found


_FEW = 8
_SMALL = 1_000_000
"""Multiplications of a product that OpenBLAS takes for small (`gemm_small_matrix_permit`)."""
_LANES = 16
"""Numbers of float32 in the widest registers."""
