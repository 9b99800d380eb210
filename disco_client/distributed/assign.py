"""``session.assign``: the values of some tensors become those of others, on any meshes.

A bucket of tensors is one command, which is awaited before the next one is issued: so where one
fails, nothing of the later ones has been touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from disco_client.bulk_io import batches, progress_bar
from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.storage import await_values
from disco_client.errors import AssignFailed, ConfigError, ForeignReference, RemoteError
from disco_client.telemetry.spans import spanned

if TYPE_CHECKING:
    from disco_client.core import SessionCore
    from disco_client.distributed.dispatch import Engine
    from disco_client.distributed.placement import DTensorStructInfo

__all__ = ["assign"]


@spanned("disco.assign")
def assign(
    core: SessionCore,
    engine: Engine,
    targets: Mapping[str, DTensor],
    sources: Mapping[str, DTensor],
    *,
    progress: bool | None,
) -> None:
    """Assigns distributed tensors; see ``Session.assign``."""
    _check(core, engine, targets, sources)
    names = list(targets)
    moves = {name: engine.transfer(sources[name].info, targets[name].info) for name in names}
    # Raises earlier failures before anything is written; and a capture is refused here.
    await_values(core, list(sources.values()))
    total = sum(targets[name].nbytes for name in names)
    with progress_bar(core, "assign", "", total, progress) as bar:
        for some in batches([_largest_part(targets[name].info) for name in names]):
            bucket = names[some.start : some.stop]
            registers = [core.check_ref(targets[name].ref) for name in bucket]
            parts = [sources[name].ref for name in bucket]
            used = [moves[name] for name in bucket]
            done = core.call_now("runtime.disco._dt_assign", used, registers, *parts)
            try:
                core.get_all(done, range(core.num_workers))
            except RemoteError as error:
                why = (
                    f"session.assign failed while it wrote this tensor: {error.failures[0].message}"
                )
                core.call_now("runtime.disco._poison_registers", registers, why, False)
                raise AssignFailed(
                    error.failures,
                    new=names[: some.start],
                    poisoned=bucket,
                    old=names[some.stop :],
                ) from error
            bar.update(sum(targets[name].nbytes for name in bucket))


def _largest_part(info: DTensorStructInfo) -> int:
    """The bytes of the largest part of a tensor."""
    shapes = (info.local_shape(place) for place in range(info.device_mesh.size))
    return max(map(math.prod, shapes)) * info.tensor_sinfo.dtype.itemsize


def _check(core: SessionCore, engine: Engine, targets: object, sources: object) -> None:
    """Makes sure that each target has a source that it can become.

    Raises:
        ConfigError: One has none; the message lists all that do not fit.
        ForeignReference: A tensor belongs to another session, or its register was freed.
    """
    if not isinstance(targets, Mapping) or not isinstance(sources, Mapping):
        which = sources if isinstance(targets, Mapping) else targets
        raise ConfigError(f"expected tensors by name, such as {{'w': w}}, got {which!r}")
    given = cast("Mapping[object, object]", sources)
    wanted = cast("Mapping[object, object]", targets)
    for name, tensor in (*wanted.items(), *given.items()):
        if not isinstance(tensor, DTensor):
            raise ConfigError(
                f"expected a distributed tensor for {name!r}, got {type(tensor).__name__}"
            )
        if not tensor._belongs_to(engine):
            raise ForeignReference(f"{name!r} is a tensor of another session")
    problems = [f"{name!r} has no target" for name in given if name not in wanted]
    written: dict[int, object] = {}
    for name in wanted:
        target, source = cast("DTensor", wanted[name]), cast("DTensor | None", given.get(name))
        other = written.setdefault(core.check_ref(target.ref), name)
        if other != name:
            problems.append(f"{name!r} and {other!r} are one tensor")
        if source is None:
            problems.append(f"{name!r} has no source")
        elif source.info.tensor_sinfo != target.info.tensor_sinfo:
            problems.append(f"{name!r} is {_kind(target)}, and its source {_kind(source)}")
    for name in given:
        other = written.get(core.check_ref(cast("DTensor", given[name]).ref), name)
        if other != name:
            problems.append(f"the source of {name!r} is the target {other!r}")
    if problems:
        raise ConfigError(f"nothing was assigned: {'; '.join(problems)}")


def _kind(tensor: DTensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.info.tensor_sinfo.dtype_name}"
