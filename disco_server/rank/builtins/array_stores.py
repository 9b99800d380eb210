"""The functions behind ``session.save(..., format=...)``, which saves a store of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import dtype_from_name, dtype_name, extents_of
from disco_server.devices.foreign import native
from disco_server.rank.builtins.checkpoints import read_bounds
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import register_func
from disco_server.rank.worker import current_worker
from disco_server.storage.array_saves import ArraySave, SavedArray, begin_save

__all__: list[str] = []


@register_func("runtime.disco._store_begin")
def store_begin(path: str, form: str, token: str) -> ArraySave:
    """Begins a save; worker 0 leads it."""
    worker = current_worker()
    save = begin_save(form, path, worker.allow_save, token, leads=worker.worker_id == 0)
    if save is None:
        msg = f"expected a format of arrays and a token, got {form!r} and {token!r}"
        raise ArgumentRefused(msg)
    worker.audit("arrays saved", path, "")
    return save


@register_func("runtime.disco._store_describe")
def store_describe(save: ArraySave, rows: Sequence[dict[str, Any]]) -> None:
    """Adds arrays.

    Args:
        save: The save.
        rows: Name, shape, dtype, chunks, and parts: for each worker its bounds, or None.
    """
    _checked(save).add([_array(row) for row in rows])


def _array(row: dict[str, Any]) -> SavedArray:
    shape, chunks = extents_of(row["shape"]), extents_of(row["chunks"])
    if len(chunks) != len(shape) or not all(chunks):
        msg = f"expected the extents of chunks of {list(shape)}, got {list(chunks)}"
        raise ArgumentRefused(msg)
    part = read_bounds(row["parts"], current_worker().worker_id, shape)
    return SavedArray(row["name"], shape, dtype_from_name(row["dtype"]), chunks, part)


@register_func("runtime.disco._store_start")
def store_start(save: ArraySave) -> None:
    """Makes the store; worker 0 does."""
    _checked(save).start()


@register_func("runtime.disco._store_write")
def store_write(save: ArraySave, first: int, arrays: Sequence[Any], turn: int) -> None:
    """Writes this worker's parts of some arrays.

    Args:
        save: The save.
        first: The number of the first array.
        arrays: What this worker has of it and of those behind it.
        turn: The worker that writes what others share chunks with; -1 while all write the rest.
    """
    worker, store = current_worker(), _checked(save)
    if turn not in (-1, worker.worker_id):
        return
    for number, array in enumerate(arrays, first):
        if not 0 <= number < len(store.arrays):
            msg = f"expected one of {len(store.arrays)} arrays, got {number}"
            raise ArgumentRefused(msg)
        entry = store.arrays[number]
        if entry.part is None:
            continue
        held = native(array)
        host = worker.arrays.to_host(held) if worker.arrays.holds(held) else np.asarray(held)
        extents = tuple(stop - start for start, stop in entry.part)
        if (host.shape, dtype_name(host.dtype)) != (extents, dtype_name(entry.dtype)):
            expected = f"expected {entry.name!r} as {entry.dtype}{list(extents)}"
            msg = f"{expected}, got {host.dtype}{list(host.shape)}"
            raise ArgumentRefused(msg)
        write = store.write if turn < 0 else store.write_shared
        write(number, np.require(host, requirements="C"))


@register_func("runtime.disco._store_commit")
def store_commit(save: ArraySave) -> None:
    """Puts the store in its place; worker 0 does."""
    _checked(save).commit()


@register_func("runtime.disco._store_close")
def store_close(save: ArraySave) -> None:
    """Ends a save; one that was not committed leaves nothing."""
    _checked(save).close()


def _checked(save: Any) -> ArraySave:
    if not isinstance(save, ArraySave):
        msg = f"expected a save of arrays that was begun, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    return save
