"""numpy's names of the functions of distributed tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

import numpy as np

from disco_client.distributed.composites import Composite
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.masks import MASKED, nonzero
from disco_client.distributed.numpy_arguments import array_of, in_a_row, no_out, unsaid
from disco_client.distributed.numpy_counts import COUNTS
from disco_client.distributed.numpy_cumulative import CUMULATIVE
from disco_client.distributed.numpy_differences import DIFFERENCES
from disco_client.distributed.numpy_dtypes import DTYPES
from disco_client.distributed.numpy_elements import ELEMENTS
from disco_client.distributed.numpy_facts import FACTS
from disco_client.distributed.numpy_polynomials import POLYNOMIALS
from disco_client.distributed.numpy_products import PRODUCTS
from disco_client.distributed.numpy_reductions import REDUCTIONS
from disco_client.distributed.numpy_selection import SELECTION
from disco_client.distributed.numpy_shapes import SHAPES
from disco_client.distributed.numpy_statistics import STATISTICS
from disco_client.distributed.numpy_unique import SETS
from disco_client.distributed.ops import integers, normal_axes, normal_axis, numpy_dtype
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.host_arrays import as_host_array

__all__ = ["FUNCTIONS"]


_PLANE = 2


def _named(name: str, *parameters: str) -> Composite:
    """One of numpy's functions of one operand, with the names of its parameters in order."""

    def adapter(engine: Computing, *args: Any, **kwargs: Any) -> DTensor:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        operand = given.pop(parameters[0], None)
        options = {key: value for key, value in given.items() if not unsaid(key, value)}
        return engine.call(name, operand, **options)

    return adapter


def _where(engine: Computing, *operands: Any) -> Any:
    return nonzero(engine, *operands) if len(operands) == 1 else engine.call("where", *operands)


def _reshape(
    engine: Computing, a: DTensor, shape: Any = None, order: str = "C", **more: Any
) -> DTensor:
    # numpy's name for it before version 2.1.
    shape = more.pop("newshape", shape)
    if order != "C" or any(value is not None for value in more.values()):
        raise ConfigError("numpy.reshape of distributed tensors keeps the order of C and copies")
    return engine.call("reshape", a, shape=several(shape))


def _np_clip(
    engine: Computing, a: Any, a_min: Any = None, a_max: Any = None, out: None = None, **more: Any
) -> DTensor:
    no_out("clip", out)
    low, high = more.pop("min", a_min), more.pop("max", a_max)
    return engine.call("clip", a, low, high, **more)


def _round(engine: Computing, a: DTensor, decimals: int = 0, out: None = None) -> DTensor:
    no_out("round", out)
    numpy_dtype("numpy.round", lambda: np.round(np.zeros(1, a.dtype), decimals))
    if a.dtype.kind in "iu":
        if decimals < 0:
            raise ConfigError("integers are rounded to no fewer than 0 decimals")
        return a.redistribute(a.placement)._explained_as("round")
    if not decimals:
        return engine.call("rint", a)
    # As numpy does it: exactly only where the factor is.
    factor = 10.0 ** abs(decimals)
    there, back = ("multiply", "true_divide")[:: 1 if decimals > 0 else -1]
    wide = engine.call(there, a, factor)
    whole = engine.call("rint", wide)
    return engine.call(back, whole, factor)._explained_as("round", wide, whole)


def _take(
    engine: Computing, a: Any, indices: Any, axis: Any = None, out: None = None, mode: str = "raise"
) -> DTensor:
    no_out("take", out)
    if mode != "raise":
        raise ConfigError(f"numpy.take of distributed tensors has no mode {mode!r}")
    if axis is not None:
        return engine.call("take", a, indices, axis=axis)
    return engine.call("take", in_a_row(engine.call, a), indices, axis=0)


def _concatenate(
    engine: Computing, arrays: Sequence[Any], axis: Any = 0, out: None = None
) -> DTensor:
    no_out("concatenate", out)
    if axis is None:
        arrays, axis = [in_a_row(engine.call, each) for each in arrays], 0
    return engine.call("concatenate", *arrays, axis=axis)


def _stack(engine: Computing, arrays: Sequence[Any], axis: Any = 0, out: None = None) -> DTensor:
    no_out("stack", out)
    each = list(map(array_of, arrays))
    place = normal_axis(axis, each[0].ndim + 1)
    index = (*(slice(None),) * place, None)
    return engine.call("concatenate", *(array[index] for array in each), axis=place)


def _joined(
    engine: Computing, name: str, arrays: Sequence[Any], axes: int, axis: int, out: object
) -> DTensor:
    """Puts arrays together that get at least so many axes first, as numpy adds them."""
    no_out(name, out)
    shaped = [_at_least(engine, each, axes) for each in arrays]
    return engine.call("concatenate", *shaped, axis=axis)


