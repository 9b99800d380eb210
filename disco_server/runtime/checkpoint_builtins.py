"""The functions behind ``session.save`` and ``session.load``.

What differs from worker to worker comes in tables with an entry for each: the bounds of
its part of a tensor, first and last of each axis one after the other, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from disco_client.wire.layout import Bounds
from disco_client.wire.values import Shape, dtype_from_name, dtype_name
from disco_server.modules.checkpoints.index import GENERATION, Entry
from disco_server.modules.checkpoints.saving import Save
from disco_server.modules.checkpoints.stored import StoredCheckpoint
from disco_server.modules.weights.errors import FileError
from disco_server.runtime.context import current_worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.functions import register_func

__all__ = ["read_bounds"]

Array = np.ndarray[Any, Any]
_PAGE = 1024
"""Tensors in one answer, whose size is limited."""


def read_bounds(table: Sequence[Any], worker: int, shape: Sequence[int]) -> Bounds | None:
    """Takes a worker's bounds from a table.

    Raises:
        ArgumentRefused: They are no part of the shape.
    """
    flat = table[worker]
    if flat is None:
        return None
    bounds = tuple(zip(flat[::2], flat[1::2], strict=False))
    inside = all(a <= b <= extent for (a, b), extent in zip(bounds, shape, strict=False))
    if len(flat) != 2 * len(shape) or not inside:
        msg = f"expected the bounds of a part of {list(shape)}, got {flat}"
        raise ArgumentRefused(msg)
    return bounds


# Saving ------------------------------------------------------------------------------


@register_func("runtime.disco._save_ready")
def save_ready(arrays: Sequence[Any]) -> int:
    """Answers where all of these are there; where one is not, this is not executed."""
    return len(arrays)


@register_func("runtime.disco._save_begin")
def save_begin(path: str, generation: str) -> Save:
    """Begins a save; worker 0 makes the folder."""
    if not GENERATION.fullmatch(generation):
        msg = f"expected the name of a generation, got {generation!r}"
        raise ArgumentRefused(msg)
    worker = current_worker()
    save = Save(path, worker.allow_save, generation, worker.worker_id, leads=worker.worker_id == 0)
    worker.audit("checkpoint saved", path, "")
    return save


@register_func("runtime.disco._save_describe")
def save_describe(save: Save, rows: Sequence[dict[str, Any]]) -> None:
    """Adds tensors.

    Args:
        save: The save.
        rows: Name, shape, dtype, layout, and parts: a table.
    """
    _checked(save).add([_entry(row) for row in rows])


@register_func("runtime.disco._save_start")
def save_start(save: Save) -> None:
    """Makes this worker's file."""
    _checked(save).start()


@register_func("runtime.disco._save_write")
def save_write(save: Save, first: int, arrays: Sequence[Any]) -> None:
    """Writes this worker's parts of some tensors.

    Args:
        save: The save.
        first: The number of the first tensor.
        arrays: What this worker has of it and of those behind it.
    """
    arrays_of = current_worker().arrays
    for number, array in enumerate(arrays, first):
        if not _checked(save).has(number):
            continue
        entry = save.entries[number]
        held = array if arrays_of.holds(array) else np.asarray(array)
        if dtype_name(held.dtype) != dtype_name(entry.dtype):
            msg = f"expected {entry.name!r} as {entry.dtype}, got {held.dtype}"
            raise ArgumentRefused(msg)
        if arrays_of.holds(held):
            save.write(number, arrays_of.read_pieces(held))
        else:
            save.write(number, [memoryview(held.tobytes())])


@register_func("runtime.disco._save_finish")
def save_finish(save: Save) -> None:
    """Makes this worker's file durable."""
    _checked(save).finish()


@register_func("runtime.disco._save_commit")
def save_commit(save: Save) -> None:
    """Makes it the checkpoint."""
    _checked(save).commit()


@register_func("runtime.disco._save_close")
def save_close(save: Save) -> None:
    """Ends a save; one that was not committed leaves nothing."""
    _checked(save).close()


