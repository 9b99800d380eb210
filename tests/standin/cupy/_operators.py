"""What arrays of the device do by operators and by methods of the same names as numpy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy import _crossing
from cupy._crossing import Hidden, call, wrap
from cupy._dtypes import SCALARS
from cupy._machine.devices import machine

__all__ = ["Operators"]

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "matmul": "matmul",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "divmod": "divmod",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
_COMPARING = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
_NEVER_IN_PLACE = ("divmod", "matmul")
_METHODS = (
    "all any argmax argmin argsort clip compress conj conjugate cumprod cumsum diagonal dot flatten"
    " max mean min nonzero prod ptp put repeat round searchsorted std sum take trace var"
).split()
_VIEWS = "squeeze swapaxes transpose".split()
_THROUGH_HOST = "tobytes tolist".split()


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    function = getattr(np, name)

    def operator(self: Any, other: Any) -> Any:
        if not _crossing.is_array(other) and _steps_aside(self, other):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return operator


def _steps_aside(array: Any, other: Any) -> bool:
    """Whether the other operand says that it decides."""
    missing = object()
    decides = getattr(other, "__array_ufunc__", missing)
    if decides is not missing:
        return decides is None
    return array.__array_priority__ < getattr(other, "__array_priority__", 0)


def _equality(name: str, *, unlike: bool) -> Callable[..., Any]:
    compare = _operator(name)

    def operator(self: Any, other: Any) -> Any:
        if other is None or type(other).__eq__ is object.__eq__:
            return call(np.full, self.shape, unlike)
        return compare(self, other)

    return operator


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def operator(self: Any, other: Any) -> Any:
        if not (_crossing.is_array(other) or type(other) in SCALARS):
            raise TypeError(f"Unsupported type {type(other)}")
        return call(function, self, other, out=self)

    return operator


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda self: call(function, self)


def _method(name: str) -> Callable[..., Any]:
    def on_host(host: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        return getattr(host, name)(*args, **kwargs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(on_host, self, *args, **kwargs)

    on_host.__name__ = method.__name__ = name
    return method


def _ptp(self: Any, *args: Any, **kwargs: Any) -> Any:
    return call(np.ptp, self, *args, **kwargs)


def _view_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._view_of(getattr(self._host, name)(*args, **kwargs))

    return method


def _host_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.get(), name)(*args, **kwargs)

    return method


def _conversion(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: convert(self.get(), *args)


def _copied(host: np.ndarray, order: Any) -> np.ndarray:
    return host.copy(order)


def _cast(host: np.ndarray, dtype: Any, order: Any) -> np.ndarray:
    return host.astype(dtype, order)


def _reshaped(host: np.ndarray, shape: Any, order: Any) -> np.ndarray:
    return host.reshape(shape, order=order).copy()


def sort_in_place(host: np.ndarray, axis: int) -> None:
    host.sort(axis=axis, kind="stable")


class Operators:
    """The part of an array that follows numpy word for word."""

    _host: np.ndarray

    for _short, _long in _BINARY.items():
        locals()[f"__{_short}__"] = _operator(_long)
        locals()[f"__r{_short}__"] = _operator(_long, reflected=True)
        if _short not in _NEVER_IN_PLACE:
            locals()[f"__i{_short}__"] = _in_place(_long)
    for _short, _long in _COMPARING.items():
        locals()[f"__{_short}__"] = _operator(_long)
    __eq__ = _equality("equal", unlike=False)
    __ne__ = _equality("not_equal", unlike=True)
    for _short, _long in _UNARY.items():
        locals()[f"__{_short}__"] = _unary(_long)
    for _long in _METHODS:
        locals()[_long] = _method(_long)
    for _long in _VIEWS:
        locals()[_long] = _view_method(_long)
    for _long in _THROUGH_HOST:
        locals()[_long] = _host_method(_long)
    for _short, _convert in (
        ("int", int),
        ("float", float),
        ("complex", complex),
        ("bytes", bytes),
        ("repr", repr),
        ("str", str),
        ("format", format),
    ):
        locals()[f"__{_short}__"] = _conversion(_convert)
    del _short, _long, _convert

    __hash__ = None
    ptp = _ptp

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        with self.device:
            return self.copy()

    def copy(self, order: str = "C") -> Any:
        """An array of its own with the same content, on the current device."""
        if self.size == 0 or self.data.device_id == machine.current.index:
            return call(_copied, self, order)
        if not self._host.flags.forc:
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        fortran = self._host.flags.fnc
        made = type(self)(self.shape, self.dtype, order="F" if fortran else "C")
        made.data.copy_from_device_async(self.data, self.nbytes)
        return made

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: str | None = None,
        subok: Any = None,
        copy: bool = True,
    ) -> Any:
        """The content in another dtype."""
        if subok is not None:
            raise TypeError("subok is not supported yet")
        if casting is not None:
            raise TypeError("casting is not supported yet")
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return call(_cast, self, dtype, order)

    def item(self) -> Any:
        """Its only element."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def __bool__(self) -> bool:
        if self.size == 0:
            warnings.warn("The truth value of an empty array is ambiguous.", DeprecationWarning, 2)
            return False
        if self.size > 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous."
                " Use a.any() or a.all()"
            )
        return bool(self.get())

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        """The content in another shape, as a view where that is possible."""
        shape = shape[0] if len(shape) == 1 else shape
        made = self._host.reshape(shape, order=order)
        if np.shares_memory(made, self._host) and not copy:
            return self._view_of(made)
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        return call(_reshaped, self, Hidden(shape), order)

    def ravel(self, order: str = "C") -> Any:
        """The content in one dimension, as a view where that is possible."""
        return self.reshape(-1, order=order)

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        """The same memory, with another dtype if one is given."""
        return self._view_of(self._host.view(dtype) if dtype is not None else self._host.view())

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        """Sorts it in place."""
        if kind not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        call(sort_in_place, self, axis)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Writes its content to a file."""
        self.get().tofile(fid, sep, format)

    @property
    def real(self) -> Any:
        """The real part, as a view where there is another."""
        return self._view_of(self._host.real) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return self._view_of(self._host.imag) if self.dtype.kind == "c" else wrap(self._host.imag)
