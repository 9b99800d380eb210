"""What is taken of distributed tensors by the truth of elements, whose number is not known here.

Each worker says how many it takes, for which the call waits; they stay where they are, so that
what is taken lies in parts as unequal as the truth is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of, no_out
from disco_client.distributed.ops import normal_axis
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.slices import rows_along, whole_along
from disco_client.errors import ConfigError, OutOfBounds

__all__ = ["MASKED", "check_mask", "nonzero", "selected"]


def selected(engine: Computing, x: DTensor, mask: Any) -> DTensor:
    """The elements where a mask of the first axes is true: ``x[mask]``.

    A mask without axes takes the tensor once, or not at all.

    Args:
        engine: Computes.
        x: The tensor.
        mask: A distributed tensor, or an array, for which nothing is waited for.

    Raises:
        OutOfBounds: The mask has another shape than these axes.
    """
    flags = array_of(mask)
    if not flags.ndim:
        return selected(engine, x[None], flags.reshape((1,)))
    shape = tuple(flags.shape)
    check_mask(shape, x)
    if shape != tuple(x.shape[: len(shape)]):  # of which nothing is taken
        x = x[tuple(map(slice, shape))]
    if isinstance(flags, DTensor):
        engine.check_may_count()
    steps = Steps(engine)
    rows = x
    if len(shape) > 1:
        rows = steps.call("reshape", x, shape=(flags.size, *x.shape[len(shape) :]))
    rows = _split_once(steps, rows)
    known = flags.reshape(-1)
    lies = rows_along(rows.info, "bool")
    if isinstance(known, DTensor):
        there = steps.keep(known.redistribute(lies.device_mesh, lies.placement))
        steps.keep(engine.compress(rows, there))
    else:
        there = engine.distribute(known, lies.device_mesh, lies.placement)
        steps.keep(engine.compress(rows, there, known))
    return steps.result("getitem")


def check_mask(shape: tuple[int, ...], x: DTensor) -> None:
    """Makes sure that a mask is for the first axes of a tensor; as in numpy it may be empty.

    Args:
        shape: Of the mask.
        x: The tensor.

    Raises:
        OutOfBounds: It has other extents.
    """
    extents = tuple(x.shape[: len(shape)])
    fits = len(extents) == len(shape) and all(
        mine in (0, whole) for mine, whole in zip(shape, extents, strict=True)
    )
    if not fits:
        raise OutOfBounds(f"a mask of shape {shape} is for such axes, got {tuple(x.shape)}")


def _split_once(steps: Steps, rows: DTensor) -> DTensor:
    """Without partial values, and with the first axis split by one axis of the mesh at most."""
    placement = whole_along(rows.info, (0,)).combined()
    if placement == rows.placement:
        return rows
    return steps.keep(rows.redistribute(placement))


def nonzero(engine: Computing, a: DTensor) -> tuple[DTensor, ...]:
    """Where elements are not zero: the positions along each axis."""
    if not a.ndim:
        raise ConfigError("nonzero needs at least one axis; numpy.atleast_1d(x) gives it one")
    steps = Steps(engine)
    flat = steps.keep(_flat_nonzero(steps, a))
    if a.ndim == 1:
        return (flat._explained_as("nonzero", *steps.made),)
    found: list[DTensor] = []
    stride = a.size
    for extent in a.shape:
        stride //= extent or 1
        along = engine.call("remainder", engine.call("floor_divide", flat, stride or 1), extent)
        found.append(along._explained_as("nonzero", *steps.made))
    return tuple(found)


def _flat_nonzero(steps: Steps, a: DTensor) -> DTensor:
    steps.engine.check_may_count()
    flags = steps.call("reshape", steps.call("cast", a, dtype="bool"), shape=(-1,))
    flags = _split_once(steps, flags)
    info = rows_along(flags.info, "int64")
    at = steps.engine.create("arange", info, np.asarray(0), np.asarray(1))
    return steps.engine.compress(at, flags)


def _flatnonzero(engine: Computing, a: DTensor) -> DTensor:
    steps = Steps(engine)
    steps.keep(_flat_nonzero(steps, a))
    return steps.result("flatnonzero")


def _argwhere(engine: Computing, a: DTensor) -> DTensor:
    return engine.call_function(np.stack, (nonzero(engine, a),), {"axis": 1})


def _compress(
    engine: Computing, condition: Any, a: DTensor, axis: Any = None, out: None = None
) -> DTensor:
    no_out("compress", out)
    flags = array_of(condition)
    if flags.ndim != 1:
        raise ConfigError(f"compress: expected a condition of one axis, got {tuple(flags.shape)}")
    x, place = (a.reshape(-1), 0) if axis is None else (a, normal_axis(axis, a.ndim))
    extent = x.shape[place]
    if not isinstance(flags, DTensor) and not flags[extent:].any():
        flags = flags[:extent]  # as numpy: what is not taken may be beyond
    if flags.shape[0] > extent:
        raise OutOfBounds(
            f"compress: a condition of {flags.shape[0]} is longer than axis {place} of"
            f" {tuple(x.shape)}"
        )
    rows = x[(*(slice(None),) * place, slice(flags.shape[0]))]
    if flags.dtype != np.bool_:
        flags = flags.astype("bool")
    if not place:
        return selected(engine, rows, flags)
    front = np.moveaxis(rows, place, 0)  # type: ignore[call-overload]
    return np.moveaxis(selected(engine, front, flags), 0, place)  # type: ignore[call-overload]


def _extract(engine: Computing, condition: Any, arr: Any) -> DTensor:
    x = arr
    if not isinstance(x, DTensor):
        copies = Placement([PlacementSpec.replica()] * condition.mesh.ndim)
        x = engine.distribute(array_of(arr), condition.mesh, copies)
    flags = array_of(condition)
    if flags.dtype != np.bool_:
        flags = flags.astype("bool")
    return selected(engine, x.reshape(-1), flags.reshape(-1))._explained_as("extract")


MASKED: dict[str, Composite] = {
    "nonzero": nonzero,
    "flatnonzero": _flatnonzero,
    "argwhere": _argwhere,
    "compress": _compress,
    "extract": _extract,
}
"""By numpy's names."""
