"""The functions of the module: numpy's, for arrays of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy import _crossing
from cupy._array import ndarray
from cupy._crossing import call
from cupy._dtypes import supported
from cupy._machine.devices import machine
from cupy._machine.queues import Keep

__all__ = ["FUNCTIONS", "UFUNCS", "linear_algebra", "ufunc"]


class ufunc:
    """An elementwise function.

    Args:
        name: Its name in numpy.
    """

    def __init__(self, name: str) -> None:
        self._function = getattr(np, name)
        self.name = f"cupy_{name}"
        self.__name__ = name
        self.nin: int = self._function.nin  # codespell:ignore nin
        self.nout: int = self._function.nout
        self.nargs: int = self._function.nargs

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes it for each element."""
        return call(self._function, *args, **kwargs)

    def outer(self, first: Any, second: Any, **kwargs: Any) -> Any:
        """Computes it for each pair of elements."""
        return call(self._function.outer, first, second, **kwargs)

    def reduce(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduces an array along an axis by it."""
        return call(self._function.reduce, array, *args, **kwargs)

    def accumulate(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduces an array along an axis by it, and keeps each step."""
        return call(self._function.accumulate, array, *args, **kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """Computes it in place for some elements."""
        call(self._function.at, a, indices, *([] if b is None else [b]))


def _function(original: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    function.__name__ = function.__qualname__ = original.__name__
    function.__doc__ = f"What numpy's `{original.__name__}` does, for arrays of the device."
    return function


def _verdict(original: Callable[..., Any]) -> Callable[..., Any]:
    """As `_function`, of functions whose truth value stays on the device."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(lambda *a, **k: np.asarray(original(*a, **k)), *args, **kwargs)

    function.__name__ = function.__qualname__ = original.__name__
    return function


UFUNCS = {
    name: ufunc(name)
    for name in (
        "abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and"
        " bitwise_or bitwise_xor cbrt ceil copysign cos cosh deg2rad degrees divide divmod"
        " equal exp exp2 expm1 fabs float_power floor floor_divide fmax fmin fmod gcd greater"
        " greater_equal hypot invert isfinite isinf isnan lcm ldexp left_shift less less_equal"
        " log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or"
        " logical_xor matmul maximum minimum mod multiply negative nextafter not_equal"
        " positive power rad2deg radians reciprocal remainder right_shift rint sign signbit"
        " sin sinh sqrt square subtract tan tanh true_divide trunc"
    ).split()
    if isinstance(getattr(np, name), np.ufunc)
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: _function(getattr(np, name))
    for name in (
        "all amax amin any argmax argmin argsort argwhere around atleast_1d atleast_2d average"
        " bincount broadcast_arrays broadcast_to choose clip column_stack compress concatenate"
        " copyto count_nonzero cumprod cumsum diag diagonal diff dot dstack einsum expand_dims"
        " extract flatnonzero flip hstack inner isclose kron max mean median meshgrid min moveaxis"
        " nan_to_num nanmax nanmean nanmin nansum nonzero outer pad partition percentile prod ptp"
        " put quantile ravel repeat reshape roll rollaxis round searchsorted sort split squeeze"
        " stack std sum swapaxes take take_along_axis tensordot tile trace transpose tril triu"
        " unique var vdot vstack where"
    ).split()
}
FUNCTIONS |= {name: _verdict(getattr(np, name)) for name in ("allclose", "array_equal")}

linear_algebra: dict[str, Callable[..., Any]] = {
    name: _function(getattr(np.linalg, name))
    for name in (
        "cholesky det eigh eigvalsh inv lstsq matrix_power norm pinv qr slogdet solve svd"
    ).split()
}


def _created(name: str) -> Callable[..., Any]:
    original = getattr(np, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"What numpy's `{name}` does, on the device."
    return function


FUNCTIONS |= {name: _created(name) for name in ("arange", "eye", "identity", "linspace", "tri")}


def _add(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


@_add
def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Allocates an array; what is in it is junk, never zeros."""
    return ndarray(shape, dtype, order=order)


@_add
def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """An array of zeros."""
    return full(shape, 0, dtype, order)


@_add
def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """An array of ones."""
    return full(shape, 1, dtype, order)


@_add
def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """An array of one value."""
    if dtype is None:
        dtype = fill_value.dtype if hasattr(fill_value, "dtype") else np.array(fill_value).dtype
    made = ndarray(shape, dtype, order=order)
    made.fill(fill_value)
    return made


def _like(array: Any, dtype: Any, shape: Any) -> tuple[Any, Any]:
    shape = array.shape if shape is None else shape
    return shape, array.dtype if dtype is None else dtype


@_add
def empty_like(
    prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """Allocates an array like another."""
    return ndarray(*_like(prototype, dtype, shape))


@_add
def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """An array of zeros like another."""
    return zeros(*_like(a, dtype, shape))


@_add
def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """An array of ones like another."""
    return ones(*_like(a, dtype, shape))


@_add
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: Any = None,
    shape: Any = None,
) -> ndarray:
    """An array of one value like another."""
    shape, dtype = _like(a, dtype, shape)
    return full(shape, fill_value, dtype)


@_add
def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """An array of the device of what is on the host, or of other arrays of the device."""
    if subok:
        raise NotImplementedError
    if _crossing.is_array(obj):
        made = obj.astype(obj.dtype if dtype is None else dtype, order, copy=bool(copy))
    elif isinstance(obj, list | tuple) and _holds_arrays(obj):
        made = _crossing.wrap(_crossing.compute(np.array, (list(obj), dtype), {})[0])
    else:
        host = np.array(obj, dtype=dtype, ndmin=ndmin)
        supported(host.dtype)
        fortran = order == "F" or (order in "KA" and host.flags.fnc)
        host = np.asarray(host, order="F" if fortran else "C")
        made = ndarray(host.shape, host.dtype, order="F" if fortran else "C")
        made.set(host)
        machine.compute_queue().push(Keep(host))
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def _holds_arrays(items: Any) -> bool:
    return any(
        _crossing.is_array(item) or (isinstance(item, list | tuple) and _holds_arrays(item))
        for item in items
    )


@_add
def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: Any = None, blocking: bool = False
) -> ndarray:
    """An array of the device: the same if it is one already."""
    return array(a, dtype, bool(copy), order or "K")


@_add
def asanyarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: Any = None,
    blocking: bool = False,
) -> ndarray:
    """As `asarray`."""
    return array(a, dtype, bool(copy), order or "K")


@_add
def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """An array in C's order, the same if it is one already."""
    made = asarray(a, dtype)
    made = made if made.flags.c_contiguous else made.copy()
    return made if made.ndim else made.reshape(1)


@_add
def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    """An array in Fortran's order, the same if it is one already."""
    made = asarray(a, dtype)
    return made if made.flags.f_contiguous else made.copy("F")


@_add
def copy(a: Any, order: str = "K") -> ndarray:
    """An array of its own with the same content."""
    return asarray(a).copy("C" if order == "K" else order)


@_add
def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> np.ndarray:
    """An array of the host with the content of any array."""
    if _crossing.is_array(a):
        return a.get(stream, order, out, blocking)
    if out is None:
        return np.asarray(a, order=order)
    out[...] = a
    return out


@_add
def may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Whether two arrays may lie in the same memory."""
    return np.may_share_memory(a._host, b._host)


@_add
def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Whether two arrays lie in the same memory."""
    return np.shares_memory(a._host, b._host)
