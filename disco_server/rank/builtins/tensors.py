"""The local halves of a distributed tensor's moves; see ``disco_client.distributed.redistribute``.

What is only sent from worker to worker, or stays, is brought by `transfers`.

A command is the same for every worker, so arguments that differ from worker to worker are
tables with an entry for each: None for a worker outside the mesh, which holds nothing.

A move is bound to its tables and teams once, and then called with what it moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from disco_client.wire.array_likes import plain_array
from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.numpy_parts import NUMPY_PARTS
from disco_client.wire.values import dtype_from_name
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import find_kind
from disco_server.devices.base import on_device
from disco_server.devices.foreign import native
from disco_server.modules.unfinished import refuse_unfinished
from disco_server.rank.builtins.places import in_bounds, local_slices
from disco_server.rank.coroutines import finished
from disco_server.rank.functions import NamedCall, register_func, resolve
from disco_server.rank.worker import current_worker

__all__ = ["LOCAL", "as_moved", "as_part", "layer_norm", "rms_norm", "softmax"]


HostArray = np.ndarray[Any, Any]
Table = Sequence[Any]


def _mine(table: Table) -> Any:
    return table[current_worker().worker_id]


def _new(like: HostArray, shape: Sequence[int]) -> HostArray:
    return current_worker().arrays.empty(tuple(shape), like.dtype)


def _with(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _flat(array: HostArray) -> HostArray:
    xp: Any = current_worker().xp
    return xp.ascontiguousarray(array).reshape(-1)


def _empty(shapes: Table, dtype: Any) -> HostArray | None:
    """Makes room for this worker's part."""
    shape = _mine(shapes)
    if shape is None:
        return None
    return current_worker().arrays.empty(tuple(shape), dtype_from_name(dtype))


def _from_host(whole: HostArray, bounds: Table) -> HostArray | None:
    """Takes this worker's part of an array that was sent with the command; a copy.

    Args:
        whole: The array.
        bounds: For each worker first and last of each axis, one after the other.
    """
    mine = _mine(bounds)
    if mine is None:
        return None
    part = tuple(slice(first, last) for first, last in zip(mine[::2], mine[1::2], strict=True))
    # Not whole[part] alone, which of an array without axes is no array.
    return whole[(*part, ...)].copy()


def _same(local: HostArray | None) -> HostArray | None:
    """Returns the same part, for another register."""
    return local


def _keep(local: HostArray | None, op: str, keeps: Table) -> HostArray | None:
    """Makes copies parts of a sum: one keeps its values, the others get neutral ones."""
    if local is None or op in ("min", "max") or _mine(keeps):
        return local
    xp: Any = current_worker().xp
    return xp.ones_like(local) if op == "prod" else xp.zeros_like(local)


def as_moved(flat: HostArray) -> HostArray:
    """A flat array as collectives move it: as its bytes where they do not know its dtype."""
    return flat if find_kind(flat.dtype) is not None else flat.view(np.uint8)


def _broadcast(local: HostArray | None, team: Any) -> HostArray | None:
    """Copies the part of the first worker of a line to all of the line."""
    if local is not None and team is not None:
        moved = local if find_kind(local.dtype) is not None else as_moved(local.reshape(-1))
        team.broadcast(moved, moved, 0)
    return local


def _allreduce(local: HostArray | None, team: Any, op: str) -> HostArray | None:
    """Combines the parts of a line's workers, for all of them."""
    if local is None:
        return None
    out = _new(local, local.shape)
    team.allreduce(local, out, ReduceOp.from_name(op))
    return out


def _allgather(local: HostArray | None, team: Any, axis: int, extents: Table) -> HostArray | None:
    """Puts the parts of a line together along an axis.

    Args:
        local: This worker's part.
        team: The line.
        axis: Of the tensor.
        extents: For each worker the extents of the parts of its line.
    """
    if local is None:
        return None
    parts = list(_mine(extents))
    whole = _with(local.shape, axis, sum(parts))
    rest = math.prod(_with(local.shape, axis, 1))
    flat = _new(local, (sum(parts) * rest,))
    source, target = as_moved(_flat(local)), as_moved(flat)
    each = rest * local.itemsize // source.itemsize
    team.allgather(source, target, [extent * each for extent in parts])
    return _join(flat, [_with(local.shape, axis, extent) for extent in parts], axis, whole)


