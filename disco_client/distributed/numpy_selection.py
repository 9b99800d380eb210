"""numpy's functions that leave out, put in, or arrange elements of distributed tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any, SupportsIndex, cast

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.numpy_arguments import array_of, in_a_row
from disco_client.distributed.numpy_rules import options_of
from disco_client.distributed.ops import integers, normal_axis
from disco_client.errors import ConfigError, DtypeError, OutOfBounds
from disco_client.wire.host_arrays import as_host_array

__all__ = ["SELECTION"]

_PLANE = 2
_FEW_RUNS = 16
"""Of so many pieces what stays is put together; of more each element is taken by its position."""

_BYTE = 8


def _host_mask(name: str, condition: Any) -> np.ndarray[Any, Any]:
    """A condition that the client knows, in a row.

    Raises:
        ConfigError: It is on the workers.
    """
    if isinstance(condition, DTensor):
        raise ConfigError(
            f"numpy.{name} by a condition that is on the workers gives a shape that is not known"
            " here; x[condition] waits for it"
        )
    return as_host_array(condition).astype(bool).reshape(-1)


def _kept(steps: Steps, x: DTensor, places: np.ndarray[Any, Any], axis: int) -> DTensor:
    """The elements at increasing positions; those that are neighbours stay where they are."""
    before = (slice(None),) * axis
    numbered: Any = enumerate(places.tolist())
    runs: list[Any] = [list(run) for _, run in groupby(numbered, _before_it)]
    if len(runs) > _FEW_RUNS:
        return steps.call("take", x, places, axis=axis)
    pieces = [steps.keep(x[*before, slice(run[0][1], run[-1][1] + 1)]) for run in runs]
    if not pieces:
        pieces = [steps.keep(x[*before, slice(0, 0)])]
    return pieces[0] if len(pieces) == 1 else steps.call("concatenate", *pieces, axis=axis)


def _before_it(numbered: tuple[int, int]) -> int:
    """How many are left out before a position that is kept: the same for neighbours."""
    return numbered[1] - numbered[0]


def _removed(obj: Any, extent: int) -> np.ndarray[Any, Any]:
    """Which positions of an axis stay if some are deleted, as a mask."""
    stays = np.ones(extent, bool)
    if isinstance(obj, slice):
        stays[obj] = False
        return stays
    if isinstance(obj, DTensor):
        raise ConfigError(
            "numpy.delete by positions that are on the workers gives a shape that is not known"
            " here; fetch them with .numpy()"
        )
    places = as_host_array(obj)
    if not places.size:
        return stays
    if places.dtype.kind == "b":
        if places.shape != (extent,):
            raise ConfigError(f"delete: a mask of {places.shape} is none of {extent} elements")
        return ~places
    if places.dtype.kind not in "iu":
        raise DtypeError(f"delete: expected positions as integers, got {places.dtype}")
    beyond = places[(places < -extent) | (places >= extent)]
    if beyond.size:
        raise OutOfBounds(f"delete: position {beyond.flat[0]} is none of {extent} elements")
    stays[places.reshape(-1)] = False
    return stays


def _delete(engine: Computing, arr: DTensor, obj: Any, axis: Any = None) -> DTensor:
    steps = Steps(engine)
    x, place = (
        (in_a_row(steps.call, arr), 0) if axis is None else (arr, normal_axis(axis, arr.ndim))
    )
    stays = _removed(obj, x.shape[place])
    steps.keep(_kept(steps, x, np.flatnonzero(stays), place))
    return steps.result("delete")


def _insert_places(obj: Any, extent: int) -> Any:
    """Positions before which something is put in, an array.

    Raises:
        DtypeError: They are no integers.
        OutOfBounds: One is beyond the end.
    """
    every: Any = np.arange(extent)
    given: Any = every[obj] if isinstance(obj, slice) else as_host_array(obj)
    if given.dtype.kind == "b":
        given = np.flatnonzero(given)
    given = given.astype(np.int64) if not given.size else given
    if given.dtype.kind not in "iu" or given.ndim > 1:
        raise DtypeError(f"insert: expected positions as integers, got {obj!r}")
    beyond = given[(given < -extent) | (given > extent)]
    if beyond.size:
        raise OutOfBounds(f"insert: position {beyond.flat[0]} is none of {extent} elements")
    return given


def _from_front(given: Any, extent: int) -> Any:
    """Positions counted from the front, in a row."""
    places = given.reshape(-1)
    return places + extent * (places < 0)


def _insert(engine: Computing, arr: Any, obj: Any, values: Any, axis: Any = None) -> DTensor:
    """Before positions of the tensor as it was."""
    if isinstance(obj, DTensor):
        raise ConfigError("numpy.insert takes positions that the client knows; .numpy() fetches")
    steps = Steps(engine)
    source = array_of(arr)
    x, place = (
        (in_a_row(steps.call, source), 0)
        if axis is None
        else (source, normal_axis(axis, source.ndim))
    )
    extent = x.shape[place]
    given = _insert_places(obj, extent)
    new = _inserted(steps, array_of(values), x, place, given)
    places = _from_front(given, extent)
    count = new.shape[place]
    if places.size == 1 and count != 1:
        places = places.repeat(count)
    order = places.argsort(kind="stable")
    sorted_places = places[order]
    if isinstance(x, DTensor) and len(set(sorted_places.tolist())) <= 1:
        at = int(sorted_places[0]) if count else 0
        before = (slice(None),) * place
        front, back = (steps.keep(x[*before, each]) for each in (slice(at), slice(at, None)))
        steps.call("concatenate", front, new, back, axis=place)
        return steps.result("insert")
    both = steps.call("concatenate", x, new, axis=place)
    where = np.full(extent + count, -1)
    where[sorted_places + np.arange(count)] = extent + order
    where[where < 0] = np.arange(extent)
    steps.call("take", both, where, axis=place)
    return steps.result("insert")


def _inserted(steps: Steps, values: Any, x: Any, axis: int, places: np.ndarray[Any, Any]) -> Any:
    """What is put in, with the axes of the tensor and its dtype."""
    new = values if values.dtype == x.dtype else values.astype(x.dtype)
    lacks = x.ndim - new.ndim
    if lacks > 0:
        new = np.reshape(new, (1,) * lacks + tuple(new.shape))
    if not places.ndim:  # a number is no axis, so the first one of the values goes there
        new = np.moveaxis(new, 0, axis)
    count = places.size if places.size != 1 else new.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    try:
        wide = np.broadcast_to(new, shape)
    except ValueError:
        raise ConfigError(
            f"insert: values of shape {tuple(values.shape)} cannot be broadcast to {shape}"
        ) from None
    return steps.keep(wide) if isinstance(wide, DTensor) else wide


def _resize(engine: Computing, a: DTensor, new_shape: Any) -> DTensor:
    """The elements in a row, from the beginning again where there are too few."""
    shape = integers("resize", several(new_shape))
    if any(extent < 0 for extent in shape):
        raise ConfigError(f"resize: expected extents from 0, got {tuple(shape)}")
    size = math.prod(shape)
    steps = Steps(engine)
    if not a.size or not size:
        steps.keep(engine.namespace(a.mesh).zeros(shape, a.dtype))
        return steps.result("resize")
    row = in_a_row(steps.call, a)
    if size > a.size:
        row = steps.call("tile", row, reps=(-(-size // a.size),))
    if size != row.size:
        row = steps.keep(row[slice(size)])
    steps.call("reshape", row, shape=shape)
    return steps.result("resize")


def _take_along_axis(
    engine: Computing, arr: Any, indices: Any, axis: SupportsIndex | None = -1
) -> DTensor:
    """Positions along an axis, others for each of the other axes; workers check them."""
    steps = Steps(engine)
    x, places = array_of(arr), array_of(indices)
    if places.dtype.kind not in "iu":
        raise DtypeError(f"take_along_axis: expected integers as positions, got {places.dtype}")
    if axis is None:
        if places.ndim != 1:
            raise ConfigError("take_along_axis without an axis takes a vector of positions")
        x, axis = in_a_row(steps.call, x), 0
    if x.ndim != places.ndim:
        raise ConfigError(
            f"take_along_axis: expected as many axes of positions as of elements, got"
            f" {tuple(places.shape)} and {tuple(x.shape)}"
        )
    place = normal_axis(axis, x.ndim)
    extent = places.shape[place]
    steps.call("rows", x, places, function="take_along_axis", axis=place, extent=extent)
    return steps.result("take_along_axis")


# Of blocks, and of diagonals.


def _block(engine: Computing, arrays: Any) -> DTensor:
    """Of nested lists the innermost are put together along the last axis."""
    depth = _depth(arrays)
    ndim = max(depth, *(np.ndim(leaf) for leaf in _leaves(arrays)))
    steps = Steps(engine)
    return _joined(steps, arrays, depth, ndim).__copy__()._explained_as("block", *steps.made)


def _depth(arrays: Any) -> int:
    if not isinstance(arrays, list):
        return 0
    found = {_depth(each) for each in cast("list[Any]", arrays)}
    if len(found) != 1:
        raise ConfigError("block: expected lists that are nested equally deep, and none without")
    return found.pop() + 1


def _leaves(arrays: Any) -> list[Any]:
    if not isinstance(arrays, list):
        return [arrays]
    return [leaf for each in cast("list[Any]", arrays) for leaf in _leaves(each)]


def _joined(steps: Steps, arrays: Any, depth: int, ndim: int) -> Any:
    if not isinstance(arrays, list):
        leaf = array_of(arrays)
        shape = (1,) * (ndim - leaf.ndim) + tuple(leaf.shape)
        if shape == tuple(leaf.shape):
            return leaf
        if isinstance(leaf, DTensor):
            return steps.call("reshape", leaf, shape=shape)
        return leaf.reshape(shape)
    parts = [_joined(steps, each, depth - 1, ndim) for each in cast("list[Any]", arrays)]
    if any(isinstance(each, DTensor) for each in parts):
        return steps.call("concatenate", *parts, axis=ndim - depth)
    return np.concatenate(parts, axis=ndim - depth)


def _diag(engine: Computing, v: DTensor, k: SupportsIndex = 0) -> DTensor:
    """The diagonal of a matrix, or the matrix of a diagonal."""
    (offset,) = integers("diag", (k,))
    if v.ndim == _PLANE:
        return cast("DTensor", np.diagonal(cast("Any", v), offset))._explained_as("diag")
    if v.ndim != 1:
        raise ConfigError(f"diag takes vectors and matrices, got {tuple(v.shape)}")
    return _on_diagonal(engine, v, offset, "diag")


def _on_diagonal(engine: Computing, v: DTensor, offset: int, name: str) -> DTensor:
    size = v.size + abs(offset)
    steps = Steps(engine)
    lacks = abs(offset)
    padded = steps.call("pad", v, widths=((0, lacks),)) if lacks else v
    # Above the main diagonal an element is in the row of its number, below in that column.
    shape = (-1, 1) if offset >= 0 else (1, -1)
    spread = steps.call("reshape", padded, shape=shape)
    there = steps.keep(engine.namespace(v.mesh).eye(size, k=offset, dtype=bool))
    steps.call("where", there, spread, np.zeros((), v.dtype))
    return steps.result(name)


def _diagflat(engine: Computing, v: DTensor, k: SupportsIndex = 0) -> DTensor:
    (offset,) = integers("diagflat", (k,))
    row = engine.call("reshape", v, shape=(-1,))
    return _on_diagonal(engine, row, offset, "diagflat")._explained_as("diagflat", row)


def _ix(engine: Computing, *args: Any) -> tuple[Any, ...]:
    """Positions along each axis as a grid that is broadcast."""
    found: list[Any] = []
    for at, each in enumerate(args):
        places = array_of(each)
        if places.ndim != 1:
            raise ConfigError(f"ix_: expected vectors, got {tuple(places.shape)}")
        if places.dtype.kind == "b":
            places = np.flatnonzero(_host_mask("ix_", places))
        shape = [1] * len(args)
        shape[at] = places.shape[0]
        found.append(
            engine.call("reshape", places, shape=shape)
            if isinstance(places, DTensor)
            else places.reshape(shape)
        )
    return tuple(found)


def _from_tensor(name: str) -> Composite:
    """Positions in matrices of the shape of a tensor."""

    def find(engine: Computing, arr: DTensor, k: SupportsIndex = 0) -> tuple[DTensor, ...]:
        if arr.ndim != _PLANE:
            raise ConfigError(f"{name}_from takes matrices, got {tuple(arr.shape)}")
        made: Callable[..., tuple[DTensor, ...]] = getattr(engine.namespace(arr.mesh), name)
        return made(arr.shape[0], k, arr.shape[1])

    return find


def _diag_indices_from(engine: Computing, arr: DTensor) -> tuple[DTensor, ...]:
    extents = set(arr.shape)
    if arr.ndim < _PLANE or len(extents) != 1:
        raise ConfigError(f"diag_indices_from: expected equal extents, got {tuple(arr.shape)}")
    return engine.namespace(arr.mesh).diag_indices(arr.shape[0], arr.ndim)


# Bits.


def _bits(name: str) -> Composite:
    """Eight elements in each byte along an axis, or the reverse."""

    def compute(
        engine: Computing,
        a: DTensor,
        /,
        axis: SupportsIndex | None = None,
        count: Any = None,
        bitorder: str = "big",
    ) -> DTensor:
        if bitorder not in ("big", "little"):
            raise ConfigError(f"{name}: expected 'big' or 'little', got {bitorder!r}")
        steps = Steps(engine)
        x, place = (in_a_row(steps.call, a), 0) if axis is None else (a, normal_axis(axis, a.ndim))
        options: dict[str, Any] = {"bitorder": bitorder}
        if name == "packbits":
            if count is not None:
                raise ConfigError("numpy.packbits has no count")
            extent = -(-x.shape[place] // _BYTE)
        else:
            extent = x.shape[place] * _BYTE
            if count is not None:
                (wanted,) = integers(name, (count,))
                extent = wanted if wanted >= 0 else max(extent + wanted, 0)
                options["count"] = extent
        named = options_of(**options)
        steps.call("rows", x, function=name, axis=place, extent=extent, named=named)
        return steps.result(name)

    return compute


SELECTION: dict[str, Composite] = {
    "delete": _delete,
    "insert": _insert,
    "resize": _resize,
    "take_along_axis": _take_along_axis,
    "block": _block,
    "diag": _diag,
    "diagflat": _diagflat,
    "ix_": _ix,
    "tril_indices_from": _from_tensor("tril_indices"),
    "triu_indices_from": _from_tensor("triu_indices"),
    "diag_indices_from": _diag_indices_from,
    "packbits": _bits("packbits"),
    "unpackbits": _bits("unpackbits"),
}
"""By numpy's names."""
