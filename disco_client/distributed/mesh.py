"""Workers as a grid: along each of its axes a tensor may be split or copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, cast, final

import numpy as np

from disco_client.errors import ConfigError, DtypeError
from disco_client.notebook import html_of
from disco_client.text import many
from disco_client.wire.limits import MOST_WORKERS
from disco_client.wire.values import Shape, shown

__all__ = ["DeviceMesh", "check_mesh", "checked_shape", "device_mesh"]


class RangeLike(Protocol):
    """A ``tvm.ir.Range``.

    Attributes:
        min: The first number.
        extent: How many there are.
    """

    min: Any
    extent: Any


@final
class DeviceMesh:
    """A grid of workers, in the manner of ``tvm.relax.distributed.DeviceMesh``.

    Where the original compares a list of ids and a range of the same ids as
    different, here only the ids count.

    Args:
        shape: How many workers there are along each axis.
        device_ids: The workers in row-major order: a list, a tuple, a range, or a
            ``tvm.ir.Range``.
        names: A name for each axis, all different; none by default.

    Attributes:
        shape: The extents.
        device_ids: The workers in row-major order.
        device_range: The range that was given, else None.
        names: The names of the axes; empty where they have none.

    Raises:
        DtypeError: The shape or the ids are of another type.
        ConfigError: There are more or fewer ids than the shape has places, an extent
            is below 1, there are more places than any session has workers, a worker is
            negative or named twice, or the names do not fit.

    Examples:
        >>> mesh = distributed.DeviceMesh((2, 2), range(4), ("dp", "tp"))
        >>> mesh["tp"].device_ids, mesh.at(dp=1).device_ids
        ([0, 1], [2, 3])
    """

    __slots__ = ("_grid", "_key", "device_ids", "device_range", "names", "shape")

    def __init__(
        self,
        shape: Sequence[int],
        device_ids: Sequence[int] | range | RangeLike,
        names: Sequence[str] = (),
    ) -> None:
        self.shape: Shape = Shape(checked_shape(shape))
        device_ids = _plain_range(device_ids)
        self.device_range: range | None = device_ids if isinstance(device_ids, range) else None
        self.device_ids: list[int] = _checked_ids(device_ids, self.shape)
        self.names: tuple[str, ...] = _checked_names(names, len(self.shape))
        self._key = (tuple(self.shape), tuple(self.device_ids), self.names)
        self._grid = np.array(self.device_ids, np.int64).reshape(self.shape)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many workers it has."""
        return len(self.device_ids)

    def axis(self, axis: int | str) -> int:
        """The number of an axis, from its number (also from the end) or its name.

        Raises:
            ConfigError: There is no such axis.
        """
        if isinstance(axis, str):
            if axis in self.names:
                return self.names.index(axis)
            have = ", ".join(map(repr, self.names)) or "none with names"
            raise ConfigError(f"the mesh has no axis {axis!r}; its axes are {have}")
        if not -self.ndim <= axis < self.ndim:
            raise ConfigError(f"the mesh has {many(self.ndim, 'axis', 'axes')}, so no axis {axis}")
        return axis % self.ndim

    def lines(self, axis: int | str) -> list[tuple[int, ...]]:
        """The workers along an axis: one line for each place in the other axes."""
        moved = np.moveaxis(self._grid, self.axis(axis), -1)
        rows = moved.reshape(-1, moved.shape[-1]).tolist()
        return [tuple(row) for row in rows]

    def at(self, **indices: int) -> DeviceMesh:
        """The part of the mesh where the named axes have these indices.

        Raises:
            ConfigError: There is no such axis or index.
        """
        wanted: list[int | slice] = [slice(None)] * self.ndim
        for name, index in indices.items():
            wanted[self.axis(name)] = index
        return self[tuple(wanted)]

    def __getitem__(self, index: int | slice | str | tuple[int | slice, ...]) -> DeviceMesh:
        """A part of the mesh, indexed as an array is: a number drops an axis, a slice keeps it.

        The name of an axis stands for the workers along it, where all other axes are at 0;
        :meth:`at` gives those at other places.

        Raises:
            ConfigError: There is nothing at this index.
        """
        if isinstance(index, str):
            along = self.axis(index)
            index = tuple(slice(None) if axis == along else 0 for axis in range(self.ndim))
        parts = index if isinstance(index, tuple) else (index,)
        try:
            grid = self._grid[parts]
        except IndexError as error:
            raise ConfigError(f"no part of a mesh of shape {tuple(self.shape)}: {error}") from None
        kept = [
            name
            for place, name in enumerate(self.names)
            if place >= len(parts) or isinstance(parts[place], slice)
        ]
        part = np.asarray(grid)
        return DeviceMesh(part.shape or (1,), part.reshape(-1).tolist(), kept if part.shape else ())

    def __eq__(self, other: object) -> bool:
        """Equal in shape, workers and names."""
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def _repr_html_(self) -> str:
        return html_of(self)

    def __repr__(self) -> str:
        if self.device_range is not None and self.device_range.step == 1:
            ids = f"range({self.device_range.start}, {self.device_range.stop})"
        else:
            ids = str(self.device_ids)
        names = f", names={self.names}" if self.names else ""
        return f"DeviceMesh({tuple(self.shape)}, {ids}{names})"