def _checked(save: Any) -> Save:
    if not isinstance(save, Save):
        msg = f"expected a save that was begun, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    return save


def _entry(row: dict[str, Any]) -> Entry:
    shape, table = Shape(row["shape"]), row["parts"]
    parts = [(worker, read_bounds(table, worker, shape)) for worker in range(len(table))]
    return Entry(
        row["name"],
        shape,
        dtype_from_name(row["dtype"]),
        cast("dict[str, Any]", row["layout"]),
        tuple((worker, bounds) for worker, bounds in parts if bounds is not None),
    )


# Loading -----------------------------------------------------------------------------


@register_func("runtime.disco._load_open")
def load_open(path: str) -> StoredCheckpoint:
    """Reads the index of a checkpoint."""
    worker = current_worker()
    stored = StoredCheckpoint(path, worker.allow_read)
    worker.audit("checkpoint opened", path, "")
    return stored


@register_func("runtime.disco._load_catalog")
def load_catalog(stored: StoredCheckpoint, first: int) -> dict[str, Any]:
    """What a client must know to say where everything is to lie.

    Args:
        stored: The checkpoint.
        first: The first tensor; at most a page of them is returned.
    """
    entries = _opened(stored).entries[first : first + _PAGE]
    return {
        "fingerprint": stored.fingerprint,
        "total": len(stored.entries),
        "rows": [
            {
                "name": entry.name,
                "shape": Shape(entry.shape),
                "dtype": dtype_name(entry.dtype),
                **_layout_of(stored, entry),
            }
            for entry in entries
        ],
    }


@register_func("runtime.disco._load_check")
def load_check(stored: StoredCheckpoint, fingerprint: str) -> None:
    """Makes sure that this worker sees the checkpoint that worker 0 sees.

    Raises:
        FileError: It sees another one.
    """
    if _opened(stored).fingerprint != fingerprint:
        problem = "it is not the checkpoint that worker 0 sees: was it replaced, or is the folder"
        raise FileError(stored.path, f"{problem} not one that all workers share?")


@register_func("runtime.disco._load_read")
def load_read(stored: StoredCheckpoint, wanted: Sequence[Any]) -> list[Array | None]:
    """Reads this worker's parts of some tensors.

    Args:
        stored: The checkpoint.
        wanted: The number of each, and a table.
    """
    worker, entries = current_worker(), _opened(stored).entries

    def bounds_of(number: int, table: Sequence[Any]) -> tuple[int, Bounds | None]:
        if not 0 <= number < len(entries):
            msg = f"expected one of {len(entries)} tensors, got {number}"
            raise ArgumentRefused(msg)
        return number, read_bounds(table, worker.worker_id, entries[number].shape)

    asked = [bounds_of(number, table) for number, table in wanted]
    found = iter(stored.read([(n, bounds) for n, bounds in asked if bounds is not None]))
    return [None if bounds is None else worker.arrays.from_host(next(found)) for _, bounds in asked]


def _opened(stored: Any) -> StoredCheckpoint:
    if not isinstance(stored, StoredCheckpoint):
        msg = f"expected a checkpoint that was opened, got {type(stored).__name__}"
        raise ArgumentRefused(msg)
    return stored


def _layout_of(stored: StoredCheckpoint, entry: Entry) -> dict[str, Any]:
    """How a distributed tensor lay: shape, names and workers of the mesh, and the placement."""
    mesh, placement = entry.layout.get("mesh"), entry.layout.get("placement")
    fields = cast("dict[str, Any]", mesh) if isinstance(mesh, dict) else {}
    try:
        return {
            "mesh": Shape(fields["shape"]),
            "workers": Shape(fields["workers"]),
            "names": [str(name) for name in fields["names"]],
            "placement": str(placement),
        }
    except (KeyError, TypeError, ValueError):
        problem = f"expected mesh and placement in its layout, got {entry.layout!r:.120}"
        raise FileError(stored.path, problem, tensor=entry.name) from None
