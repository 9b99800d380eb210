"""Other values for what stands between the brackets of a distributed tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from disco_client.distributed.composites import Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.indexing import POSITION, Subscript, is_mask, parsed
from disco_client.distributed.masks import check_mask
from disco_client.distributed.numpy_arguments import array_of, as_dtype
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
from disco_client.distributed.slices import Region, sliced
from disco_client.errors import ConfigError

__all__ = ["assign", "updated"]


def assign(engine: Computing, x: DTensor, items: Any, value: Any) -> None:
    """Gives a tensor other values in a place; see ``DTensor.__setitem__``."""
    made = _written(engine, x, items, "set", value, in_place=True)
    x._become(made.ref, made.info, made.origin)


def updated(engine: Computing, x: DTensor, items: Any, how: str, value: Any) -> DTensor:
    """A tensor like another one with other values in a place; see ``DTensor.at``."""
    return _written(engine, x, items, how, value, in_place=False)


def _written(
    engine: Computing, x: DTensor, items: Any, how: str, value: Any, *, in_place: bool
) -> DTensor:
    given = cast("tuple[Any, ...]", items) if isinstance(items, tuple) else (items,)
    steps = Steps(engine)
    new = _converted(value, x.dtype)
    whole = x
    if any(spec.is_partial for spec in x.placement.dim_specs):
        whole = steps.keep(x.redistribute(x.placement.combined()))
    if _chooses(whole, given, new):
        region, operands, bounds = _masked(steps, whole, given[0], how, new)
    else:
        region, operands, bounds = _placed(steps, whole, parsed(engine, whole, given), how, new)
    made = engine.write(whole, region, operands, bounds, in_place=in_place or whole is not x)
    steps.keep(made)
    return steps.result("setitem" if in_place else f"at[...].{how}")


def _converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """Values in a tensor's dtype."""
    if isinstance(value, DTensor):
        return value if value.dtype == dtype else value.astype(dtype)
    return as_dtype(value, dtype)


def _chooses(x: DTensor, items: Sequence[Any], new: Any) -> bool:
    """Whether a mask alone says where, for values that do not depend on how often it is true."""
    if len(items) != 1 or not is_mask(items[0]) or isinstance(items[0], (bool, np.bool_)):
        return False
    return np.ndim(new) <= x.ndim - np.ndim(items[0])


# By a mask.


def _masked(
    steps: Steps, x: DTensor, mask: Any, how: str, new: Any
) -> tuple[Region, list[Any], tuple[int, ...]]:
    flags = array_of(mask)
    shape = tuple(flags.shape)
    check_mask(shape, x)
    if shape != tuple(x.shape[: len(shape)]):  # which is true nowhere
        shape = (1,) * len(shape)
        flags = np.zeros(shape, bool)
    _check_values(new, x.shape[len(shape) :])
    wide = np.reshape(flags, (*shape, *(1,) * (x.ndim - len(shape))))
    values = _with_axes(new, x.ndim)
    if values.ndim or isinstance(values, DTensor):
        values = _laid(steps, values, x.info)
    operands = [values, _laid(steps, wide, x.info)]
    return Region((), (), how, is_masked=True), operands, ()


# By slices and positions.


def _placed(
    steps: Steps, x: DTensor, index: Subscript, how: str, new: Any
) -> tuple[Region, list[Any], tuple[int, ...]]:
    _check_values(new, index.shape)
    ids = [np.reshape(each, -1) for each in index.ids]
    values = _in_rows(x, index, new)
    if how == "set" and ids and not any(isinstance(each, DTensor) for each in ids):
        ids, values = _last_ones(x, index.at, ids, values)
    operands = [values]  # a number goes with the command
    if values.ndim or isinstance(values, DTensor):
        lies = _region(x.info, index.axes, index.bounds, index.at, ids[0].shape if ids else ())
        operands = [_laid(steps, values, lies)]
    copies = Placement([PlacementSpec.replica()] * x.mesh.ndim)
    for each in ids:
        row = DTensorStructInfo(TensorStructInfo(each.shape, each.dtype), x.mesh, copies)
        operands.append(_laid(steps, each, row))
    return Region(index.axes, index.at, how), operands, index.bounds