def _at_least(engine: Computing, array: Any, axes: int) -> Any:
    shape = tuple(np.shape(array))
    if len(shape) == 1 and axes > 1:
        shape = (1, *shape)
    shape = (1,) * (min(axes, _PLANE) - len(shape)) + shape
    return _shaped(engine, array, shape + (1,) * (axes - len(shape)))


def _shaped(engine: Computing, array: Any, shape: Sequence[int]) -> Any:
    """An array of either kind with another shape."""
    if tuple(np.shape(array)) == tuple(shape):
        return array
    if isinstance(array, DTensor):
        return engine.call("reshape", array, shape=tuple(shape))
    return np.reshape(array, tuple(shape))


def _vstack(engine: Computing, tup: Sequence[Any], out: None = None) -> DTensor:
    return _joined(engine, "vstack", tup, 2, 0, out)


def _hstack(engine: Computing, tup: Sequence[Any], out: None = None) -> DTensor:
    return _joined(engine, "hstack", tup, 1, 1 if np.ndim(tup[0]) > 1 else 0, out)


def _dstack(engine: Computing, tup: Sequence[Any], out: None = None) -> DTensor:
    return _joined(engine, "dstack", tup, 3, 2, out)


def _column_stack(engine: Computing, tup: Sequence[Any]) -> DTensor:
    columns = [
        each if np.ndim(each) > 1 else _shaped(engine, each, (np.size(each), 1)) for each in tup
    ]
    return engine.call("concatenate", *columns, axis=1)


def _split(*, uneven: bool) -> Composite:
    def split(
        engine: Computing, ary: DTensor, indices_or_sections: Any, axis: int = 0
    ) -> list[DTensor]:
        return engine.call(  # type: ignore[return-value]
            "split", ary, indices_or_sections, axis=axis, uneven=uneven
        )

    return split


def _split_along(name: str, axis: int) -> Composite:
    def split(engine: Computing, ary: DTensor, indices_or_sections: Any) -> list[DTensor]:
        along = axis
        if name == "hsplit" and ary.ndim == 1:
            along = 0
        elif ary.ndim <= along or (name == "vsplit" and ary.ndim < _PLANE):
            raise ConfigError(f"numpy.{name} needs more axes than {tuple(ary.shape)} has")
        return engine.call(  # type: ignore[return-value]
            "split", ary, indices_or_sections, axis=along
        )

    return split


def _zeros_like(
    engine: Computing, a: DTensor, dtype: Any = None, order: str = "K", **more: Any
) -> DTensor:
    del order  # each worker has its part in C order
    if more.get("shape") is not None:
        raise ConfigError("numpy.zeros_like of a distributed tensor has its shape")
    if more.get("device") is not None:
        return np.full_like(a, 0, dtype, device=more["device"])  # type: ignore[call-overload]
    return engine.call("zeros_like", a, dtype=None if dtype is None else np.dtype(dtype).name)


def _tile(engine: Computing, A: Any, reps: Any) -> DTensor:  # noqa: N803  (numpy's name)
    counts = tuple(integers("tile", several(reps)))
    if any(count < 0 for count in counts):
        raise ConfigError(f"tile: expected counts from 0, got {counts}")
    shape = tuple(A.shape)
    counts = (1,) * (len(shape) - len(counts)) + counts
    x = _shaped(engine, A, (1,) * (len(counts) - len(shape)) + shape)
    return engine.call("tile", x, reps=counts)


def _repeat(engine: Computing, a: DTensor, repeats: Any, axis: Any = None) -> DTensor:
    # Counts on the workers are fetched, because the shape of the result depends on them.
    counts = repeats.numpy() if isinstance(repeats, DTensor) else as_host_array(repeats)
    if counts.dtype.kind not in "biu" or (counts < 0).any():
        raise ConfigError(f"repeat: expected counts from 0, got {repeats!r}")
    x, place = (in_a_row(engine.call, a), 0) if axis is None else (a, normal_axis(axis, a.ndim))
    if counts.size == 1:
        return engine.call("repeat", x, repeats=int(counts.reshape(())), axis=place)
    if counts.shape != (x.shape[place],):
        raise ConfigError(
            f"repeat: expected a count, or one for each of {x.shape[place]} elements along axis"
            f" {place}, got counts of shape {counts.shape}"
        )
    return engine.call("take", x, np.repeat(np.arange(counts.size), counts), axis=place)


