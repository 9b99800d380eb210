"""A call of each of numpy's names that distributed tensors serve, and whether it agrees with numpy.

One table for what counts the names and for the test that each has a row.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from disco_client.distributed import DTensor

__all__ = ["EXAMPLES", "agrees", "check_call", "example_arrays", "matrices", "outcome", "placed"]

Example = Callable[[Any, Any], Any]
"""Takes numpy or a namespace, and the arrays, of the host or distributed."""


def example_arrays() -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that the examples take, by their names there."""
    rng = np.random.default_rng(7)
    x = rng.integers(-20, 20, (6, 4)) / 4
    return {
        "x": x,
        "y": rng.integers(-20, 20, (6, 4)) / 8 + 0.0625,
        "u": rng.integers(1, 16, (6, 4)) / 16,
        "n": rng.integers(1, 9, (6, 4)),
        "k": rng.integers(0, 4, (6, 4)),
        "b": rng.integers(0, 2, (6, 4)).astype(bool),
        "c": x + 1j * x[::-1],
        "v": rng.integers(-20, 20, 12) / 4,
        "w": np.arange(12) / 2,
        "i": rng.integers(0, 6, 12),
        "p": rng.integers(0, 255, (6, 4)).astype(np.uint8),
        "d": np.datetime64("2024-03-01") + rng.integers(0, 99, 12),
    }


def _of(array: str, names: str) -> dict[str, Example]:
    """Functions of one array."""
    return {
        name: lambda m, t, name=name: getattr(m, name)(getattr(t, array)) for name in names.split()
    }


def _of_two(one: str, other: str, names: str) -> dict[str, Example]:
    return {
        name: lambda m, t, name=name: getattr(m, name)(getattr(t, one), getattr(t, other))
        for name in names.split()
    }


def _dtypes(array: str, names: str) -> dict[str, Example]:
    """Dtypes that arrays are converted to."""
    return {
        name: lambda m, t, name=name: getattr(t, array).astype(getattr(m, name))
        for name in names.split()
    }


def _kinds(names: str) -> dict[str, Example]:
    """Kinds of dtypes."""
    return {
        name: lambda m, t, name=name: m.issubdtype(t.x.dtype, getattr(m, name))
        for name in names.split()
    }


def _read(name: str, *args: Any, **options: Any) -> Example:
    def read(m: Any, _t: Any) -> Any:
        given = [each() if callable(each) else each for each in args]
        return getattr(m, name)(*given, **options)

    return read


