"""``session.save`` and ``session.load``: the workers write and read their own parts."""

from __future__ import annotations

import fnmatch
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from disco_client.bulk_io import UnderWay, batches, progress_bar, whole_path
from disco_client.call_sites import call_site
from disco_client.distributed.dtensor import Computing, DTensor, Origin
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import DTensorStructInfo, Placement, TensorStructInfo
from disco_client.distributed.redistribute import all_bounds, first_places, per_worker
from disco_client.errors import ConfigError, ForeignReference, RemoteError, SessionError
from disco_client.saving import Saving, Savings, check_memory, check_no_saving
from disco_client.telemetry.spans import spanned
from disco_client.text import many
from disco_client.wire.partition import shape_within
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore

__all__ = ["LoadChoice", "Stored", "await_values", "check_tensors", "load", "lying", "save"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint.

    Attributes:
        name: Its name.
        info: Its shape, dtype, mesh and placement when it was saved.
    """

    name: str
    info: DTensorStructInfo

    @staticmethod
    def read(path: str, row: Mapping[str, Any]) -> Stored:
        """Parses what a worker reports of a tensor.

        Raises:
            ConfigError: It is inconsistent, or its dtype is not known here.
        """
        try:
            mesh = DeviceMesh(row["mesh"], _as_range(row["workers"]), row["names"])
            tensor = TensorStructInfo(row["shape"], row["dtype"])
            return Stored(row["name"], DTensorStructInfo(tensor, mesh, row["placement"]))
        except ConfigError as error:
            raise ConfigError(f"{path}, tensor {row['name']!r}: {error}") from None


class LoadChoice:
    """What a program specifies about the placements of loaded tensors.

    Args:
        mesh: On which mesh; None for the one on which each was saved.
        placements: Their placements: one for all, or by names and patterns. None,
            and tensors that no pattern matches, for as they were saved.
        num_workers: Of the session.

    Raises:
        TypeError: These are no mesh or no placements.
        ConfigError: The session lacks workers of the mesh, or a text is no placement.
    """

    def __init__(
        self,
        mesh: DeviceMesh | None,
        placements: Placement | str | Mapping[str, Placement | str] | None,
        num_workers: int,
    ) -> None:
        if mesh is not None and not isinstance(mesh, DeviceMesh):
            msg = f"expected a DeviceMesh for mesh, got {mesh!r}"
            raise TypeError(msg)
        self._mesh = mesh
        self._num_workers = num_workers
        by_name = placements if isinstance(placements, Mapping) else {"*": placements}
        self._by_name = {
            name: None if each is None else _placement(each) for name, each in by_name.items()
        }
        self._patterns = isinstance(placements, Mapping)
        if mesh is not None:
            self._check(mesh, "mesh")

    def decide(self, stored: Sequence[Stored]) -> dict[str, DTensorStructInfo]:
        """Decides the placement of each tensor.

        Raises:
            ConfigError: Something does not fit, or a pattern matches nothing.
        """
        names = [each.name for each in stored]
        for pattern in self._by_name if self._patterns else ():
            if pattern not in names and not fnmatch.filter(names, pattern):
                raise ConfigError(
                    f"placements has {pattern!r}, and the checkpoint no such tensor; it has"
                    f" {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}"  # noqa: PLR2004
                )
        return {each.name: self._target(each) for each in stored}

    def _target(self, stored: Stored) -> DTensorStructInfo:
        saved = stored.info
        mesh = saved.device_mesh if self._mesh is None else self._mesh
        if self._mesh is None:
            self._check(mesh, f"{stored.name!r} was saved on")
        placement = self._placement_of(stored.name)
        if placement is None:
            placement = saved.placement
            if mesh.shape != saved.device_mesh.shape:
                raise ConfigError(
                    f"{stored.name!r} was saved as {str(placement)!r} on a mesh of shape"
                    f" {tuple(saved.device_mesh.shape)}, and this mesh has shape"
                    f" {tuple(mesh.shape)}: say how it is to lie there, such as placements="
                    f"{', '.join(['R'] * mesh.ndim)!r} or {{{stored.name!r}: 'S[0]', ...}}"
                )
        try:
            return DTensorStructInfo(saved.tensor_sinfo, mesh, placement)
        except ConfigError as error:
            raise ConfigError(f"{stored.name!r}: {error}") from None

    def _placement_of(self, name: str) -> Placement | None:
        for pattern, placement in self._by_name.items():
            if pattern == name or fnmatch.fnmatchcase(name, pattern):
                return placement
        return None

    def _check(self, mesh: DeviceMesh, what: str) -> None:
        if max(mesh.device_ids) >= self._num_workers:
            raise ConfigError(
                f"{what} {mesh!r}, and the session has {many(self._num_workers, 'worker')}; give a"
                f" mesh of those, such as mesh=session.mesh(({self._num_workers},))"
            )


def _placement(value: object) -> Placement:
    if isinstance(value, str):
        return Placement.from_text(value)
    if not isinstance(value, Placement):
        msg = f"expected a placement such as 'S[0]', or a dict of such by name, got {value!r}"
        raise TypeError(msg)
    return value


def _as_range(workers: Sequence[int]) -> Sequence[int] | range:
    found = range(workers[0], workers[0] + len(workers)) if workers else range(0)
    return found if list(found) == list(workers) else cast("Sequence[int]", list(workers))


_PAGE_PARTS = 16384
"""Parts that one command describes."""

_PAGE_TENSORS = 1024

_RESERVED = "__metadata__"
"""A name that no tensor of a safetensors file can have."""


# Saving ------------------------------------------------------------------------------


@spanned("disco.save")
def save(
    core: SessionCore,
    path: object,
    engine: Computing,
    tensors: Mapping[str, DTensor],
    *,
    wait: bool,
    progress: bool | None,
) -> Saving | None:
    """Saves distributed tensors; see ``Session.save``."""
    where = whole_path(path)
    check_tensors(engine, tensors)
    check_no_saving(core)
    # Raises earlier failures before anything is written; and a capture is refused here.
    core.sync()
    whole = {name: lying(tensor, tensor.placement.plain()) for name, tensor in tensors.items()}
    await_values(core, list(whole.values()))
    if not wait:
        check_memory(core, _bytes_of_workers(whole.values()))
    generation = f"generation-{secrets.token_hex(8)}"
    # Workers of before know no third argument, and need none for this.
    begun = _save(core, "begin", where, generation, *([] if wait else [True]))
    try:
        core.sync()
        _describe(core, begun, tensors, whole)
        _write(core, begun, where, whole, progress if wait else False)
        if not wait:
            total = sum(tensor.size * tensor.dtype.itemsize for tensor in whole.values())
            saving = Saving(core, where, begun, total, call_site(core.log.scope()), progress)
            return core.part(Savings).begin(saving)
        _save(core, "commit", begun)
        _save(core, "close", begun)
        core.sync()
    except BaseException as error:
        _give_up(core, begun, wait=isinstance(error, RemoteError))
        raise
    return None


def _bytes_of_workers(tensors: Iterable[DTensor]) -> dict[int, int]:
    """How many bytes each worker saves."""
    needed: dict[int, int] = {}
    for tensor in tensors:
        info = tensor.info
        for place in first_places(info):
            worker = info.device_mesh.device_ids[place]
            count = tensor.dtype.itemsize * math.prod(shape_within(info.bounds(place)))
            needed[worker] = needed.get(worker, 0) + count
    return needed


def await_values(core: SessionCore, tensors: Sequence[DTensor]) -> None:
    """Waits until tensors are computed; raises why one could not be, also if a call has before."""
    for first in range(0, len(tensors), _PAGE_TENSORS):
        refs = [tensor.ref for tensor in tensors[first : first + _PAGE_TENSORS]]
        ready = _save(core, "ready", refs)
        core.get_all(ready, range(core.num_workers))


def _save(core: SessionCore, step: str, *args: object) -> DRef:
    return core.call_now(f"runtime.disco._save_{step}", *args)


def check_tensors(engine: Computing, tensors: object) -> None:
    """Refuses what is no mapping of names to distributed tensors of this session."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise ConfigError(f"expected tensors by name, such as {{'w': w}}, got {tensors!r}")
    for name, tensor in cast("Mapping[object, object]", tensors).items():
        if not isinstance(name, str) or not name or name == _RESERVED:
            raise ConfigError(f"expected the name of a tensor, got {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"expected the name of a tensor as text, got {error}") from None
        if not isinstance(tensor, DTensor):
            raise ConfigError(
                f"expected a distributed tensor for {name!r}, got {type(tensor).__name__};"
                " session.distribute makes one"
            )
        if not tensor._belongs_to(engine):
            raise ForeignReference(f"{name!r} is a tensor of another session")


def lying(tensor: DTensor, placement: Placement) -> DTensor:
    """A tensor as it is to lie: itself if it does, where nobody else will have it."""
    return tensor if tensor.placement == placement else tensor.redistribute(placement)


def _describe(
    core: SessionCore,
    begun: DRef,
    tensors: Mapping[str, DTensor],
    written: Mapping[str, DTensor],
) -> None:
    """Sends the workers what is saved, and lets them make their files."""
    each = max(1, _PAGE_PARTS // core.num_workers)
    rows = [
        _row(name, tensor.info, tensors[name].placement.combined(), core.num_workers)
        for name, tensor in written.items()
    ]
    for first in range(0, len(rows), each):
        _save(core, "describe", begun, rows[first : first + each])
    _save(core, "start", begun)
    core.sync()


def _row(
    name: str, info: DTensorStructInfo, placement: Placement, num_workers: int
) -> dict[str, object]:
    mesh, tensor = info.device_mesh, info.tensor_sinfo
    first, bounds = set(first_places(info)), all_bounds(info)
    parts = [bounds[place] if place in first else None for place in range(mesh.size)]
    return {
        "name": name,
        "shape": tensor.shape,
        "dtype": dtype_name(tensor.dtype),
        "layout": {
            "mesh": {
                "shape": mesh.shape,
                "names": list(mesh.names),
                "workers": Shape(mesh.device_ids),
            },
            "placement": str(placement),
        },
        "parts": per_worker(mesh, num_workers, parts),
    }


def _write(
    core: SessionCore,
    begun: DRef,
    path: str,
    tensors: Mapping[str, DTensor],
    progress: bool | None,
) -> None:
    # The order in a file: some of them can only be written from the beginning to the end.
    order = sorted(enumerate(tensors.values()), key=lambda each: -each[1].dtype.itemsize)
    held = [tensor for _, tensor in order]
    infos = [tensor.info for tensor in held]
    total = sum(tensor.size * tensor.dtype.itemsize for tensor in held)
    with (
        progress_bar(core, "save", path, total, progress) as bar,
        UnderWay(core, bar.update) as under_way,
    ):
        for some in batches(list(map(_largest_part, infos))):
            refs = [held[number].ref for number in some]
            _save(core, "write", begun, Shape(order[at][0] for at in some), refs)
            under_way.add(sum(held[n].size * held[n].dtype.itemsize for n in some))
        _save(core, "finish", begun)
        under_way.add(0)


def _give_up(core: SessionCore, begun: DRef, *, wait: bool) -> None:
    """Removes what was written, where that can still be done."""
    with suppress(RemoteError, SessionError):
        _save(core, "close", begun)
        if wait:
            core.sync()


def _largest_part(info: DTensorStructInfo) -> int:
    # The first worker's part is never smaller than another one's.
    count = info.tensor_sinfo.dtype.itemsize
    for extent in info.local_shape(0):
        count *= extent
    return count


# Loading -----------------------------------------------------------------------------


@spanned("disco.load")
def load(
    core: SessionCore,
    path: object,
    engine: Computing,
    mesh: DeviceMesh | None,
    placements: Placement | str | Mapping[str, Placement | str] | None,
    *,
    progress: bool | None,
) -> dict[str, DTensor]:
    """Loads distributed tensors; see ``Session.load``."""
    where = whole_path(path)
    choice = LoadChoice(mesh, placements, core.num_workers)
    core.sync()
    opened = core.call_now("runtime.disco._load_open", where)
    core.sync()
    stored, fingerprint = _fetch_catalog(core, where, opened)
    targets = choice.decide(stored)
    core.call_now("runtime.disco._load_check", opened, fingerprint)
    core.sync()
    return _read(core, engine, where, opened, targets, progress)


def _fetch_catalog(core: SessionCore, path: str, opened: DRef) -> tuple[list[Stored], str]:
    """Asks worker 0 for the catalog; returns it and the checkpoint's fingerprint."""
    rows: list[Stored] = []
    while True:
        page = core.call_now("runtime.disco._load_catalog", opened, len(rows))
        facts: dict[str, Any] = page.debug_get_from_remote(0)
        rows += [Stored.read(path, row) for row in facts["rows"]]
        if len(rows) == facts["total"] or not facts["rows"]:
            return rows, facts["fingerprint"]


def _read(
    core: SessionCore,
    engine: Computing,
    path: str,
    opened: DRef,
    targets: Mapping[str, DTensorStructInfo],
    progress: bool | None,
) -> dict[str, DTensor]:
    # Partial values and given parts are made on the workers.
    infos = [
        DTensorStructInfo(info.tensor_sinfo, info.device_mesh, info.placement.plain())
        for info in targets.values()
    ]
    tables = [per_worker(i.device_mesh, core.num_workers, all_bounds(i)) for i in infos]
    sizes = [info.tensor_sinfo.nbytes for info in infos]
    names, call = list(targets), core.call_now
    loaded: dict[str, DTensor] = {}
    with (
        progress_bar(core, "load", path, sum(sizes), progress) as bar,
        UnderWay(core, bar.update) as ahead,
    ):
        for some in batches(list(map(_largest_part, infos))):
            wanted = [[number, tables[number]] for number in some]
            read = call("runtime.disco._load_read", opened, wanted)
            for place, number in enumerate(some):
                item = call("runtime.disco._weights_item", read, place)
                loaded[names[number]] = DTensor(engine, infos[number], item, Origin("load"))
            ahead.add(sum(sizes[number] for number in some))
    return {name: lying(loaded[name], info.placement) for name, info in targets.items()}