def _pad(
    engine: Computing, array: DTensor, pad_width: Any, mode: str = "constant", **more: Any
) -> DTensor:
    values = more.pop("constant_values", 0)
    if more:
        raise ConfigError(f"numpy.pad of distributed tensors has no {', '.join(more)}")
    if isinstance(pad_width, Mapping):
        by_axis = {
            normal_axis(axis, array.ndim): each
            for axis, each in cast("Mapping[int, Any]", pad_width).items()
        }
        pad_width = [np.broadcast_to(by_axis.get(axis, 0), _PLANE) for axis in range(array.ndim)]
    given = as_host_array(pad_width)
    if given.dtype.kind not in "iu":
        raise DtypeError(f"pad: expected widths as integers, got {pad_width!r}")
    if (given < 0).any():
        raise ConfigError(f"pad: expected widths from 0, got {pad_width!r}")
    widths = _pairs("widths", given, array.ndim)
    options = {"values": _pairs("values", values, array.ndim)} if mode == "constant" else {}
    return engine.call("pad", array, widths=widths, mode=mode, **options)


def _pairs(what: str, given: Any, ndim: int) -> tuple[tuple[Any, ...], ...]:
    """What is given for all axes, for each, or for both ends of each, for both ends of each."""
    try:
        pairs: list[list[Any]] = np.broadcast_to(as_host_array(given), (ndim, _PLANE)).tolist()
    except ValueError:
        raise ConfigError(f"pad: expected {what} for each of {ndim} axes, got {given!r}") from None
    return tuple(map(tuple, pairs))


def _swapaxes(engine: Computing, a: DTensor, axis1: int, axis2: int) -> DTensor:
    one, other = (normal_axis(axis, a.ndim) for axis in (axis1, axis2))
    order = list(range(a.ndim))
    order[one], order[other] = order[other], order[one]
    return engine.call("transpose", a, axes=order)


def _expand_dims(engine: Computing, a: DTensor, axis: Any) -> DTensor:
    wanted = several(axis)
    count = len(wanted)
    new = normal_axes(wanted, a.ndim + count)
    old = iter(a.shape)
    shape = [1 if place in new else next(old) for place in range(a.ndim + count)]
    return engine.call("reshape", a, shape=shape)


def _squeeze(engine: Computing, a: DTensor, axis: Any = None) -> DTensor:
    ones = [place for place, extent in enumerate(a.shape) if extent == 1]
    gone = ones if axis is None else normal_axes(axis, a.ndim)
    for place in gone:
        if place not in ones:
            raise ConfigError(f"axis {place} of {tuple(a.shape)} is not of extent 1")
    shape = [extent for place, extent in enumerate(a.shape) if place not in gone]
    return engine.call("reshape", a, shape=shape)


def _ravel(engine: Computing, a: DTensor, order: str = "C") -> DTensor:
    return _reshape(engine, a, -1, order)


def _shape(_engine: Computing, a: DTensor) -> tuple[int, ...]:
    return tuple(a.shape)


def _ndim(_engine: Computing, a: DTensor) -> int:
    return a.ndim


def _size(_engine: Computing, a: DTensor, axis: Any = None) -> int:
    return a.size if axis is None else math.prod(a.shape[at] for at in normal_axes(axis, a.ndim))


FUNCTIONS: dict[Callable[..., Any], Composite] = {
    np.transpose: _named("transpose", "a", "axes"),
    np.reshape: _reshape,
    np.ravel: _ravel,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.swapaxes: _swapaxes,
    np.where: _where,
    np.clip: _np_clip,
    np.round: _round,
    np.around: _round,
    np.take: _take,
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.vstack: _vstack,
    np.hstack: _hstack,
    np.dstack: _dstack,
    np.column_stack: _column_stack,
    np.split: _split(uneven=False),
    np.array_split: _split(uneven=True),
    np.vsplit: _split_along("vsplit", 0),
    np.hsplit: _split_along("hsplit", 1),
    np.dsplit: _split_along("dsplit", 2),
    np.tile: _tile,
    np.repeat: _repeat,
    np.pad: _pad,
    np.zeros_like: _zeros_like,
    np.shape: _shape,
    np.ndim: _ndim,
    np.size: _size,
}
"""By numpy's functions that are no ufuncs."""

_TABLES = (
    *(SHAPES, PRODUCTS, STATISTICS, REDUCTIONS, CUMULATIVE, COUNTS, ELEMENTS, SELECTION),
    *(DIFFERENCES, POLYNOMIALS, FACTS, MASKED, DTYPES, SETS),
)

FUNCTIONS.update(
    (attrgetter(name)(np), function)
    for table in _TABLES
    for name, function in table.items()
    if hasattr(np.linalg if "." in name else np, name.rpartition(".")[2])
)