EXAMPLES: Mapping[str, Example] = {
    **_of(
        "u",
        "acos arccos acosh asin arcsin asinh arcsinh atan arctan atanh arctanh cbrt cos cosh exp"
        " exp2 expm1 log log10 log1p log2 sqrt reciprocal sin sinh tan tanh i0 sinc",
    ),
    **{name: lambda m, t, name=name: getattr(m, name)(t.u + 1) for name in ("acosh", "arccosh")},
    **_of(
        "x",
        "abs absolute all amax amin any argmax argmin around array asanyarray asarray"
        " asarray_chkfinite ascontiguousarray asfortranarray atleast_1d atleast_2d atleast_3d"
        " average ceil copy corrcoef count_nonzero cov cumsum cumprod deg2rad degrees"
        " diagflat diag diagonal diff ediff1d empty_like fabs fix flip fliplr flipud floor gradient"
        " iscomplexobj isfinite isfortran isinf isnan isneginf isposinf isrealobj isscalar"
        " iterable matrix_transpose max mean min min_scalar_type modf frexp nan_to_num nanargmax"
        " nanargmin nancumprod nancumsum nanmax nanmean nanmin nanprod nanstd nansum nanvar ndim"
        " negative ones_like positive prod ptp rad2deg radians ravel require rint rot90 round shape"
        " sign signbit size spacing square squeeze std sum trace transpose tril"
        " trapezoid triu tril_indices_from triu_indices_from trunc unstack unwrap var vstack"
        " hstack dstack column_stack zeros_like array_repr array_str array2string stack"
        " concatenate concat",
    ),
    "empty_like": lambda m, t: m.empty_like(t.x) * 0 == 0,
    "diag_indices_from": lambda m, t: m.diag_indices_from(t.x[:4]),
    **_of("c", "angle conj conjugate imag iscomplex isreal real"),
    **_of("n", "bitwise_count bitwise_invert bitwise_not invert unpackbits logical_not"),
    "unpackbits": lambda m, t: m.unpackbits(t.p, axis=1),
    "packbits": lambda m, t: m.packbits(t.b, axis=0),
    **_of_two(
        "x",
        "y",
        "add allclose arctan2 array_equal array_equiv atan2 copysign divide divmod equal"
        " float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot isclose"
        " kron less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum"
        " minimum mod multiply nextafter not_equal outer remainder subtract true_divide inner"
        " append broadcast_arrays isin vecdot histogram2d",
    ),
    "histogram2d": lambda m, t: m.histogram2d(t.v, t.w, 4),
    "broadcast_arrays": lambda m, t: tuple(m.broadcast_arrays(t.x, t.x[:1])),
    **_of_two("u", "y", "power pow"),
    "power": lambda m, t: m.power(t.u, t.x),
    "pow": lambda m, t: m.pow(t.u, t.x),
    "float_power": lambda m, t: m.float_power(t.u, t.x),
    **_of_two("n", "k", "bitwise_and bitwise_or bitwise_xor gcd lcm ldexp"),
    **_of_two("n", "k", "bitwise_left_shift bitwise_right_shift left_shift right_shift"),
    "ldexp": lambda m, t: m.ldexp(t.x, t.k),
    **_dtypes(
        "x",
        "bool bool_ byte complex128 complex64 csingle cdouble double float16 float32 float64"
        " half int16 int32 int64 int8 int_ intc intp long longlong short single",
    ),
    **_dtypes("n", "ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong ulonglong ushort"),
    "datetime64": lambda m, t: t.d - m.datetime64("2024-01-01"),
    "timedelta64": lambda m, t: t.d + m.timedelta64(3, "D"),
    **_kinds(
        "character complexfloating flexible floating generic inexact integer number"
        " signedinteger unsignedinteger issubdtype",
    ),
    "issubdtype": lambda m, t: m.issubdtype(t.x.dtype, m.float64),
    "apply_over_axes": lambda m, t: m.apply_over_axes(np.sum, t.x, [0, 1]),
    "arange": lambda m, _: m.arange(3, 12, 2),
    "array_split": lambda m, t: m.array_split(t.x, 4),
    "bartlett": lambda m, _: m.bartlett(7),
    "blackman": lambda m, _: m.blackman(7),
    "hamming": lambda m, _: m.hamming(7),
    "hanning": lambda m, _: m.hanning(7),
    "kaiser": lambda m, _: m.kaiser(7, 3.5),
    "base_repr": lambda m, t: m.base_repr(t.n[0, 0], 3),
    "binary_repr": lambda m, t: m.binary_repr(t.n[0, 0], 9),
    "bincount": lambda m, t: m.bincount(t.i),
    "block": lambda m, t: m.block([[t.x, t.y], [t.y, t.x]]),
    "broadcast_shapes": lambda m, t: m.broadcast_shapes(t.x.shape, t.x[0].shape),
    "broadcast_to": lambda m, t: m.broadcast_to(t.x, (2, 6, 4)),
    "busday_count": lambda m, t: m.busday_count(t.d, t.d + np.timedelta64(9)),
    "busday_offset": lambda m, t: m.busday_offset(t.d, 2, roll="forward"),
    "is_busday": lambda m, t: m.is_busday(t.d),
    "can_cast": lambda m, t: m.can_cast(t.x, "float32"),
    "choose": lambda m, t: m.choose(t.k, [t.x, t.y, -t.x, 7]),
    "clip": lambda m, t: m.clip(t.x, -1, 2),
    "common_type": lambda m, t: m.common_type(t.n, t.c),
    "compress": lambda m, t: m.compress([True, False, True, True], t.x, axis=1),
    "convolve": lambda m, t: m.convolve(t.v, [1.0, -2, 3]),
    "correlate": lambda m, t: m.correlate(t.v, [1.0, -2, 3]),
    "cross": lambda m, t: m.cross(t.x[:, :3], t.y[:, :3]),
    "cumulative_prod": lambda m, t: m.cumulative_prod(t.x, axis=0),
    "cumulative_sum": lambda m, t: m.cumulative_sum(t.x, axis=1, include_initial=True),
    "datetime_data": lambda m, t: m.datetime_data(t.d.dtype),
    "delete": lambda m, t: m.delete(t.x, [1, 4], axis=0),
    "diag_indices": lambda m, _: m.diag_indices(5),
    "digitize": lambda m, t: m.digitize(t.x, [-3, -1, 0.5, 2]),
    "dot": lambda m, t: m.dot(t.x, t.y.T),
    "dsplit": lambda m, t: m.dsplit(t.x[:, :, None] + t.v[:2], 2),
    "dtype": lambda m, t: t.x.dtype == m.dtype("float64"),
    "einsum": lambda m, t: m.einsum("ij,kj->ik", t.x, t.y),
    "einsum_path": lambda m, t: m.einsum_path("ij,kj->ik", t.x, t.y),
    "empty": lambda m, _: m.empty((3, 2)).shape,
    "errstate": lambda m, t: _within(m.errstate(divide="ignore"), lambda: t.x / 2),
    "expand_dims": lambda m, t: m.expand_dims(t.x, 1),
    "extract": lambda m, t: m.extract(t.x > 0, t.x),
    "argwhere": lambda m, t: m.argwhere(t.b),
    "astype": lambda m, t: m.astype(t.x, "int64"),
    "flatnonzero": lambda m, t: m.flatnonzero(t.b),
    "nonzero": lambda m, t: m.nonzero(t.b),
    "from_dlpack": lambda m, _: m.from_dlpack(np.arange(4.0)),
    "fromfunction": lambda m, _: m.fromfunction(lambda i, j: i * 10 + j, (3, 4)),
    "unique": lambda m, t: m.unique(t.k, True, True, True),
    "unique_values": lambda m, t: m.sum(m.unique_values(t.k)),
    "unique_counts": lambda m, t: tuple(m.unique_counts(t.k)),
    "unique_inverse": lambda m, t: tuple(m.unique_inverse(t.k)),
    "unique_all": lambda m, t: tuple(m.unique_all(t.k)),
    "union1d": lambda m, t: m.union1d(t.k, t.n),
    "eye": lambda m, _: m.eye(4, 5, 1),
    "finfo": lambda m, t: float(m.finfo(t.x.dtype).eps),
    "format_float_positional": lambda m, t: m.format_float_positional(t.x[1, 1]),
    "format_float_scientific": lambda m, t: m.format_float_scientific(t.x[1, 1]),
    "frombuffer": _read("frombuffer", b"abcdefgh", "int16"),
    "fromiter": _read("fromiter", [3, 1, 2], "float64"),
    "fromstring": _read("fromstring", "1 2 3", sep=" "),
    "loadtxt": _read("loadtxt", lambda: io.StringIO("1 2\n3 4")),
    "genfromtxt": _read("genfromtxt", lambda: io.StringIO("1 2\n3 4")),
    "full": lambda m, _: m.full((3, 2), 7.5),
    "full_like": lambda m, t: m.full_like(t.x, 7),
    "geomspace": lambda m, _: m.geomspace(1, 1000, 7),
    "logspace": lambda m, _: m.logspace(0, 3, 7),
    "get_printoptions": lambda m, _: m.get_printoptions(),
    "set_printoptions": lambda m, _: m.set_printoptions(precision=8),
    "printoptions": lambda m, t: _within(m.printoptions(precision=2), lambda: m.array_str(t.x)),
    "histogram": lambda m, t: m.histogram(t.x, 5),
    "histogram_bin_edges": lambda m, t: m.histogram_bin_edges(t.x, 5),
    "histogramdd": lambda m, t: m.histogramdd(t.x, (2, 3, 2, 2)),
    "hsplit": lambda m, t: m.hsplit(t.x, 2),
    "identity": lambda m, _: m.identity(3),
    "iinfo": lambda m, t: m.iinfo(t.n.dtype).max,
    "indices": lambda m, _: m.indices((3, 4)),
    "insert": lambda m, t: m.insert(t.x, [1, 4], -9, axis=0),
    "interp": lambda m, t: m.interp(t.x, [-4, 0, 4], [1.0, 3, 2]),
    "isdtype": lambda m, t: m.isdtype(t.x.dtype, "real floating"),
    "isnat": lambda m, t: m.isnat(t.d),
    "ix_": lambda m, t: m.ix_(t.i, [1, 2]),
    "linspace": lambda m, _: m.linspace(0, 1, 7),
    "matmul": lambda m, t: m.matmul(t.x, t.y.T),
    "matvec": lambda m, t: m.matvec(t.x, t.y[0]),
    "vecmat": lambda m, t: m.vecmat(t.x[:, 0], t.y),
    "meshgrid": lambda m, t: tuple(m.meshgrid(t.v, t.w)),
    "mintypecode": lambda m, t: m.mintypecode([t.x.dtype.char, "f"]),
    "moveaxis": lambda m, t: m.moveaxis(t.x, 0, 1),
    "ndindex": lambda m, t: list(m.ndindex(*t.x[:2].shape)),
    "ones": lambda m, _: m.ones((3, 2)),
    "pad": lambda m, t: m.pad(t.x, 1),
    "permute_dims": lambda m, t: m.permute_dims(t.x, (1, 0)),
    "polyadd": lambda m, t: m.polyadd(t.v, [1.0, 2]),
    "polysub": lambda m, t: m.polysub(t.v, [1.0, 2]),
    "polyder": lambda m, t: m.polyder(t.v),
    "polyint": lambda m, t: m.polyint(t.v),
    "polyval": lambda m, t: m.polyval([1.0, -2, 3], t.x),
    "promote_types": lambda m, t: m.promote_types(t.x.dtype, t.c.dtype),
    "ravel_multi_index": lambda m, t: m.ravel_multi_index((t.k, t.k), (4, 5)),
    "repeat": lambda m, t: m.repeat(t.x, 2, axis=0),
    "reshape": lambda m, t: m.reshape(t.x, (4, 6)),
    "resize": lambda m, t: m.resize(t.x, (5, 7)),
    "result_type": lambda m, t: m.result_type(t.n, t.c),
    "roll": lambda m, t: m.roll(t.x, 2, axis=0),
    "rollaxis": lambda m, t: m.rollaxis(t.x, 1),
    "searchsorted": lambda m, t: m.searchsorted(t.w, t.x),
    "select": lambda m, t: m.select([t.b, t.x > 1], [t.x, t.y], -1),
    "split": lambda m, t: m.split(t.x, 3),
    "vsplit": lambda m, t: m.vsplit(t.x, 3),
    "stack": lambda m, t: m.stack([t.x, t.y]),
    "concatenate": lambda m, t: m.concatenate([t.x, t.y]),
    "concat": lambda m, t: m.concat([t.x, t.y]),
    "vstack": lambda m, t: m.vstack([t.x, t.y]),
    "hstack": lambda m, t: m.hstack([t.x, t.y]),
    "dstack": lambda m, t: m.dstack([t.x, t.y]),
    "column_stack": lambda m, t: m.column_stack([t.x, t.y]),
    "swapaxes": lambda m, t: m.swapaxes(t.x, 0, 1),
    "take": lambda m, t: m.take(t.x, [3, 1], axis=0),
    "take_along_axis": lambda m, t: m.take_along_axis(t.x, t.k, axis=1),
    "tensordot": lambda m, t: m.tensordot(t.x, t.y, ([1], [1])),
    "tile": lambda m, t: m.tile(t.x, (2, 1)),
    "tri": lambda m, _: m.tri(4, 5, 1),
    "tril_indices": lambda m, _: m.tril_indices(5, 1),
    "triu_indices": lambda m, _: m.triu_indices(5, -1, 4),
    "typename": lambda m, t: m.typename(t.x.dtype.char),
    "unravel_index": lambda m, t: m.unravel_index(t.i, (2, 3)),
    "vander": lambda m, t: m.vander(t.v, 4),
    "vdot": lambda m, t: m.vdot(t.x, t.y),
    "where": lambda m, t: m.where(t.b, t.x, t.y),
    "zeros": lambda m, _: m.zeros((3, 2)),
    "linalg.cross": lambda m, t: m.linalg.cross(t.x[:, :3], t.y[:, :3]),
    "linalg.diagonal": lambda m, t: m.linalg.diagonal(t.x),
    "linalg.matmul": lambda m, t: m.linalg.matmul(t.x, t.y.T),
    "linalg.matrix_transpose": lambda m, t: m.linalg.matrix_transpose(t.x),
    "linalg.norm": lambda m, t: m.linalg.norm(t.x, axis=1),
    "linalg.outer": lambda m, t: m.linalg.outer(t.v, t.w),
    "linalg.tensordot": lambda m, t: m.linalg.tensordot(t.x, t.y, axes=([1], [1])),
    "linalg.trace": lambda m, t: m.linalg.trace(t.x),
    "linalg.vecdot": lambda m, t: m.linalg.vecdot(t.x, t.y),
    "linalg.vector_norm": lambda m, t: m.linalg.vector_norm(t.x, axis=1),
}
"""By numpy's names."""


