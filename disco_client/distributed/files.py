"""Tensors in files, of which each worker reads its own part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.layout import all_bounds, per_worker
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.weights.progress import whole_path
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    from disco_client.distributed.checkpoints import CheckpointSession
    from disco_client.distributed.engine import Engine
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.placement import Placement

__all__ = ["FileTensor", "distribute_file", "from_npy", "from_safetensors"]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file that the workers can reach; ``session.distribute`` takes it.

    Made by :func:`from_safetensors` and :func:`from_npy`.

    Attributes:
        kind: ``"safetensors"`` or ``"npy"``.
        path: The file on the workers.
        name: The tensor's name, where files have several.
    """

    kind: str
    path: str
    name: str = ""


def from_safetensors(path: str | os.PathLike[str], name: str) -> FileTensor:
    """Names a tensor of safetensors files, to be given to ``session.distribute``.

    Args:
        path: On the workers: a safetensors file, an index of several
            (``model.safetensors.index.json``), or a folder with either. A relative
            path is taken from the client's own folder.
        name: The tensor's name.

    Raises:
        ConfigError: These are no path or no name.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"expected the name of a tensor, got {name!r}")
    return FileTensor("safetensors", whole_path(path), name)


def from_npy(path: str | os.PathLike[str]) -> FileTensor:
    """Names the array of a file of ``numpy.save``, to be given to ``session.distribute``.

    Args:
        path: On the workers; a relative path is taken from the client's own folder.

    Raises:
        ConfigError: It is no path.
    """
    return FileTensor("npy", whole_path(path))


def distribute_file(
    session: CheckpointSession,
    engine: Engine,
    file: FileTensor,
    mesh: DeviceMesh,
    placement: Placement | str,
) -> DTensor:
    """Lets each worker of a mesh read its part; see ``Session.distribute``."""
    session.sync_all()
    readers = Shape(mesh.device_ids)
    call = session._call_now  # noqa: SLF001
    opened = call("runtime.disco._file_open", file.kind, file.path, file.name, readers)
    session.sync_all()
    facts = call("runtime.disco._file_facts", opened)
    shape, dtype = cast("list[Any]", facts.debug_get_from_remote(mesh.device_ids[0]))
    info = DTensorStructInfo(TensorStructInfo(shape, dtype), mesh, placement)
    # Partial values are made on the workers, of whole ones.
    whole = DTensorStructInfo(info.tensor_sinfo, mesh, info.placement.combined())
    table = per_worker(mesh, session.num_workers, all_bounds(whole))
    ref = call(
        "runtime.disco._file_read", opened, shape, dtype_name(info.tensor_sinfo.dtype), table
    )
    return DTensor(engine, whole, ref).redistribute(info.placement)
