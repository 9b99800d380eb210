"""The memory of torch's plain tensors as numpy's arrays, without a capsule of DLPack.

A capsule costs ten times as much, which counts where programs move many small tensors. Not by
`Tensor.numpy`, after which torch no longer resizes the storage.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["view_plain"]

_DTYPES = {
    f"torch.{name}": np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


class _Storage:
    """What numpy asks for memory; keeps the storage of a tensor."""

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, storage: Any, interface: dict[str, Any]) -> None:
        self._storage = storage
        self.__array_interface__ = interface


def view_plain(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a tensor as an array of numpy's: the same memory, which lives as long as the array.

    Args:
        value: An array of any library.

    Returns:
        The array; None for all but torch's own tensors that lie in the CPU's memory as they are
        read, have elements, and have a dtype of numpy's. Those that require grad, or are negated
        lazily, are not refused.
    """
    torch = sys.modules.get("torch")
    if type(value) is not getattr(torch, "Tensor", None):
        return None
    try:
        dtype = _DTYPES.get(str(value.dtype))
        plain = value.is_cpu and str(value.layout) == "torch.strided"
        if dtype is None or not plain or value.is_conj() or not value.numel():
            return None
        interface: dict[str, Any] = {
            "version": 3,
            "shape": tuple(value.shape),
            "typestr": dtype.str,
            "data": (value.data_ptr(), False),
        }
        if not value.is_contiguous():
            interface["strides"] = tuple(step * dtype.itemsize for step in value.stride())
        return np.asarray(_Storage(value.untyped_storage(), interface))
    except RuntimeError:
        return None  # torch's, of a tensor without memory of its own, such as one inside vmap