def _within(context: Any, compute: Callable[[], Any]) -> Any:
    with context:
        return compute()


def agrees(got: Any, want: Any) -> bool:
    """Whether a result is numpy's: shape, dtype and values up to rounding; all of several."""
    if isinstance(want, (list, tuple)):
        same = isinstance(got, (list, tuple)) and len(got) == len(want)
        return same and all(map(agrees, got, want))
    if isinstance(want, dict):
        return got == want
    if isinstance(got, DTensor):
        host, whole = got.numpy(), np.asarray(want)
        alike = got.shape == whole.shape and got.dtype == whole.dtype == host.dtype
        if not alike or whole.dtype.kind in "mM":
            return alike and bool((host == whole).all())
        return bool(np.allclose(host, whole, rtol=1e-6, atol=1e-9, equal_nan=True))
    return type(got) is type(want) and bool(np.all(got == want))


def outcome(name: str, session: Any, placement: str = "S[0]") -> str | None:
    """Makes the call of an example; None where it agrees with numpy, else what came instead.

    Args:
        name: One of numpy's names.
        session: On whose workers.
        placement: How the arrays lie.
    """
    arrays = example_arrays()
    example = EXAMPLES.get(name)
    if example is None:
        return "there is no example"
    parts = {
        key: session.distribute(each, placement=_fitting(placement, each))
        for key, each in arrays.items()
    }
    try:
        want = example(np, SimpleNamespace(**arrays))
    except AttributeError as error:
        return f"this numpy: {error}"
    try:
        got = example(session.numpy, SimpleNamespace(**parts))
        return None if agrees(got, want) else f"got {got!r}, expected {want!r}"
    except Exception as error:  # noqa: BLE001  (whatever it is, the name is not served)
        return f"{type(error).__name__}: {error}"