def _reduce_scatter(
    local: HostArray | None, team: Any, op: str, axis: int, extents: Table
) -> HostArray | None:
    """Combines the parts of a line's workers, and leaves each its part along an axis."""
    if local is None:
        return None
    parts = list(_mine(extents))
    rest = math.prod(_with(local.shape, axis, 1))
    out = _new(local, _with(local.shape, axis, parts[team.rank]))
    source = _split(local, parts, axis)
    team.reduce_scatter(source, out, ReduceOp.from_name(op), [part * rest for part in parts])
    return out


def _split(array: HostArray, extents: Sequence[int], axis: int) -> HostArray:
    """The parts along an axis, each in C order, one after the other."""
    if math.prod(array.shape[:axis]) == 1:
        return _flat(array)
    flat = _new(array, (array.size,))
    at = written = 0
    for extent in extents:
        part = array[(slice(None),) * axis + (slice(at, at + extent),)]
        flat[written : written + part.size].reshape(part.shape)[...] = part
        at += extent
        written += part.size
    return flat


def _join(
    flat: HostArray, shapes: Sequence[tuple[int, ...]], axis: int, whole: tuple[int, ...]
) -> HostArray:
    """What :func:`_split` took apart."""
    if math.prod(whole[:axis]) == 1:
        return flat.reshape(whole)
    xp: Any = current_worker().xp
    pieces: list[HostArray] = []
    at = 0
    for shape in shapes:
        size = math.prod(shape)
        pieces.append(flat[at : at + size].reshape(shape))
        at += size
    return xp.concatenate(pieces, axis=axis)


_MOVES: Mapping[str, Callable[..., HostArray | None]] = {
    "empty": _empty,
    "from_host": _from_host,
    "share": _same,
    "keep": _keep,
    "broadcast": _broadcast,
    "allreduce": _allreduce,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
}


@register_func("runtime.disco._dt_bind_move")
def bind_move(name: str, *constants: Any) -> NamedCall:
    """Makes a function of a move: it takes what is to be moved, if anything.

    Args:
        name: The move's.
        *constants: What it takes besides.
    """
    move = _MOVES[name]
    return NamedCall(name, lambda *local: move(*local, *constants))


# Softmax and the normalisations, for numpy and cupy.
#
# They are bound by memory, and of numpy's functions each goes through all of it. On a
# host they therefore process rows that fit a core's cache, all steps on one piece
# before the next; on a GPU, where a launch is slow, each step takes all.


Array = Any

_FEWEST_BYTES = 4
"""The dtype of computation; sums of halves would be a few percent off."""

_PIECE = 1 << 18
"""Elements of a piece: a megabyte of float32, about the size of a core's own cache."""


def softmax(xp: Any, x: Array, *, axis: int) -> Array:
    """The exponentials of an array, divided by their sum along an axis."""

    def fill(rows: Array, out: Array) -> None:
        # Of rows without elements there is no largest.
        high = rows.max(axis=-1, keepdims=True) if rows.size else 0
        xp.subtract(rows, high, out=out)
        xp.exp(out, out=out)
        out /= _sums(xp, out)

    return _by_rows(xp, x, axis, fill)


def layer_norm(xp: Any, x: Array, *weights: Array, axis: int, epsilon: float) -> Array:
    """An array less its mean, by its standard deviation; Ba et al., arXiv:1607.06450.

    Args:
        xp: The module of the arrays.
        x: Real floating-point numbers.
        *weights: A scale and a shift along the axis, or one of them, or none.
        axis: Along which axis.
        epsilon: What is added to the variance.
    """

    def fill(rows: Array, out: Array) -> None:
        xp.subtract(rows, _means(xp, rows), out=out)
        out *= _factors(xp, out, epsilon)
        _weigh(out, weights)

    return _by_rows(xp, x, axis, fill)


def rms_norm(xp: Any, x: Array, *weights: Array, axis: int, epsilon: float) -> Array:
    """An array by its root mean square; Zhang and Sennrich, arXiv:1910.07467.

    Args:
        xp: The module of the arrays.
        x: Real floating-point numbers.
        *weights: A scale and a shift along the axis, or one of them, or none.
        axis: Along which axis.
        epsilon: What is added to the mean square.
    """

    def fill(rows: Array, out: Array) -> None:
        xp.multiply(rows, _factors(xp, rows, epsilon), out=out)
        _weigh(out, weights)

    return _by_rows(xp, x, axis, fill)