def device_mesh(
    shape: Sequence[int],
    device_ids: Sequence[int] | range | RangeLike,
    names: Sequence[str] = (),
) -> DeviceMesh:
    """Makes a :class:`DeviceMesh`.

    Examples:
        >>> distributed.device_mesh((2,), [0, 1]).shape
        Shape([2])
    """
    return DeviceMesh(shape, device_ids, names)


def checked_shape(shape: object) -> list[int]:
    """The extents of a mesh.

    Raises:
        DtypeError: It is no tuple or list of integers.
        ConfigError: No session has such a mesh.
    """
    if not isinstance(shape, (tuple, list)):
        msg = f"expected the shape of a mesh as a tuple or list, got {shape!r}"
        raise DtypeError(msg)
    found = [_integer("an extent", extent) for extent in cast("Sequence[object]", shape)]
    if min(found, default=1) < 1 or math.prod(found) > MOST_WORKERS:
        raise ConfigError(
            "expected extents of at least 1 in the shape of a mesh, of at most"
            f" {MOST_WORKERS} workers, got {shown(found)}"
        )
    return found


def _plain_range(ids: Any) -> Any:
    """The range of a ``tvm.ir.Range``, whose numbers are expressions; else what it is."""
    if not (hasattr(ids, "min") and hasattr(ids, "extent")):
        return ids
    first, count = (
        _integer("a worker", getattr(each, "value", each)) for each in (ids.min, ids.extent)
    )
    return range(first, first + count)


def _checked_ids(device_ids: object, shape: Shape) -> list[int]:
    if not isinstance(device_ids, (tuple, list, range)):
        msg = f"expected the workers of a mesh as a list, tuple or range, got {device_ids!r}"
        raise DtypeError(msg)
    if math.prod(shape) != len(device_ids):  # pyright: ignore[reportUnknownArgumentType]
        msg = (
            f"expected as many workers as a mesh of shape {tuple(shape)} has places,"
            f" {math.prod(shape)}, got {len(device_ids)}"  # pyright: ignore[reportUnknownArgumentType]
        )
        raise ConfigError(msg)
    found = [_integer("a worker", worker) for worker in cast("Sequence[object]", device_ids)]
    known: set[int] = set()
    for worker in found:
        if worker < 0 or worker in known:
            why = "is negative" if worker < 0 else "is there more than once"
            raise ConfigError(f"worker {worker} {why} in the mesh {found}")
        known.add(worker)
    return found


def _checked_names(names: Sequence[str], ndim: int) -> tuple[str, ...]:
    found = tuple(names)
    if found and (len(found) != ndim or len(set(found)) != ndim or not all(found)):
        raise ConfigError(f"expected {ndim} different names, one for each axis, got {found}")
    return found


def _integer(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        msg = f"expected an integer for {what} of the mesh, got {value!r}"
        raise DtypeError(msg)
    return value.__index__()


def check_mesh(mesh: DeviceMesh, num_workers: int) -> DeviceMesh:
    """Returns a mesh whose workers a session has.

    Raises:
        ConfigError: It names others.
    """
    beyond = [worker for worker in mesh.device_ids if worker >= num_workers]
    if beyond:
        raise ConfigError(
            f"the mesh names worker {beyond[0]}, and the session has {many(num_workers, 'worker')}"
        )
    return mesh