def _check_values(new: Any, shape: Sequence[int]) -> None:
    """Makes sure that values can be broadcast to a shape; axes of one in front are no matter.

    Raises:
        ConfigError: They cannot.
    """
    have = _with_axes(new, len(shape)).shape if new.ndim else ()
    fits = len(have) <= len(shape) and all(
        mine in (1, theirs) for mine, theirs in zip(have[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ConfigError(
            f"values of shape {tuple(new.shape)} cannot be broadcast to {tuple(shape)}"
        )


def _with_axes(new: Any, ndim: int) -> Any:
    """Values with so many axes: those of one are added in front, or taken from there."""
    shape = tuple(new.shape)
    if not shape or len(shape) == ndim:
        return new
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return np.reshape(new, (1,) * (ndim - len(shape)) + shape)


def _in_rows(x: DTensor, index: Subscript, new: Any) -> Any:
    """Values with an axis for the positions, if there are any, and one for each other axis."""
    if not new.ndim:
        return new
    wide = _with_axes(new, len(index.dims))
    have = dict(zip(index.dims, wide.shape, strict=True))
    row: list[int] = []
    if index.at:
        at = [dim for dim, axis in enumerate(index.dims) if axis == POSITION]
        row = [1]
        if any(wide.shape[dim] != 1 for dim in at):
            extents = [index.shape[dim] if dim in at else n for dim, n in enumerate(wide.shape)]
            wide = np.broadcast_to(wide, extents)
            row = [math.prod(index.spread)]
        order = [*at, *(dim for dim in range(wide.ndim) if dim not in at)]
        wide = wide if order == sorted(order) else np.transpose(wide, order)
    rest = [have.get(axis, 1) for axis in range(x.ndim) if axis not in index.at]
    return np.reshape(wide, (*row, *rest))


def _last_ones(
    x: DTensor, at: Sequence[int], ids: Sequence[Any], values: Any
) -> tuple[list[Any], Any]:
    """Of equal positions the last one, as numpy assigns; on a GPU any could be the one."""
    count = len(ids[0])
    flat = np.ravel_multi_index(tuple(ids), tuple(x.shape[axis] for axis in at))
    back = np.unique(np.flip(flat), return_index=True)[1]
    if len(back) == count:
        return list(ids), values
    keep = np.sort(count - 1 - back)
    if values.ndim and values.shape[0] == count:
        values = np.take(values, keep, axis=0)
    return [each[keep] for each in ids], values


@lru_cache(maxsize=4096)
def _region(
    info: DTensorStructInfo,
    axes: tuple[int, ...],
    bounds: tuple[int, ...],
    at: tuple[int, ...],
    row: tuple[int, ...],
) -> DTensorStructInfo:
    """How values lie of which each worker needs those that it has the places of.

    Args:
        info: The tensor.
        axes: The axes of which slices take some.
        bounds: What they take.
        at: The axes of which positions take some.
        row: How many positions there are, if there are any.
    """
    part = sliced(info, axes, bounds)
    whole = part.tensor_sinfo
    rest = [axis for axis in range(whole.ndim) if axis not in at]
    twice = {axis for axis in axes if info.axes.count(axis) > 1}
    copies = PlacementSpec.replica()
    specs = [
        replace(spec, axis=rest.index(axis) + len(row))
        if axis in rest and axis not in twice
        else copies
        for axis, spec in zip(part.axes, part.placement.dim_specs, strict=True)
    ]
    shape = (*row, *(whole.shape[axis] for axis in rest))
    values = TensorStructInfo(shape, whole.dtype)
    return DTensorStructInfo(values, info.device_mesh, Placement(specs))


def _laid(steps: Steps, array: Any, lies: DTensorStructInfo) -> Any:
    """An array where workers need it; axes of one, which are broadcast, come to all."""
    copies = PlacementSpec.replica()
    kept = [
        mine == whole for mine, whole in zip(array.shape, lies.tensor_sinfo.shape, strict=False)
    ]
    placement = Placement(
        spec if axis >= 0 and array.ndim and kept[axis] else copies
        for axis, spec in zip(lies.axes, lies.placement.dim_specs, strict=True)
    )
    if isinstance(array, DTensor):
        return steps.keep(array.redistribute(lies.device_mesh, placement))
    return steps.keep(steps.engine.distribute(array, lies.device_mesh, placement))
