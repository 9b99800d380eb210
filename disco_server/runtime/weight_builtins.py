"""The functions behind ``session.load_weights``: headers first, then parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_client.wire.splits import divide
from disco_client.wire.values import Shape
from disco_server.modules.weights.checkpoint import Checkpoint, Part, open_checkpoint
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.records import Record, find_dtype
from disco_server.runtime.context import current_worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.functions import register_func

__all__: list[str] = []

Array = np.ndarray[Any, Any]
_PAGE = 2048
"""Rows of the catalog in one answer, whose size is limited."""


@register_func("runtime.disco._weights_open")
def weights_open(path: str) -> Checkpoint:
    """Reads the headers of a model's files."""
    worker = current_worker()
    checkpoint = open_checkpoint(path, worker.allow_read)
    worker.audit("weights opened", path, "")
    return checkpoint


@register_func("runtime.disco._weights_catalog")
def weights_catalog(checkpoint: Checkpoint, first: int) -> dict[str, Any]:
    """What a client must know to plan: one column for each fact, one row a tensor.

    Args:
        checkpoint: The files.
        first: The first row; at most a page of them is returned.
    """
    records = _checked(checkpoint).records[first : first + _PAGE]
    return {
        "fingerprint": checkpoint.fingerprint,
        "total": len(checkpoint.records),
        "names": [record.name for record in records],
        "shapes": [Shape(record.shape) for record in records],
        "dtypes": [record.dtype for record in records],
        "stored": [record.stored for record in records],
        "nbytes": Shape(record.nbytes for record in records),
    }


@register_func("runtime.disco._weights_check")
def weights_check(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Makes sure that this worker's files hold what those of worker 0 hold.

    Raises:
        FileError: They differ.
    """
    if _checked(checkpoint).fingerprint != fingerprint:
        problem = "the names, shapes or dtypes of its tensors are not those on worker 0's node"
        raise FileError(checkpoint.path, problem)


@register_func("runtime.disco._weights_read")
def weights_read(
    checkpoint: Checkpoint, wanted: Sequence[Shape], dtype: str, in_group: Any
) -> list[Array]:
    """Reads this worker's parts of some tensors.

    Args:
        checkpoint: Where they are.
        wanted: For each tensor its position in the catalog; where it is split, then
            the axis and the extents of its fused parts.
        dtype: What floating-point tensors become; empty for what they are.
        in_group: Whether each group has a full copy.
    """
    worker = current_worker()
    count = worker.group_size if in_group else worker.num_workers
    records = _checked(checkpoint).records
    if dtype and find_dtype(dtype) is None:
        msg = f"expected the name of a dtype, got {dtype!r}"
        raise ArgumentRefused(msg)

    def part_of(request: Shape) -> tuple[Record, Part | None]:
        if not request or request[0] >= len(records):
            msg = f"expected one of {len(records)} tensors, got {request}"
            raise ArgumentRefused(msg)
        record = records[request[0]]
        if len(request) == 1:
            return record, None
        axis, sizes = request[1], request[2:]
        if axis >= len(record.shape) or sum(sizes) != record.shape[axis]:
            msg = f"axis {axis} in parts {sizes} does not fit {record.name!r} {record.shape}"
            raise ArgumentRefused(msg)
        return record, (axis, divide(sizes, count, worker.worker_id % count))

    found = checkpoint.read([part_of(request) for request in wanted], dtype)
    return [worker.arrays.from_host(array) for array in found]


@register_func("runtime.disco._weights_item")
def weights_item(arrays: list[Array], index: int) -> Array:
    """One array of those that were read together."""
    return arrays[index]


def _checked(value: Any) -> Checkpoint:
    if not isinstance(value, Checkpoint):
        msg = f"expected weights that were opened, got {type(value).__name__}"
        raise ArgumentRefused(msg)
    return value
