"""Tensors in files, of which each worker reads its own part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.bulk_io import whole_path
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import DTensorStructInfo, Placement, TensorStructInfo
from disco_client.distributed.redistribute import all_bounds, per_worker
from disco_client.distributed.storage import lying
from disco_client.errors import ConfigError, OutOfBounds
from disco_client.wire.values import Shape, dtype_name

if TYPE_CHECKING:
    import os

    from disco_client.core import SessionCore

__all__ = [
    "FileTensor",
    "distribute_file",
    "from_hdf5",
    "from_netcdf",
    "from_npy",
    "from_safetensors",
    "from_zarr",
]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file that the workers can reach; ``session.distribute`` takes it.

    Made by :func:`from_safetensors`, :func:`from_npy`, :func:`from_hdf5`, :func:`from_netcdf` and
    :func:`from_zarr`. Between brackets, integers, slices without a step and ``...`` take a part of
    it, of which the workers read their parts.

    Attributes:
        kind: ``"safetensors"``, ``"npy"``, ``"hdf5"``, ``"netcdf"`` or ``"zarr"``.
        path: The file or folder on the workers.
        name: The tensor's name, where files have several.
        items: What is taken of it; nothing for all.

    Examples:
        >>> np.save("rows.npy", np.arange(8.0).reshape(4, 2))
        >>> rows = session.distribute(distributed.from_npy("rows.npy"), placement="S[0]")
        >>> rows.shard(3)  # of the file, worker 3 read its own row
        array([[6., 7.]])
        >>> session.distribute(distributed.from_npy("rows.npy")[1:3, 0], placement="R").numpy()
        array([2., 4.])
    """

    kind: str
    path: str
    name: str = ""
    items: tuple[Any, ...] = ()

    # Else loops would take item after item without an end.
    __iter__ = None

    def __getitem__(self, items: Any) -> FileTensor:
        """Takes a part of the tensor.

        Raises:
            ConfigError: There is something else than integers, slices without a step and ``...``
                between the brackets, or a part was taken already.
        """
        given = cast("tuple[Any, ...]", items) if isinstance(items, tuple) else (items,)
        if self.items:
            raise ConfigError("a part of this file's tensor was taken already; take it at once")
        if not all(_is_item(each) for each in given) or given.count(Ellipsis) > 1:
            raise ConfigError(
                "of a file's tensor, integers, slices without a step and one ... take a part, got"
                f" [{', '.join(map(repr, given))}]; take other parts of the distributed tensor"
            )
        return replace(self, items=given)

    def window(self, shape: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """What is taken of a tensor of some shape.

        Returns:
            The bounds along each axis, and the axes that an integer takes one index of.

        Raises:
            OutOfBounds: An integer is outside its axis, or there are more items than axes.
        """
        given = list(self.items)
        if Ellipsis not in given:
            given.append(Ellipsis)
        if len(given) - 1 > len(shape):
            raise OutOfBounds(f"expected at most {len(shape)} indices, got {len(given) - 1}")
        at = given.index(Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
        bounds: list[tuple[int, int]] = []
        for axis, (item, extent) in enumerate(zip(given, shape, strict=True)):
            if isinstance(item, slice):
                start, stop, _ = cast("slice[Any, Any, Any]", item).indices(extent)
                bounds.append((start, max(start, stop)))
                continue
            index = int(item)
            if not -extent <= index < extent:
                raise OutOfBounds(f"index {index} is outside axis {axis}, of extent {extent}")
            bounds.append((index % extent, index % extent + 1))
        numbers = (axis for axis, item in enumerate(given) if not isinstance(item, slice))
        return tuple(bounds), tuple(numbers)


def _is_item(item: Any) -> bool:
    if isinstance(item, slice):
        held = cast("slice[Any, Any, Any]", item)
        ends = (held.start, held.stop)
        return held.step in (None, 1) and all(e is None or _is_integer(e) for e in ends)
    return item is Ellipsis or _is_integer(item)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


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
    return FileTensor("safetensors", whole_path(path), _name(name))


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


def from_hdf5(path: str | os.PathLike[str], name: str) -> FileTensor:
    """Names a dataset of an HDF5 file, to be given to ``session.distribute``.

    Each worker reads the chunks that its part has a share in, or its bytes, where the dataset has
    no chunks. The workers need h5py: ``pip install 'disco-runtime[hdf5]'``. Links and storage in
    other files are refused.

    Args:
        path: On the workers; a relative path is taken from the client's own folder.
        name: The dataset's path in the file, such as ``"run/pressure"``.

    Raises:
        ConfigError: These are no path or no name.

    Examples:
        >>> import h5py
        >>> with h5py.File("run.h5", "w") as file:
        ...     file["run/pressure"] = np.ones((4, 2))
        >>> pressure = distributed.from_hdf5("run.h5", "run/pressure")
        >>> session.distribute(pressure, placement="S[0]").shape_on(1)
        (1, 2)
    """
    return FileTensor("hdf5", whole_path(path), _name(name))


def from_netcdf(path: str | os.PathLike[str], name: str) -> FileTensor:
    """Names a variable of a netCDF-4 file, to be given to ``session.distribute``.

    Where it has attributes that say so, its numbers are unpacked, as xarray does: they are
    multiplied by ``scale_factor``, ``add_offset`` is added, and NaN replaces ``_FillValue`` and
    ``missing_value``. The dtype is then float32, or float64 where the variable has more than 16
    bits or an attribute is float64. :func:`from_hdf5` reads a variable as it is in the file. The
    workers need h5py: ``pip install 'disco-runtime[netcdf]'``.

    Args:
        path: On the workers; a relative path is taken from the client's own folder.
        name: The variable's path in the file.

    Raises:
        ConfigError: These are no path or no name.

    Examples:
        >>> import h5netcdf
        >>> with h5netcdf.File("rain.nc", "w") as file:
        ...     file.dimensions = {"hour": 4}
        ...     rain = file.create_variable("rain", ("hour",), "int16", data=[1, 2, 3, 4])
        ...     rain.attrs["scale_factor"] = np.float32(0.5)
        >>> rain = distributed.from_netcdf("rain.nc", "rain")
        >>> session.distribute(rain, placement="S[0]").numpy()
        array([0.5, 1. , 1.5, 2. ], dtype=float32)
    """
    return FileTensor("netcdf", whole_path(path), _name(name))


def from_zarr(path: str | os.PathLike[str], name: str = "") -> FileTensor:
    """Names an array of a Zarr store, to be given to ``session.distribute``.

    Formats 2 and 3, in a folder. Each worker reads the chunks that its part has a share in. The
    workers need zarr: ``pip install 'disco-runtime[zarr]'``.

    Args:
        path: On the workers: the folder of an array or of a group. A relative path is taken from
            the client's own folder.
        name: The array's path in the group; empty where the folder is the array's own.

    Raises:
        ConfigError: These are no path or no name.

    Examples:
        >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
        >>> session.save("run.zarr", {"x": x}, format="zarr")
        >>> session.distribute(distributed.from_zarr("run.zarr", "x"), placement="S[0]").shape_on(1)
        (1, 2)
    """
    if not isinstance(name, str):
        raise ConfigError(f"expected the name of an array, got {name!r}")
    return FileTensor("zarr", whole_path(path), name.strip("/"))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"expected the name of a tensor, got {name!r}")
    return name


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
    window, dropped = file.window(shape)
    extents = [b - a for axis, (a, b) in enumerate(window) if axis not in dropped]
    info = DTensorStructInfo(TensorStructInfo(extents, dtype), mesh, placement)
    # Partial values and given parts are made on the workers.
    whole = DTensorStructInfo(info.tensor_sinfo, mesh, info.placement.plain())
    parts = all_bounds(whole)
    if file.items:
        parts = [Shape(_in_file(part, window, dropped)) for part in parts]
    table = per_worker(mesh, core.num_workers, parts)
    kind = dtype_name(info.tensor_sinfo.dtype)
    # Workers of before know no axes that are dropped.
    more = (Shape(dropped),) if dropped else ()
    ref = call("runtime.disco._file_read", opened, shape, kind, table, *more)
    return lying(DTensor(engine, whole, ref), info.placement)


def _in_file(
    part: Sequence[int], window: Sequence[tuple[int, int]], dropped: Sequence[int]
) -> Iterator[int]:
    """The bounds of a part of what is taken, in the tensor of the file."""
    ends = iter(part)
    for axis, (start, stop) in enumerate(window):
        if axis in dropped:
            yield from (start, stop)
        else:
            yield start + next(ends)
            yield start + next(ends)