def matrices(dtype: str, *, nan: bool = False) -> list[np.ndarray[Any, Any]]:
    """Two matrices of 7 x 4 integers, the second one in order.

    Args:
        dtype: Of both.
        nan: Whether the first one has some NaN, if the dtype does.
    """
    y = np.arange(-9, 19).reshape(7, 4).astype(dtype)
    x = np.roll(y, 5)
    if nan and x.dtype.kind in "fc":
        x[1, 1:3] = x[4, 2] = np.nan
    return [x, y]


def placed(placements: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """Every placement with the first dtype, and the other dtypes split.

    Where elements lie does not depend on their dtype, so not each has to lie everywhere.
    """
    first, *others = dtypes
    return [(each, first) for each in placements] + [("S[0]", each) for each in others]


def check_call(
    session: Any, call: Callable[..., Any], arrays: list[np.ndarray[Any, Any]], placement: str
) -> None:
    """Makes sure that a call is as numpy has it, also which dtypes it refuses.

    Args:
        session: On whose workers.
        call: Takes numpy or a namespace, and the arrays.
        arrays: Of the host.
        placement: How they lie, if they can.
    """
    parts = [session.distribute(each, placement=_fitting(placement, each)) for each in arrays]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = call(np, *arrays)
        except TypeError:
            want = TypeError
    if want is TypeError:
        try:
            call(session.numpy, *parts)
        except TypeError:
            return
        raise AssertionError("numpy refuses this dtype")
    got = call(session.numpy, *parts)
    assert agrees(got, want), f"got {_shown(got)}, expected {want!r}"


def _shown(got: Any) -> Any:
    if isinstance(got, (list, tuple)):
        return list(map(_shown, got))
    return got.numpy() if isinstance(got, DTensor) else got


def _fitting(placement: str, array: np.ndarray[Any, Any]) -> str:
    """The placement, for what cannot lie so another one."""
    if placement == "S[1]" and array.ndim == 1:
        return "S[0]"
    return "S[0]" if placement == "P" and array.dtype.kind in "bM" else placement
