"""What stands between the brackets of a distributed tensor, and taking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np

from disco_client.distributed.composites import Steps, positions_of
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.masks import nonzero, selected
from disco_client.distributed.ops import as_index
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.slices import Bounds, taken_by
from disco_client.errors import ConfigError, DtypeError, OutOfBounds
from disco_client.text import many

__all__ = ["NEW", "POSITION", "Subscript", "getitem", "is_mask", "parsed"]

_Slice: TypeAlias = "slice[Any, Any, Any]"

NEW = -1
"""In place of an axis of the tensor, for None."""

POSITION = -2
"""The same for an axis of the positions."""

_ALL = slice(None)

_EXPECTED = (
    "expected numbers, slices, ..., None, positions as arrays of integers, or masks with axes"
)


class Subscript(NamedTuple):
    """What stands between brackets, by what is done with each axis of the tensor.

    Attributes:
        axes: The axes of which a slice or a number takes some.
        bounds: Of each of these the first index, how many, and the step.
        numbers: Those of which a number takes one index, and which are gone then.
        at: The axes that are taken by positions.
        ids: The positions along each of these, in one shape. They are checked, unless they are
            on the workers.
        dims: For each axis of what is taken the tensor's axis, `NEW` or `POSITION`.
        shape: Of what is taken, as numpy has it.
    """

    axes: tuple[int, ...]
    bounds: tuple[int, ...]
    numbers: tuple[int, ...]
    at: tuple[int, ...]
    ids: tuple[Any, ...]
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return tuple(self.ids[0].shape) if self.ids else ()


def getitem(engine: Computing, x: DTensor, items: Any) -> DTensor:
    """What stands between brackets: numbers, slices, ``...``, None, positions and masks."""
    given = cast("tuple[Any, ...]", items) if isinstance(items, tuple) else (items,)
    if _is_mask_alone(given):
        return selected(engine, x, given[0])
    index = parsed(engine, x, given)
    return _gathered(engine, x, index) if index.at else _sliced(engine, x, index)


def _is_mask_alone(items: Sequence[Any]) -> bool:
    """Whether a mask of the first axes is all that takes some."""
    if not items:
        return False
    rest = items[1:]
    alone = all(item is Ellipsis or (type(item) is slice and item == _ALL) for item in rest)
    return alone and is_mask(items[0]) and not isinstance(items[0], (bool, np.bool_))


def parsed(engine: Computing, x: DTensor, items: Sequence[Any]) -> Subscript:
    """Reads what stands between the brackets of a tensor.

    Where a mask lies on the workers, beside other things, the call waits for how often it is true.

    Raises:
        ConfigError: There is something else than numbers, slices, ``...``, None and positions.
        OutOfBounds: There are too many, or a number is beyond its axis.
    """
    given = _filled_in(x, items)
    slices: list[_Slice] = [slice(None)] * x.ndim
    taken: dict[int, Any] = {}
    numbers: list[int] = []
    dims: list[int] = []
    advanced: list[tuple[int, int]] = []  # where it is given, and how many dims before it
    axis = 0
    for place, item in enumerate(given):
        if item is None:
            dims.append(NEW)
            continue
        if isinstance(item, slice):
            slices[axis] = cast("_Slice", item)
            dims.append(axis)
            axis += 1
            continue
        advanced.append((place, len(dims)))
        if (index := _number(item)) is not None:
            slices[axis] = _one(index, x.shape[axis])
            numbers.append(axis)
        else:
            taken |= enumerate(_positions(engine, item, x.shape[axis:]), axis)
        axis += _consumed(item)
    ids = _together(taken, x.shape)
    front = 0
    # As in numpy, whose numbers are positions here: apart from each other they come to the front.
    if taken and advanced[-1][0] - advanced[0][0] < len(advanced):
        front = advanced[0][1]
    spread = tuple(ids[0].shape) if ids else ()
    axes, bounds = cast("Bounds", taken_by(x.shape, slices))
    counts = dict(zip(axes, bounds[1::3], strict=True))
    shape = [1 if axis == NEW else counts.get(axis, x.shape[axis]) for axis in dims]
    return Subscript(
        axes,
        bounds,
        tuple(numbers),
        tuple(taken),
        ids,
        (*dims[:front], *(POSITION,) * len(spread), *dims[front:]),
        (*shape[:front], *spread, *shape[front:]),
    )


def is_mask(item: Any) -> bool:
    """Whether something is an array or a list of truth values, with axes or without."""
    if isinstance(item, (list, np.ndarray, DTensor, bool, np.bool_)):
        found = item if isinstance(item, DTensor) else np.asarray(cast("Any", item))
        return found.dtype.kind == "b"
    return False


def _refuse_index(x: DTensor, items: object) -> NoReturn:
    raise OutOfBounds(f"a tensor of {many(x.ndim, 'axis', 'axes')} cannot be indexed by {items!r}")


def _filled_in(x: DTensor, items: Sequence[Any]) -> list[Any]:
    """The same with slices for what an ellipsis or nothing stands for."""
    given = list(items)
    # By identity: arrays among them compare element by element.
    dots = [place for place, item in enumerate(given) if item is Ellipsis]
    real = sum(_consumed(item) for item in given if item is not Ellipsis)
    if real > x.ndim or len(dots) > 1:
        _refuse_index(x, tuple(items))
    at = dots[0] if dots else len(given)
    given[at : at + 1] = [slice(None)] * (x.ndim - real)
    return given


def _consumed(item: Any) -> int:
    """How many axes of the tensor something between brackets is for."""
    if item is None:
        return 0
    return max(1, np.ndim(item)) if is_mask(item) else 1


def _number(item: Any) -> int | None:
    """What stands for one index that the client knows."""
    if isinstance(item, (bool, np.bool_, DTensor, list)):
        return None
    if isinstance(item, np.ndarray):
        found = cast("np.ndarray[Any, Any]", item)
        return None if found.ndim or found.dtype.kind not in "iu" else int(found)
    return as_index(item)


def _one(index: int, extent: int) -> _Slice:
    """A number between brackets as a slice of one index."""
    if not -extent <= index < extent:
        raise OutOfBounds(f"index {index} is out of bounds for an axis of {extent}")
    index %= extent
    return slice(index, index + 1)


def _positions(engine: Computing, item: Any, extents: Sequence[int]) -> Sequence[Any]:
    """Positions along one axis, or along as many as a mask of the client has."""
    if not isinstance(item, (list, np.ndarray, DTensor)):
        raise ConfigError(f"{_EXPECTED}; got {item!r}")
    found = item if isinstance(item, DTensor) else np.asarray(cast("Any", item))
    if found.dtype.kind != "b":
        if isinstance(item, DTensor) and item.dtype.kind not in "iu":
            raise DtypeError(f"{_EXPECTED}; got a distributed tensor of {item.dtype}")
        return (cast("Any", item),)
    shape = tuple(found.shape)
    if not shape or shape != tuple(extents[: len(shape)]):
        here = tuple(extents[: len(shape)])
        raise OutOfBounds(f"a mask of shape {shape} is for such axes, got {here}")
    return nonzero(engine, found) if isinstance(found, DTensor) else found.nonzero()


def _together(taken: Mapping[int, Any], extents: Sequence[int]) -> tuple[Any, ...]:
    """Positions along axes, which are checked, in the shape that all of them have."""
    shapes = [tuple(np.shape(each)) for each in taken.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        msg = f"positions of the shapes {' and '.join(map(str, shapes))} do not go together"
        raise OutOfBounds(msg) from None
    # As in numpy: where nothing is taken, no position is out of bounds.
    checked = (
        each
        if isinstance(each, DTensor)
        else positions_of("an index", each, None if 0 in shape else extents[axis])
        for axis, each in taken.items()
    )
    return tuple(
        each if tuple(each.shape) == shape else np.broadcast_to(each, shape) for each in checked
    )


def _sliced(engine: Computing, x: DTensor, index: Subscript) -> DTensor:
    """By slices and numbers."""
    steps = Steps(engine)
    out = steps.keep(engine.take_slices(x, index.axes, index.bounds))
    return _shaped(steps, out, index.numbers, index.shape)


def _gathered(engine: Computing, x: DTensor, index: Subscript) -> DTensor:
    """By positions along some axes; each worker takes those that it has."""
    steps = Steps(engine)
    rest = steps.keep(engine.take_slices(x, index.axes, index.bounds)) if index.axes else x
    if len(index.at) == 1:
        first = index.at[0]
        rows = steps.call("take", rest, index.ids[0], axis=first)
    else:
        first = 0
        rows = steps.call("pick", rest, *index.ids, axes=index.at)
    count = len(index.spread)
    others = [at for at in range(rows.ndim) if not first <= at < first + count]
    rest = [axis for axis in range(x.ndim) if axis not in index.at]
    stands = dict(zip(rest, others, strict=True))
    front = index.dims.index(POSITION) if count else 0
    before = [stands[axis] for axis in index.dims[:front] if axis != NEW]
    after = [at for at in others if at not in before]
    order = [*before, *range(first, first + count), *after]
    if order != sorted(order):
        rows = steps.call("transpose", rows, axes=order)
    gone = [order.index(stands[axis]) for axis in index.numbers]
    return _shaped(steps, rows, gone, index.shape)


def _shaped(steps: Steps, out: DTensor, gone: Sequence[int], shape: Sequence[int]) -> DTensor:
    """Without axes of one index, and with those that None stands for."""
    if list(shape) == list(out.shape):
        return steps.result("getitem")
    if not set(gone).isdisjoint(out.info.axes):  # the only index of an axis that goes comes to all
        whole = PlacementSpec.replica()
        specs = (whole if spec.axis in gone else spec for spec in out.placement.dim_specs)
        out = steps.keep(out.redistribute(Placement(specs)))
    steps.call("reshape", out, shape=shape)
    return steps.result("getitem")