def _factors(xp: Any, rows: Array, epsilon: float) -> Array:
    kind = rows.dtype.type
    return kind(1) / xp.sqrt(_means(xp, xp.square(rows)) + kind(epsilon))


def _means(xp: Any, rows: Array) -> Array:
    return _sums(xp, rows) / rows.dtype.type(max(rows.shape[1], 1))


def _sums(xp: Any, rows: Array) -> Array:
    # As a product with a vector, which is several times faster than sum().
    return (rows @ xp.ones(rows.shape[1], rows.dtype))[:, None]


def _weigh(out: Array, weights: Sequence[Array]) -> None:
    for number, weight in enumerate(weights):
        if number:
            out += weight
        else:
            out *= weight


def _by_rows(xp: Any, x: Array, axis: int, fill: Callable[[Array, Array], None]) -> Array:
    """Computes along an axis, a piece of rows at a time.

    Args:
        xp: The module of the arrays.
        x: Any shape.
        axis: The axis that rows go along.
        fill: Computes [rows, width] of [rows, width], which may be the same memory.
    """
    moved = xp.moveaxis(x, axis, -1)
    width = moved.shape[-1]
    count = math.prod(moved.shape[:-1])
    rows = moved.reshape(count, width)
    out = xp.empty((count, width), x.dtype)
    narrow = x.dtype.itemsize < _FEWEST_BYTES
    for piece in _pieces(count, width) if xp is np else (slice(None),):
        if narrow:
            wide = rows[piece].astype(np.float32)
            fill(wide, wide)
            out[piece] = wide
        else:
            fill(rows[piece], out[piece])
    return xp.ascontiguousarray(xp.moveaxis(out.reshape(moved.shape), -1, axis))


