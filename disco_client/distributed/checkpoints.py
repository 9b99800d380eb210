"""``session.save`` and ``session.load``: the workers write and read their own parts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from disco_client.distributed.dtensor import DTensor, Origin
from disco_client.distributed.layout import all_bounds, first_places, per_worker
from disco_client.distributed.loading import Choice, Stored
from disco_client.distributed.moving import Caller
from disco_client.distributed.struct_info import DTensorStructInfo
from disco_client.errors import ConfigError, ForeignReference, RemoteError, SessionError
from disco_client.weights.progress import Marker, UnderWay, progress_bar, whole_path
from disco_client.wire.layout import shape_within
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    from disco_client.distributed.engine import Engine
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.placement import Placement
    from disco_client.handles import DRef

__all__ = ["CheckpointSession", "load", "save"]

_BATCH_BYTES = 32 << 20
_BATCH_TENSORS = 256
_PAGE_PARTS = 16384
"""Parts that one command describes."""

_PAGE_TENSORS = 1024
_RESERVED = "__metadata__"
"""What no tensor of a safetensors file can be called."""


class CheckpointSession(Caller, Marker, Protocol):
    """What of a session is needed here."""

    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""
        ...

    def _get_all(self, ref: DRef, workers: Sequence[int]) -> list[Any]: ...


# Saving ------------------------------------------------------------------------------


def save(
    session: CheckpointSession,
    engine: Engine,
    path: object,
    tensors: Mapping[str, DTensor],
    *,
    progress: bool | None,
) -> None:
    """Saves distributed tensors; see ``Session.save``."""
    where = whole_path(path)
    _check_tensors(engine, tensors)
    # What failed before is not for this to raise half-way; and a capture ends here.
    session.sync_all()
    whole = {
        name: tensor.redistribute(tensor.placement.combined()) for name, tensor in tensors.items()
    }
    _await_values(session, list(whole.values()))
    generation = f"generation-{secrets.token_hex(8)}"
    begun = _save(session, "begin", where, generation)
    try:
        session.sync_all()
        _describe(session, begun, whole)
        _write(session, begun, where, whole, progress)
        _save(session, "commit", begun)
        _save(session, "close", begun)
        session.sync_all()
    except BaseException as error:
        _give_up(session, begun, wait=isinstance(error, RemoteError))
        raise


def _await_values(session: CheckpointSession, tensors: Sequence[DTensor]) -> None:
    """Waits until tensors are computed; raises why one could not be, also if a call has before."""
    for first in range(0, len(tensors), _PAGE_TENSORS):
        refs = [tensor.ref for tensor in tensors[first : first + _PAGE_TENSORS]]
        ready = _save(session, "ready", refs)
        session._get_all(ready, range(session.num_workers))  # noqa: SLF001


def _save(session: Caller, step: str, *args: object) -> DRef:
    return session._call_now(f"runtime.disco._save_{step}", *args)  # noqa: SLF001


def _check_tensors(engine: Engine, tensors: object) -> None:
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
        if not tensor.belongs_to(engine):
            raise ForeignReference(f"{name!r} is a tensor of another session")


def _describe(session: CheckpointSession, begun: DRef, tensors: Mapping[str, DTensor]) -> None:
    """Tells the workers what is saved, and lets them make their files."""
    each = max(1, _PAGE_PARTS // session.num_workers)
    rows = [_row(name, tensor.info, session.num_workers) for name, tensor in tensors.items()]
    for first in range(0, len(rows), each):
        _save(session, "describe", begun, rows[first : first + each])
    _save(session, "start", begun)
    session.sync_all()


def _row(name: str, info: DTensorStructInfo, num_workers: int) -> dict[str, object]:
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
            "placement": str(info.placement),
        },
        "parts": per_worker(mesh, num_workers, parts),
    }


def _write(
    session: CheckpointSession,
    begun: DRef,
    path: str,
    tensors: Mapping[str, DTensor],
    progress: bool | None,
) -> None:
    held = list(tensors.values())
    infos = [tensor.info for tensor in held]
    total = sum(tensor.size * tensor.dtype.itemsize for tensor in held)
    with progress_bar(path, total, progress) as bar, UnderWay(session, bar.update) as under_way:
        for some in _batches(infos):
            refs = [held[number].ref for number in some]
            _save(session, "write", begun, some.start, refs)
            under_way.add(sum(held[n].size * held[n].dtype.itemsize for n in some))
        _save(session, "finish", begun)
        under_way.add(0)


def _give_up(session: CheckpointSession, begun: DRef, *, wait: bool) -> None:
    """Removes what was written, where that can still be done."""
    with suppress(RemoteError, SessionError):
        _save(session, "close", begun)
        if wait:
            session.sync_all()


def _batches(infos: Sequence[DTensorStructInfo]) -> Iterator[range]:
    """Cuts a row of tensors into commands, by the bytes of their largest parts."""
    first = nbytes = 0
    for number, info in enumerate(infos):
        nbytes += _largest_part(info)
        if nbytes >= _BATCH_BYTES or number + 1 - first >= _BATCH_TENSORS:
            yield range(first, number + 1)
            first, nbytes = number + 1, 0
    if first < len(infos):
        yield range(first, len(infos))


def _largest_part(info: DTensorStructInfo) -> int:
    # The first worker's part is never smaller than another one's.
    count = info.tensor_sinfo.dtype.itemsize
    for extent in shape_within(info.bounds(0)):
        count *= extent
    return count


# Loading -----------------------------------------------------------------------------


def load(
    session: CheckpointSession,
    engine: Engine,
    path: object,
    mesh: DeviceMesh | None,
    placements: Placement | str | Mapping[str, Placement | str] | None,
    *,
    progress: bool | None,
) -> dict[str, DTensor]:
    """Loads distributed tensors; see ``Session.load``."""
    where = whole_path(path)
    choice = Choice(mesh, placements, session.num_workers)
    session.sync_all()
    opened = session._call_now("runtime.disco._load_open", where)  # noqa: SLF001
    session.sync_all()
    stored, fingerprint = _fetch_catalog(where, opened)
    targets = choice.decide(stored)
    session._call_now("runtime.disco._load_check", opened, fingerprint)  # noqa: SLF001
    session.sync_all()
    return _read(session, engine, where, opened, targets, progress)


def _fetch_catalog(path: str, opened: DRef) -> tuple[list[Stored], str]:
    """Asks worker 0 what is there; returns that and the checkpoint's fingerprint."""
    session = cast("Caller", opened.session)
    rows: list[Stored] = []
    while True:
        page = session._call_now("runtime.disco._load_catalog", opened, len(rows))  # noqa: SLF001
        facts: dict[str, Any] = page.debug_get_from_remote(0)
        rows += [Stored.read(path, row) for row in facts["rows"]]
        if len(rows) == facts["total"] or not facts["rows"]:
            return rows, facts["fingerprint"]


def _read(
    session: CheckpointSession,
    engine: Engine,
    path: str,
    opened: DRef,
    targets: Mapping[str, DTensorStructInfo],
    progress: bool | None,
) -> dict[str, DTensor]:
    # Partial values are made on the workers, of whole ones.
    infos = [
        DTensorStructInfo(info.tensor_sinfo, info.device_mesh, info.placement.combined())
        for info in targets.values()
    ]
    tables = [per_worker(i.device_mesh, session.num_workers, all_bounds(i)) for i in infos]
    sizes = [info.tensor_sinfo.nbytes for info in infos]
    names, call = list(targets), session._call_now  # noqa: SLF001
    loaded: dict[str, DTensor] = {}
    with progress_bar(path, sum(sizes), progress) as bar, UnderWay(session, bar.update) as ahead:
        for some in _batches(infos):
            wanted = [[number, tables[number]] for number in some]
            read = call("runtime.disco._load_read", opened, wanted)
            for place, number in enumerate(some):
                item = call("runtime.disco._weights_item", read, place)
                loaded[names[number]] = DTensor(engine, infos[number], item, Origin("load"))
            ahead.add(sum(sizes[number] for number in some))
    return {name: loaded[name].redistribute(info.placement) for name, info in targets.items()}
