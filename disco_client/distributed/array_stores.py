"""``session.save(..., format=...)``: the workers write a store of arrays for other programs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disco_client.bulk_io import UnderWay, batches, progress_bar, whole_path
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.placement import DTensorStructInfo
from disco_client.distributed.redistribute import all_bounds, first_places, per_worker
from disco_client.distributed.storage import await_values, check_tensors, lying
from disco_client.errors import RemoteError, SessionError
from disco_client.saving import check_no_saving
from disco_client.telemetry.spans import spanned
from disco_client.wire.array_stores import (
    check_dtype,
    check_format,
    check_names,
    chunk_shape,
    whole_chunks,
)
from disco_client.wire.partition import shape_within
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore
    from disco_client.wire.partition import Bounds

__all__ = ["save_arrays"]

_PAGE_PARTS = 16384
"""Parts that one command describes."""


@dataclass(frozen=True, slots=True)
class _Array:
    """A tensor that is saved.

    Attributes:
        tensor: The tensor, of whole values.
        chunks: The shape of a chunk.
        parts: What each worker writes of it; a copy is written by the first worker that has it.
    """

    tensor: DTensor
    chunks: tuple[int, ...]
    parts: Mapping[int, Bounds]

    @staticmethod
    def of(tensor: DTensor) -> _Array:
        """Chooses the chunks of a tensor."""
        info: DTensorStructInfo = tensor.info
        bounds = {
            info.device_mesh.device_ids[place]: info.bounds(place) for place in first_places(info)
        }
        largest = max(map(shape_within, bounds.values()))
        return _Array(tensor, chunk_shape(largest, tensor.dtype.itemsize), bounds)

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return self.tensor.size * self.tensor.dtype.itemsize

    def row(self, name: str, num_workers: int) -> dict[str, object]:
        """What the workers need to know of it."""
        info = self.tensor.info
        places, every = set(first_places(info)), all_bounds(info)
        mesh = info.device_mesh
        parts = [every[place] if place in places else None for place in range(mesh.size)]
        return {
            "name": name,
            "shape": info.tensor_sinfo.shape,
            "dtype": dtype_name(info.tensor_sinfo.dtype),
            "chunks": Shape(self.chunks),
            "parts": per_worker(mesh, num_workers, parts),
        }

    def takers_of_turns(self, form: str) -> set[int]:
        """The workers that write some of it while no other one does."""
        shape = self.tensor.shape
        return {
            worker
            for worker, part in self.parts.items()
            if all(shape_within(part))
            and not (form == "zarr" and whole_chunks(part, self.chunks, shape) == part)
        }


@spanned("disco.save")
def save_arrays(
    core: SessionCore,
    path: object,
    engine: Computing,
    tensors: Mapping[str, DTensor],
    form: str,
    *,
    progress: bool | None,
) -> None:
    """Saves distributed tensors as a store of arrays; see ``Session.save``."""
    where = whole_path(path)
    check_tensors(engine, tensors)
    check_names(check_format(form), tensors)
    for name, tensor in tensors.items():
        check_dtype(form, name, dtype_name(tensor.dtype))
    check_no_saving(core)
    core.sync()
    whole = [lying(tensor, tensor.placement.plain()) for tensor in tensors.values()]
    await_values(core, whole)
    arrays = {name: _Array.of(tensor) for name, tensor in zip(tensors, whole, strict=True)}
    begun = _store(core, "begin", where, form, secrets.token_hex(8))
    try:
        core.sync()
        _describe(core, begun, arrays)
        _write(core, begun, where, arrays, form, progress)
        _store(core, "commit", begun)
        core.sync()
        _store(core, "close", begun)
        core.sync()
    except BaseException as error:
        _give_up(core, begun, wait=isinstance(error, RemoteError))
        raise


def _store(core: SessionCore, step: str, *args: object) -> DRef:
    return core.call_now(f"runtime.disco._store_{step}", *args)


def _give_up(core: SessionCore, begun: DRef, *, wait: bool) -> None:
    """Removes what was written, where that can still be done."""
    if wait:
        # Else worker 0 would remove it while another one still writes there.
        with suppress(RemoteError, SessionError):
            core.sync()
    with suppress(RemoteError, SessionError):
        _store(core, "close", begun)
        if wait:
            core.sync()


def _describe(core: SessionCore, begun: DRef, arrays: Mapping[str, _Array]) -> None:
    each = max(1, _PAGE_PARTS // core.num_workers)
    rows = [array.row(name, core.num_workers) for name, array in arrays.items()]
    for first in range(0, len(rows), each):
        _store(core, "describe", begun, rows[first : first + each])
    _store(core, "start", begun)
    core.sync()


def _write(
    core: SessionCore,
    begun: DRef,
    path: str,
    arrays: Mapping[str, _Array],
    form: str,
    progress: bool | None,
) -> None:
    held = list(arrays.values())
    largest = [max(_part_bytes(array, part) for part in array.parts.values()) for array in held]
    turns = {worker for array in held for worker in array.takers_of_turns(form)}
    # All at once what nobody shares, which only Zarr has, and then one worker after the other.
    passes = [*([-1] if form == "zarr" else []), *sorted(turns)]
    total = sum(array.nbytes for array in held)
    with (
        progress_bar(core, "save", path, total, progress) as bar,
        UnderWay(core, bar.update) as under_way,
    ):
        for done, turn in enumerate(passes):
            for some in batches(largest):
                refs = [held[number].tensor.ref for number in some]
                _store(core, "write", begun, some.start, refs, turn)
                written = sum(held[number].nbytes for number in some)
                under_way.add(written * (done + 1) // len(passes) - written * done // len(passes))
            core.sync()


def _part_bytes(array: _Array, part: Bounds) -> int:
    count = array.tensor.dtype.itemsize
    for extent in shape_within(part):
        count *= extent
    return count
