"""The functions behind ``session.checkpoint``; its files are those of ``session.save``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import Shape, dtype_name
from disco_server.modules.checkpoints.index import GENERATION, INDEX
from disco_server.modules.checkpoints.saving import Save
from disco_server.modules.checkpoints.stored import StoredCheckpoint
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import absolute_path, check_allowed
from disco_server.runtime.context import current_worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.functions import register_func
from disco_server.runtime.snapshot import Snapshot, restore

__all__: list[str] = []


@register_func("runtime.disco._snapshot_take")
def snapshot_take(numbers: np.ndarray[Any, Any]) -> Snapshot:
    """Takes hold of what some registers hold."""
    return Snapshot(current_worker(), _host(numbers))


@register_func("runtime.disco._snapshot_kinds")
def snapshot_kinds(taken: Snapshot) -> dict[str, Any]:
    """Says what of it cannot be saved."""
    return _checked(taken).kinds()


@register_func("runtime.disco._snapshot_seal")
def snapshot_seal(taken: Snapshot, made: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Leaves out what is made again, on some worker."""
    _checked(taken).seal({int(number) for number in _host(made)}, set(names))


@register_func("runtime.disco._snapshot_facts")
def snapshot_facts(taken: Snapshot) -> list[Any]:
    """Shape and dtype of each array that this worker will write."""
    return [[Shape(each.shape), dtype_name(each.dtype)] for each in _checked(taken).tensors]


@register_func("runtime.disco._snapshot_write")
def snapshot_write(save: Save, taken: Snapshot, starts: Sequence[int]) -> None:
    """Writes this worker's arrays.

    Args:
        save: A save that was started.
        taken: The snapshot.
        starts: For each worker the number of its first array in the save.
    """
    worker = current_worker()
    if not isinstance(save, Save):
        msg = f"expected a save that was begun, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    for number, array in enumerate(_checked(taken).tensors, starts[worker.worker_id]):
        if save.has(number):
            if worker.arrays.holds(array):
                save.write(number, worker.arrays.read_pieces(array))
            else:
                save.write(number, [memoryview(array.tobytes())])


@register_func("runtime.disco._snapshot_check")
def snapshot_check(path: str) -> str:
    """Makes sure that a checkpoint can be read; returns what tells it from others."""
    return StoredCheckpoint(path, current_worker().allow_read).fingerprint


@register_func("runtime.disco._snapshot_restore")
def snapshot_restore(path: str, fingerprint: str) -> None:
    """Puts into the registers what a checkpoint has of this worker.

    Raises:
        FileError: It is another checkpoint, or a file of it is not as it was.
    """
    worker = current_worker()
    stored = StoredCheckpoint(path, worker.allow_read)
    worker.audit("checkpoint opened", path, "")
    if stored.fingerprint != fingerprint:
        raise FileError(stored.path, "expected the checkpoint of this session, it was replaced")
    mine = f"{worker.worker_id}/"
    tensors: list[Any] = []
    for number, entry in enumerate(stored.entries):
        if entry.name.startswith(mine):
            bounds = tuple((0, extent) for extent in entry.shape)
            (array,) = stored.read([(number, bounds)])
            tensors.append(worker.arrays.from_host(array) if tensors else array)
    restore(worker, tensors)


@register_func("runtime.disco._snapshot_remove")
def snapshot_remove(path: str) -> None:
    """Removes a checkpoint that is of no use any more; worker 0 does."""
    worker = current_worker()
    where = absolute_path(path)
    check_allowed(where, worker.allow_save, write=True)
    if worker.worker_id or not (where / INDEX).is_file():
        return
    (where / INDEX).unlink(missing_ok=True)
    for folder in where.iterdir():
        if GENERATION.fullmatch(folder.name) and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
    if not any(where.iterdir()):
        where.rmdir()


def _host(array: Any) -> np.ndarray[Any, Any]:
    arrays = current_worker().arrays
    return arrays.to_host(array) if not arrays.on_host and arrays.holds(array) else array


def _checked(taken: Any) -> Snapshot:
    if not isinstance(taken, Snapshot):
        msg = f"expected a snapshot, got {type(taken).__name__}"
        raise ArgumentRefused(msg)
    return taken
