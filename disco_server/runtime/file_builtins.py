"""The functions behind distributed tensors that workers read from files by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import Shape
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.tensor_files import TensorFile, open_npy, open_safetensors
from disco_server.runtime.checkpoint_builtins import read_bounds
from disco_server.runtime.context import current_worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.functions import register_func

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@register_func("runtime.disco._file_open")
def file_open(kind: str, path: str, name: str, readers: Sequence[int]) -> TensorFile | None:
    """Finds a tensor in a file.

    Args:
        kind: "safetensors" or "npy".
        path: The file.
        name: The tensor's name, where files have several.
        readers: The workers that read of it; for the others it need not be there.
    """
    if current_worker().worker_id not in readers:
        return None
    worker = current_worker()
    if kind == "npy":
        found = open_npy(path, worker.allow_read)
    elif kind == "safetensors":
        found = open_safetensors(path, name, worker.allow_read)
    else:
        msg = f"expected 'safetensors' or 'npy', got {kind!r}"
        raise ArgumentRefused(msg)
    worker.audit("file opened", path, "")
    return found


@register_func("runtime.disco._file_facts")
def file_facts(file: TensorFile | None) -> list[Any] | None:
    """The shape and the dtype of the tensor."""
    if file is None:
        return None
    return [Shape(_checked(file).shape), file.dtype]


@register_func("runtime.disco._file_read")
def file_read(
    file: TensorFile | None, shape: Shape, dtype: str, table: Sequence[Any]
) -> Array | None:
    """Reads this worker's part.

    Args:
        file: The file.
        shape: What the first reader's file says.
        dtype: The same.
        table: For each worker the bounds of its part, or None.

    Raises:
        FileError: This worker's file says otherwise.
    """
    worker = current_worker()
    if file is None:
        return None
    if (_checked(file).shape, file.dtype) != (tuple(shape), dtype):
        problem = f"expected {dtype}{list(shape)}, as another worker sees, got {file.dtype}"
        raise FileError(file.path, f"{problem}{list(file.shape)}")
    bounds = read_bounds(table, worker.worker_id, file.shape)
    if bounds is None:
        return None
    return worker.arrays.from_host(file.read(bounds, worker.allow_read))


def _checked(file: Any) -> TensorFile:
    if not isinstance(file, TensorFile):
        msg = f"expected a tensor's file that was opened, got {type(file).__name__}"
        raise ArgumentRefused(msg)
    return file
