"""numpy's functions that treat distributed tensors as sets: each value once, in ascending order.

Each worker sorts its part and takes what it has once; that comes to every worker, which does it
again. So what moves is what the workers have once each, and the call waits for how many that is.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of
from disco_client.distributed.numpy_rules import options_of
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.errors import ConfigError

__all__ = ["SETS"]


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` returns, as numpy's has it."""

    values: DTensor
    counts: DTensor


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` returns, as numpy's has it."""

    values: DTensor
    inverse_indices: DTensor


class UniqueAll(NamedTuple):
    """What ``unique_all`` returns, as numpy's has it."""

    values: DTensor
    indices: DTensor
    inverse_indices: DTensor
    counts: DTensor


def _unique(
    engine: Computing,
    ar: DTensor,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,  # noqa: A002  (numpy's name)
) -> Any:
    """The values, and what else of them is asked for, in numpy's order."""
    del sorted  # they always are
    if axis is not None:
        raise ConfigError("numpy.unique of distributed tensors takes no axis: elements, not rows")
    engine.check_may_count()
    steps = Steps(engine)
    flat = _whole(steps, ar)
    values = _once(steps, flat, equal_nan=equal_nan)._explained_as("unique", *steps.made)
    if not (return_index or return_inverse or return_counts):
        return values
    inverse = _inverse(steps, values, flat, equal_nan=equal_nan)
    found = [values]
    if return_index:
        found.append(_first_places(steps, inverse, values.size))
    if return_inverse:
        found.append(steps.call("reshape", inverse, shape=ar.shape))
    if return_counts:
        found.append(_counted(steps, inverse, values.size))
    return tuple(found)


def _whole(steps: Steps, ar: DTensor) -> DTensor:
    """All elements in a row, without partial values."""
    flat = steps.call("reshape", ar, shape=(-1,))
    return steps.keep(flat.redistribute(flat.placement.combined()))


def _once(steps: Steps, flat: DTensor, *, equal_nan: bool) -> DTensor:
    """Each value once, on every worker."""
    everywhere = Placement([PlacementSpec.replica()] * flat.mesh.ndim)
    out = flat
    if flat.placement != everywhere:
        out = steps.keep(_distinct(steps, out, equal_nan=equal_nan).redistribute(everywhere))
    return _distinct(steps, out, equal_nan=equal_nan)


def _distinct(steps: Steps, x: DTensor, *, equal_nan: bool) -> DTensor:
    """Of the part of each worker each value once."""
    row = steps.call("elements", x, function="sort_part")
    named = options_of(equal_nan=bool(equal_nan))
    return steps.keep(row[steps.call("elements", row, function="first_ones", named=named)])


def _inverse(steps: Steps, values: DTensor, flat: DTensor, *, equal_nan: bool) -> DTensor:
    """Where among the values each element is."""
    found = steps.keep(cast("Any", np.searchsorted(cast("Any", values), cast("Any", flat))))
    if equal_nan or values.dtype.kind not in "fcmM":
        return found
    # Each NaN is a value of its own; they stand at the end, in the order of the elements.
    missing = steps.call("isnan", flat)
    number = steps.call("cumsum", missing, axis=0, dtype="int64")
    return steps.call("where", missing, steps.call("add", found, number - 1), found)


def _counted(steps: Steps, inverse: DTensor, length: int) -> DTensor:
    named = options_of(length=length)
    return steps.call("counts", inverse, function="bincount", shape=(length,), named=named)


def _first_places(steps: Steps, inverse: DTensor, length: int) -> DTensor:
    """Where each value is for the first time."""
    places = np.arange(inverse.size)
    named = options_of(length=length)
    return steps.call(
        "counts",
        inverse,
        places,
        function="first_places",
        shape=(length,),
        named=named,
        combine="min",
    )


def _unique_values(engine: Computing, x: DTensor) -> DTensor:
    return cast("DTensor", _unique(engine, x, equal_nan=False))


def _unique_counts(engine: Computing, x: DTensor) -> UniqueCounts:
    return UniqueCounts(*_unique(engine, x, return_counts=True, equal_nan=False))


def _unique_inverse(engine: Computing, x: DTensor) -> UniqueInverse:
    return UniqueInverse(*_unique(engine, x, return_inverse=True, equal_nan=False))


def _unique_all(engine: Computing, x: DTensor) -> UniqueAll:
    return UniqueAll(*_unique(engine, x, True, True, True, equal_nan=False))


def _union(engine: Computing, ar1: Any, ar2: Any) -> DTensor:
    rows = [np.reshape(array_of(each), -1) for each in (ar1, ar2)]
    joined = engine.call("concatenate", *rows, axis=0)
    return cast("DTensor", _unique(engine, joined))._explained_as("union1d")


SETS: dict[str, Composite] = {
    "unique": _unique,
    "unique_values": _unique_values,
    "unique_counts": _unique_counts,
    "unique_inverse": _unique_inverse,
    "unique_all": _unique_all,
    "union1d": _union,
}
"""By numpy's names, of which older versions of numpy lack some."""