def _pieces(count: int, width: int) -> Iterator[slice]:
    step = max(1, _PIECE // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, start + step)


# What a worker computes of its part of distributed tensors: a closed list of functions.
#
# Each takes the module of the worker's arrays, numpy or cupy, then its operands, then
# options by name.


Local = Callable[..., Array]


def _reduction(name: str) -> Local:
    def reduce(xp: Any, x: Array, *, axis: Sequence[int], keepdims: bool, dtype: str) -> Array:
        axes = tuple(axis)
        kind = dtype_from_name(dtype)
        if name in ("max", "min") and not all(x.shape[a] for a in axes):
            # A worker without elements has what changes nothing.
            shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
            out = xp.full(shape, neutral(name, kind), kind)
            return (
                out if keepdims else out.reshape([n for a, n in enumerate(shape) if a not in axes])
            )
        extra = _summed_as(kind) if name in ("sum", "prod") else {}
        return xp.asarray(getattr(xp, name)(x, axis=axes, keepdims=keepdims, **extra))

    return reduce


def _summed_as(dtype: np.dtype[Any]) -> dict[str, Any]:
    """The option that has numpy add up in a dtype; none for timedeltas, which stay what they are.

    numpy takes no unit there.
    """
    return {} if dtype.kind == "m" else {"dtype": dtype}


def neutral(name: str, dtype: np.dtype[Any]) -> Any:
    """What changes nothing when it is combined with anything else.

    Args:
        name: How it is combined: "sum", "prod", "min" or "max".
        dtype: Of the elements.
    """
    if name in ("sum", "prod"):
        return name == "prod"
    if dtype.kind == "b":
        return name == "min"
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if name == "max" else info.max
    return -np.inf if name == "max" else np.inf


def _relu(xp: Any, x: Array) -> Array:
    return xp.maximum(x, x.dtype.type(0))


def _silu(xp: Any, x: Array) -> Array:
    return x / (x.dtype.type(1) + xp.exp(-x))


def _sigmoid(xp: Any, x: Array) -> Array:
    return x.dtype.type(1) / (x.dtype.type(1) + xp.exp(-x))


def _gelu(xp: Any, x: Array) -> Array:
    # Hendrycks and Gimpel, arXiv:1606.08415, section 2: the form with tanh.
    kind = x.dtype.type
    inner = kind(0.7978845608028654) * (x + kind(0.044715) * x * x * x)
    return kind(0.5) * x * (kind(1) + xp.tanh(inner))


def _rsqrt(xp: Any, x: Array) -> Array:
    return x.dtype.type(1) / xp.sqrt(x)


# The error function, which numpy lacks: near 0 x times a series in x*x, and beyond that 1 less
# exp(-x*x) times a series in 2 / (2 + x). The series are Chebyshev's, of Python's own function.

_NEAR = 0.5
_FAR = 6.0
"""From here on the error function of a float64 is 1."""

_DEGREES = {4: (5, 12), 8: (9, 24)}
"""Of the series, by the bytes of the dtype."""

_TEMPORARIES = 8
"""How many arrays as long as a piece are in use at once."""


@cache
def _erf_series(itemsize: int) -> tuple[list[float], list[float]]:
    def near(at: Array) -> Array:
        x = [math.sqrt((each + 1) / 2) * _NEAR for each in at]
        return np.array([math.erf(each) / each for each in x])

    def far(at: Array) -> Array:
        x = [2 / _share(each) - 2 for each in at]
        return np.array([math.erfc(each) * math.exp(each * each) for each in x])

    interpolate = np.polynomial.chebyshev.chebinterpolate
    first, second = _DEGREES[itemsize]
    return interpolate(near, first).tolist(), interpolate(far, second).tolist()


def _share(at: float) -> float:
    """The 2 / (2 + x) that is at this place of [-1, 1], for x from `_FAR` to 0."""
    least = 2 / (2 + _FAR)
    return least + (at + 1) / 2 * (1 - least)


def _erf(xp: Any, x: Array) -> Array:
    wide = x.dtype if x.dtype.itemsize >= _FEWEST_BYTES else np.dtype(np.float32)
    near, far = _erf_series(wide.itemsize)
    flat = xp.ascontiguousarray(x).reshape(-1)
    out = xp.empty(flat.shape, x.dtype)
    least = 2 / (2 + _FAR)
    for piece in _pieces(flat.size, _TEMPORARIES) if xp is np else (slice(None),):
        part = flat[piece].astype(wide)
        size = xp.minimum(xp.abs(part), _FAR)
        square = size * size
        low = xp.minimum(square, _NEAR**2) * (2 / _NEAR**2) - 1
        high = (2 / (2 + size) - least) * (2 / (1 - least)) - 1
        rest = 1 - xp.exp(-square) * _chebyshev(far, high)
        rest = xp.where(part < 0, -rest, rest)
        out[piece] = xp.where(size < _NEAR, part * _chebyshev(near, low), rest)
    return out.reshape(x.shape)


def _chebyshev(series: Sequence[float], at: Array) -> Array:
    """A series of Chebyshev's polynomials, by Clenshaw's recurrence."""
    twice, one, two = at * 2, at * 0, at * 0
    for coefficient in series[:0:-1]:
        one, two = twice * one - two + coefficient, one
    return at * one - two + series[0]


def _zeros_like(xp: Any, x: Array, *, dtype: str) -> Array:
    return xp.zeros(x.shape, dtype_from_name(dtype))


_REDUCED = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
"""What a part comes to, by the function of which the running results are."""


def _running_totals(xp: Any, x: Array, *, axis: int, op: str) -> Array:
    return _reduction(_REDUCED[op])(xp, x, axis=(axis,), keepdims=True, dtype=x.dtype.name)


def _running_parts(xp: Any, x: Array, *totals: Array, axis: int, op: str, before: int = 0) -> Array:
    if op in ("add", "multiply"):
        out = getattr(xp, "cumsum" if op == "add" else "cumprod")(x, axis=axis, dtype=x.dtype)
    else:
        out = getattr(xp, op).accumulate(x, axis=axis)
    if before:
        earlier = totals[0][(slice(None),) * axis + (slice(0, before),)]
        out = getattr(xp, op)(out, _running_totals(xp, earlier, axis=axis, op=op))
    return out


def _numpy_part(xp: Any, *operands: Array, function: str, named: Sequence[Any]) -> Array:
    """One of numpy's functions, with what it takes by name."""
    options = dict(named)
    found = xp.asarray(NUMPY_PARTS[function](xp, *operands, **options))
    return _contiguous(xp, found)


def _tile(xp: Any, x: Array, *, reps: Sequence[int]) -> Array:
    return xp.tile(x, tuple(reps))


def _repeat(xp: Any, x: Array, *, repeats: int, axis: int) -> Array:
    return xp.repeat(x, repeats, axis=axis)


def _pad(
    xp: Any, x: Array, *, widths: Sequence[Any], mode: str, values: Sequence[Any] = ()
) -> Array:
    if not widths:  # without axes, of which numpy takes no widths
        return x.copy()
    more: dict[str, Any] = {"constant_values": values} if values else {}
    return xp.pad(x, widths, mode=mode, **more)


def _take_part(xp: Any, x: Array, ids: Array, *, axis: int, first: int, extent: int) -> Array:
    """The requested rows in this part; zeros for the others, which a sum over parts completes."""
    if 0 in x.shape[:axis]:  # nothing is taken, so no position is out of bounds, as in numpy
        return xp.zeros((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), x.dtype)
    positions = in_bounds(xp, ids, extent)
    if x.shape[axis] == extent:
        return xp.take(x, positions, axis=axis)
    own = positions - first
    here = (own >= 0) & (own < x.shape[axis])
    if not x.shape[axis]:
        return xp.zeros((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), x.dtype)
    rows = xp.take(x, xp.where(here, own, 0), axis=axis)
    mask = here.reshape((1,) * axis + ids.shape + (1,) * (x.ndim - axis - 1))
    return xp.where(mask, rows, xp.zeros((), x.dtype))


def _count_pieces(xp: Any, mask: Array, *, lengths: Sequence[int]) -> Array:
    """How often a mask is true in each of the pieces that this part has, one behind the other."""
    ends = list(itertools.accumulate(lengths, initial=0))
    found = [xp.count_nonzero(mask[start:stop]) for start, stop in itertools.pairwise(ends)]
    return xp.asarray([int(each) for each in found], dtype=np.int64)


def _compress_part(xp: Any, x: Array, mask: Array) -> Array:
    return _contiguous(xp, x[mask])


def _pick_part(
    xp: Any,
    x: Array,
    *ids: Array,
    axes: Sequence[int],
    firsts: Sequence[int],
    extents: Sequence[int],
) -> Array:
    """The requested elements in this part, at the front; zeros for the others, likewise."""
    places: list[Array] = []
    here = xp.ones(ids[0].shape, bool)
    for each, axis, first, extent in zip(ids, axes, firsts, extents, strict=True):
        own = in_bounds(xp, each, extent) - first
        here &= (own >= 0) & (own < x.shape[axis])
        places.append(own)
    rows = xp.moveaxis(x, axes, range(len(axes)))
    rest = rows.shape[len(axes) :]
    if 0 in rows.shape[: len(axes)]:
        return xp.zeros((*here.shape, *rest), x.dtype)
    found = rows[tuple(xp.where(here, own, 0) for own in places)]
    mask = here.reshape(here.shape + (1,) * len(rest))
    return _contiguous(xp, xp.where(mask, found, xp.zeros((), x.dtype)))


def _contiguous(xp: Any, array: Array) -> Array:
    """The same in C order; numpy's own function gives an array without axes one."""
    return xp.ascontiguousarray(array).reshape(array.shape)


def _slice_part(xp: Any, x: Array, *items: int, axes: Sequence[int], held: Sequence[Any]) -> Array:
    """What a slice takes of this part, in the order of the slice.

    Args:
        xp: The module of the arrays.
        x: The part.
        *items: The first index, the count and the step of each of `axes`, in the whole.
        axes: Of which axes not all is taken.
        held: The pieces of each of these that the part has, one behind the other.
    """
    for number, (axis, pieces) in enumerate(zip(axes, held, strict=True)):
        before = (slice(None),) * axis
        found = [
            x[(*before, here)]
            for here, _, _ in local_slices(pieces, items[3 * number : 3 * number + 3])
        ]
        x = found[0] if len(found) == 1 else xp.concatenate(found, axis=axis)
    return _contiguous(xp, x)


def _matmul(xp: Any, x: Array, y: Array) -> Array:
    return xp.matmul(x, y)


def _einsum(xp: Any, *operands: Array, subscripts: str, wide: str) -> Array:
    if wide:
        operands = tuple(operand.astype(wide) for operand in operands)
    # Of more than two, the order matters; of two there is but one.
    return xp.einsum(subscripts, *operands, optimize=True)


def _arg(name: str) -> Local:
    def find(xp: Any, x: Array, *, axis: int) -> Array:
        return getattr(xp, name)(x, axis=axis)

    return find


def _transpose(xp: Any, x: Array, *, axes: Sequence[int]) -> Array:
    # A view: a product of matrices reads it as it lies, and a copy would cost more than that.
    return xp.transpose(x, tuple(axes))


def _reshape(xp: Any, x: Array, *, shape: Sequence[int]) -> Array:
    return xp.reshape(x, tuple(shape))


def _concatenate(xp: Any, *operands: Array, axis: int) -> Array:
    return xp.concatenate(operands, axis=axis)


def _update(_xp: Any, x: Array, values: Array, start: Any, *, axis: int) -> Array:
    # Read here, also from a GPU: what is out of bounds must be known before anything is written.
    first, extent, count = int(start), x.shape[axis], values.shape[axis]
    at = first + extent if first < 0 else first
    if not 0 <= at <= extent - count:
        msg = f"update: {count} elements from {first} on are out of bounds for an axis of {extent}"
        raise IndexError(msg)
    out = x.copy()
    out[(slice(None),) * axis + (slice(at, at + count),)] = values
    return out


def _where(xp: Any, condition: Array, x: Array, y: Array) -> Array:
    return xp.where(condition, x, y)


def _cast(_xp: Any, x: Array, *, dtype: str) -> Array:
    return x.astype(dtype_from_name(dtype))


LOCAL: Mapping[str, Local] = {
    "matmul": _matmul,
    "einsum": _einsum,
    **{name: _reduction(name) for name in ("sum", "prod", "max", "min", "any", "all")},
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "nanargmax": _arg("nanargmax"),
    "nanargmin": _arg("nanargmin"),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
    "erf": _erf,
    "zeros_like": _zeros_like,
    "running_totals": _running_totals,
    "running_parts": _running_parts,
    "numpy_part": _numpy_part,
    "tile": _tile,
    "repeat": _repeat,
    "pad": _pad,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice_part,
    "concatenate": _concatenate,
    "take": _take_part,
    "pick": _pick_part,
    "count_pieces": _count_pieces,
    "compress": _compress_part,
    "update": _update,
    "where": _where,
    "cast": _cast,
}
"""The others, by the names of ``disco_client.distributed``."""


def as_part(xp: Any, result: Any) -> Any:
    """What a function returned as an array of this rank's device.

    Raises:
        ArrayRefused: No array can be made of it without a loss.
        ConfigError: It has yet to be computed.
    """
    result = finished(current_worker().guard, result)
    refuse_unfinished(result)
    array = native(result)
    return xp.asarray(array if on_device(array) else plain_array(array))


@register_func("runtime.disco._dt_bind")
def bind(name: str, options: dict[str, Any], tables: dict[str, Any], dtype: Any) -> NamedCall:
    """Makes a function that computes this worker's part of the parts of the operands.

    It takes these parts, and numbers, and returns an array, also one without axes; or
    None where the worker is outside the mesh and has no parts.

    Args:
        name: The function.
        options: What it takes besides, by name.
        tables: The same where it differs from worker to worker: a list with an entry
            for each.
        dtype: That of the result, as the client has it.

    Raises, when it is called:
        TypeError: The function returns another dtype, which cannot become that one.
        FunctionMissing: There is no such function.
        ModuleNotAllowed: Its name leads through a module that is not allowed.
    """
    worker = current_worker()
    xp: Any = worker.xp
    kind = worker.arrays.kind
    said = dtype_from_name(dtype)
    own = {**options, **{key: table[worker.worker_id] for key, table in tables.items()}}
    if name in ELEMENTWISE:
        function = getattr(xp, name)
    elif name in LOCAL:
        function = partial(LOCAL[name], xp, **own)
    else:
        # Looked up at the call: its module may be imported later than this.
        find = cache(partial(resolve, name, worker.allow_modules, worker.allow_functions))

        def function(*operands: Any) -> Any:
            return find()(*operands, **own)

    def compute(*operands: Any) -> Any:
        for operand in operands:
            if operand is None:
                return None
        result = function(*operands)
        if type(result) is kind and result.dtype == said:
            return result
        return _as_said(name, as_part(xp, result), said)

    return NamedCall(name, compute)


def _as_said(name: str, result: Array, said: np.dtype[Any]) -> Array:
    """A result in the dtype that the client says it has, which other versions may compute wider."""
    if not np.can_cast(result.dtype, said, "same_kind"):
        msg = f"{name} returned {result.dtype}, and its rule says {said}: make them agree"
        raise TypeError(msg)
    return result.astype(said, copy=False)
