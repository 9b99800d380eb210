"""numpy's functions that order, repeat or shift the elements of distributed tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.array_api import mesh_of
from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.numpy_arguments import as_dtype
from disco_client.distributed.ops import integers, normal_axes, normal_axis
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
    placement_on,
)
from disco_client.errors import ConfigError
from disco_client.wire.values import dtype_from_name, shown

__all__ = ["SHAPES"]

_PLANE = 2


def _moveaxis(engine: Computing, a: DTensor, source: Any, destination: Any) -> DTensor:
    here, there = (normal_axes(several(each), a.ndim) for each in (source, destination))
    if len(here) != len(there):
        raise ConfigError(
            f"moveaxis: expected as many axes to move as places for them, got {source} and"
            f" {destination}"
        )
    rest = iter(axis for axis in range(a.ndim) if axis not in here)
    placed = dict(zip(there, here, strict=True))
    order = [placed[axis] if axis in placed else next(rest) for axis in range(a.ndim)]
    return engine.call("transpose", a, axes=order)


def _rollaxis(
    engine: Computing, a: DTensor, axis: SupportsIndex, start: SupportsIndex = 0
) -> DTensor:
    place = normal_axis(axis, a.ndim)
    (to,) = integers("rollaxis", (start,))
    if not -a.ndim <= to <= a.ndim:
        raise ConfigError(f"rollaxis: expected a start from {-a.ndim} to {a.ndim}, got {to}")
    to = to + a.ndim if to < 0 else to
    return _moveaxis(engine, a, place, to - 1 if place < to else to)


def _matrix_transpose(engine: Computing, x: DTensor) -> DTensor:
    if x.ndim < _PLANE:
        raise ConfigError(f"matrix_transpose needs at least two axes, got {tuple(x.shape)}")
    return engine.call("transpose", x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _flip(_engine: Computing, m: DTensor, axis: Any = None) -> DTensor:
    axes = normal_axes(axis, m.ndim)
    items = [slice(None, None, -1) if at in axes else slice(None) for at in range(m.ndim)]
    return m[tuple(items)]._explained_as("flip")


def _flipped(name: str, axis: int) -> Composite:
    def flip(engine: Computing, m: DTensor) -> DTensor:
        if m.ndim <= axis:
            raise ConfigError(f"{name} needs more axes than {tuple(m.shape)} has")
        return _flip(engine, m, axis)

    return flip


def _rot90(
    engine: Computing, m: DTensor, k: SupportsIndex = 1, axes: Sequence[int] = (0, 1)
) -> DTensor:
    if len(axes) != _PLANE:
        raise ConfigError(f"rot90: expected two axes, got {shown(axes)}")
    one, other = normal_axes(tuple(axes), m.ndim)
    (turns,) = integers("rot90", (k,))
    steps = Steps(engine)
    out = m
    for axis in {0: (), 1: (other,), 2: (one, other), 3: (one,)}[turns % 4]:
        out = steps.keep(_flip(engine, out, axis))
    if turns % 2:
        order = list(range(m.ndim))
        order[one], order[other] = other, one
        steps.call("transpose", out, axes=order)
    elif out is m:
        steps.keep(m.redistribute(m.placement))
    return steps.result("rot90")


def _roll(engine: Computing, a: DTensor, shift: Any, axis: Any = None) -> DTensor:
    """The end of an axis before its beginning; each worker keeps what it has."""
    if axis is None:
        flat = engine.call("reshape", a, shape=(-1,))
        rolled = _roll(engine, flat, sum(integers("roll", several(shift))), 0)
        return engine.call("reshape", rolled, shape=a.shape)._explained_as("roll", flat, rolled)
    axes = [normal_axis(each, a.ndim) for each in several(axis)]
    shifts = integers("roll", several(shift))
    pairs = np.broadcast(shifts, axes)
    steps = Steps(engine)
    out = a
    for by, at in ((int(by), int(at)) for by, at in pairs):
        extent = out.shape[at]
        if extent and by % extent:
            ends = slice(-(by % extent), None), slice(None, -(by % extent))
            parts = [out[*(slice(None),) * at, end] for end in ends]
            out = steps.call("concatenate", *parts, axis=at)
    if out is a:
        steps.keep(a.redistribute(a.placement))
    return steps.result("roll")


def _diff(
    engine: Computing, a: DTensor, n: SupportsIndex = 1, axis: SupportsIndex = -1, **more: Any
) -> DTensor:
    """Differences of neighbours; a row for each border between workers moves."""
    if a.ndim == 0:
        raise ConfigError("diff needs at least one axis")
    place = normal_axis(axis, a.ndim)
    (times,) = integers("diff", (n,))
    if times < 0:
        raise ConfigError(f"diff: expected an order from 0, got {times}")
    steps = Steps(engine)
    edges = [more.pop(name, None) for name in ("prepend", "append")]
    if more:
        raise ConfigError(f"numpy.diff has no {', '.join(more)}")
    shape = (*a.shape[:place], 1, *a.shape[place + 1 :])
    front, back = (
        [] if each is None else [np.broadcast_to(each, shape) if np.ndim(each) == 0 else each]
        for each in edges
    )
    out = steps.call("concatenate", *front, a, *back, axis=place) if front or back else a
    before = (slice(None),) * place
    for _ in range(times):
        later = steps.keep(out[*before, slice(1, None)])
        earlier = steps.keep(out[*before, slice(None, -1)])
        out = steps.call("not_equal" if a.dtype.kind == "b" else "subtract", later, earlier)
    if out is a:
        steps.keep(a.redistribute(a.placement))
    return steps.result("diff")


def _broadcast_to(engine: Computing, array: DTensor, shape: Any, subok: bool = False) -> DTensor:
    if subok:
        raise ConfigError("numpy.broadcast_to of distributed tensors makes distributed tensors")
    wanted = tuple(integers("broadcast_to", several(shape)))
    have = tuple(array.shape)
    fits = len(have) <= len(wanted) and all(
        mine in (1, theirs) for mine, theirs in zip(have[::-1], wanted[::-1], strict=False)
    )
    if not fits or min(wanted, default=0) < 0:
        raise ConfigError(f"broadcast_to: {have} cannot become {wanted}")
    steps = Steps(engine)
    wide = (1,) * (len(wanted) - len(have)) + have
    out = steps.call("reshape", array, shape=wide)
    counts = tuple(new if old != new else 1 for old, new in zip(wide, wanted, strict=True))
    steps.call("tile", out, reps=counts)
    return steps.result("broadcast_to")


def _broadcast_arrays(engine: Computing, *args: Any, subok: bool = False) -> tuple[DTensor, ...]:
    try:
        shape = np.broadcast_shapes(*map(np.shape, args))
    except ValueError:
        shapes = [tuple(np.shape(each)) for each in args]
        raise ConfigError(f"broadcast_arrays: {shapes} cannot be broadcast together") from None
    if not all(isinstance(each, DTensor) for each in args):
        raise ConfigError("numpy.broadcast_arrays takes distributed tensors alone here")
    return tuple(_broadcast_to(engine, each, shape, subok) for each in args)


def _at_least(count: int) -> Callable[..., Any]:
    def widened(engine: Computing, *arys: Any) -> Any:
        found = tuple(_widened(engine, each, count) for each in arys)
        return found[0] if len(found) == 1 else found

    return widened


def _widened(engine: Computing, array: Any, count: int) -> Any:
    """With axes of extent 1 where numpy adds them, in front or, of three, around."""
    shape = tuple(np.shape(array))
    lacks = count - len(shape)
    if lacks <= 0:
        return array
    if count == 3 and len(shape) == _PLANE:  # noqa: PLR2004
        wide = (*shape, 1)
    elif count == 3 and len(shape) == 1:  # noqa: PLR2004
        wide = (1, *shape, 1)
    else:
        wide = (1,) * lacks + shape
    if isinstance(array, DTensor):
        return engine.call("reshape", array, shape=wide)
    return np.reshape(array, wide)


def _unstack(_engine: Computing, x: DTensor, axis: SupportsIndex = 0) -> tuple[DTensor, ...]:
    if x.ndim == 0:
        raise ConfigError("unstack needs at least one axis")
    place = normal_axis(axis, x.ndim)
    before = (slice(None),) * place
    return tuple(x[*before, at] for at in range(x.shape[place]))


def _append(engine: Computing, arr: Any, values: Any, axis: Any = None) -> DTensor:
    both = arr, values
    if axis is None:
        both = tuple(
            engine.call("reshape", each, shape=(-1,))
            if isinstance(each, DTensor)
            else np.reshape(each, -1)
            for each in both
        )
        axis = 0
    return engine.call("concatenate", *both, axis=axis)


def _like(name: str, value: int) -> Composite:
    """A tensor of one value that lies as another one."""

    def like(engine: Computing, a: DTensor, dtype: Any = None, **more: Any) -> DTensor:
        return _filled_like(engine, name, a, value, dtype, more)

    return like


def _full_like(
    engine: Computing, a: DTensor, fill_value: Any, dtype: Any = None, **more: Any
) -> DTensor:
    if np.ndim(fill_value):
        raise ConfigError("numpy.full_like of distributed tensors takes one value")
    return _filled_like(engine, "full_like", a, fill_value, dtype, more)


def _filled_like(
    engine: Computing, name: str, a: DTensor, value: Any, dtype: Any, more: Mapping[str, Any]
) -> DTensor:
    if more.get("shape") is not None:
        raise ConfigError(f"numpy.{name} of a distributed tensor has its shape")
    device = more.get("device")
    mesh = a.mesh if device is None else mesh_of(device)
    placement = a.placement.combined() if mesh == a.mesh else placement_on(mesh, a.info)
    kind = a.dtype if dtype is None else dtype_from_name(dtype)
    info = DTensorStructInfo(TensorStructInfo(a.shape, kind), mesh, placement)
    return engine.create("full", info, as_dtype(value, kind))._explained_as(name)


def _triangle(name: str, *, upper: bool) -> Callable[..., DTensor]:
    """The elements on one side of a diagonal of each matrix, and zeros on the other."""

    def cut(engine: Computing, m: DTensor, k: SupportsIndex = 0) -> DTensor:
        (diagonal,) = integers(name, (k,))
        if m.ndim < _PLANE:
            if not m.ndim:
                raise ConfigError(f"{name} needs at least one axis")
            m = engine.call("tile", engine.call("reshape", m, shape=(1, -1)), reps=(m.size, 1))
        first = m.ndim - _PLANE
        copies = PlacementSpec.replica()
        specs = (
            replace(spec, axis=spec.axis - first) if spec.axis >= first else copies
            for spec in m.placement.dim_specs
        )
        info = DTensorStructInfo(
            TensorStructInfo(m.shape[first:], "bool"), m.mesh, Placement(specs)
        )
        below = engine.create("tri", info, diagonal - 1 if upper else diagonal)
        zero = np.zeros((), m.dtype)
        sides = (zero, m) if upper else (m, zero)
        return engine.call("where", below, *sides)._explained_as(name)

    return cut


def _meshgrid(
    engine: Computing, *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[DTensor, ...]:
    if not copy:
        raise ConfigError("numpy.meshgrid of distributed tensors makes tensors of its own")
    if indexing not in ("xy", "ij"):
        raise ConfigError(f"meshgrid: expected 'xy' or 'ij' as the indexing, got {indexing!r}")
    ndim = len(xi)
    order = list(range(ndim))
    if indexing == "xy" and ndim >= _PLANE:
        order[:_PLANE] = 1, 0
    shape = [0] * ndim
    for x, at in zip(xi, order, strict=True):
        shape[at] = int(np.size(x))
    grids: list[DTensor] = []
    for x, at in zip(xi, order, strict=True):
        wide = [-1 if axis == at else 1 for axis in range(ndim)]
        if not isinstance(x, DTensor):
            raise ConfigError("numpy.meshgrid takes distributed tensors alone here")
        grid = engine.call("reshape", x, shape=wide)
        grids.append(grid if sparse else _broadcast_to(engine, grid, shape))
    return tuple(grids)


def _copy(_engine: Computing, a: DTensor, order: str = "K", subok: bool = False) -> DTensor:
    del order, subok  # each worker has its part in C order
    return a.__copy__()


SHAPES: dict[str, Composite] = {
    "moveaxis": _moveaxis,
    "rollaxis": _rollaxis,
    "matrix_transpose": _matrix_transpose,
    "linalg.matrix_transpose": _matrix_transpose,
    "flip": _flip,
    "flipud": _flipped("flipud", 0),
    "fliplr": _flipped("fliplr", 1),
    "rot90": _rot90,
    "roll": _roll,
    "diff": _diff,
    "broadcast_to": _broadcast_to,
    "broadcast_arrays": _broadcast_arrays,
    "atleast_1d": _at_least(1),
    "atleast_2d": _at_least(2),
    "atleast_3d": _at_least(3),
    "unstack": _unstack,
    "append": _append,
    "copy": _copy,
    "ones_like": _like("ones_like", 1),
    "empty_like": _like("empty_like", 0),
    "full_like": _full_like,
    "tril": _triangle("tril", upper=False),
    "triu": _triangle("triu", upper=True),
    "meshgrid": _meshgrid,
}
"""By numpy's names, of which older versions of numpy lack some."""
