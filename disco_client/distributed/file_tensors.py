"""Tensors in files, of which each worker reads its own part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from disco_client.bulk_io import whole_path
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import DTensorStructInfo, Placement, TensorStructInfo
from disco_client.distributed.redistribute import all_bounds, per_worker
from disco_client.distributed.storage import lying
from disco_client.errors import ConfigError
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    import os

    from disco_client.core import SessionCore

__all__ = ["FileTensor", "distribute_file", "from_npy", "from_safetensors"]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file that the workers can reach; ``session.distribute`` takes it.

    Made by :func:`from_safetensors` and :func:`from_npy`.

    Attributes:
        kind: ``"safetensors"`` or ``"npy"``.
        path: The file on the workers.
        name: The tensor's name, where files have several.

    Examples:
        >>> np.save("rows.npy", np.arange(8.0).reshape(4, 2))
        >>> rows = session.distribute(distributed.from_npy("rows.npy"), placement="S[0]")
        >>> rows.shard(3)  # of the file, worker 3 read its own row
        array([[6., 7.]])
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

    Examples:
        >>> from safetensors.numpy import save_file
        >>> save_file({"up": np.ones((4, 2), "float32")}, "model.safetensors")
        >>> up = distributed.from_safetensors("model.safetensors", "up")
        >>> session.distribute(up, placement="S[0]").shape_on(1)
        (1, 2)
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

    Examples:
        >>> np.save("rows.npy", np.arange(8.0).reshape(4, 2))
        >>> session.distribute(distributed.from_npy("rows.npy"), placement="S[0]").sum().item()
        28.0
    """
    return FileTensor("npy", whole_path(path))


def distribute_file(
    core: SessionCore,
    engine: Computing,
    file: FileTensor,
    mesh: DeviceMesh,
    placement: Placement | str,
) -> DTensor:
    """Lets each worker of a mesh read its part; see ``Session.distribute``."""
    core.sync()
    readers = Shape(mesh.device_ids)
    call = core.call_now
    opened = call("runtime.disco._file_open", file.kind, file.path, file.name, readers)
    core.sync()
    facts = call("runtime.disco._file_facts", opened)
    shape, dtype = cast("list[Any]", facts.debug_get_from_remote(mesh.device_ids[0]))
    info = DTensorStructInfo(TensorStructInfo(shape, dtype), mesh, placement)
    # Partial values and given parts are made on the workers.
    whole = DTensorStructInfo(info.tensor_sinfo, mesh, info.placement.plain())
    table = per_worker(mesh, core.num_workers, all_bounds(whole))
    ref = call(
        "runtime.disco._file_read", opened, shape, dtype_name(info.tensor_sinfo.dtype), table
    )
    return lying(DTensor(engine, whole, ref), info.placement)
