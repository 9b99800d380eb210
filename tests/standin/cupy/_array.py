"""Arrays on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy import _crossing
from cupy._crossing import Hidden, call, wrap
from cupy._dtypes import SCALARS, supported
from cupy._machine.memory_map import blocks
from cupy._operators import Operators
from cupy.cuda import memory
from cupy.cuda.stream import get_current_stream

__all__ = ["Flags", "ndarray"]

_COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")


class Flags:
    """How an array lies in memory; unlike numpy's, it does not tell what may be written."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous
        self.owndata = owndata

    @property
    def fnc(self) -> bool:
        """In Fortran's order and not in C's."""
        return self.f_contiguous and not self.c_contiguous

    @property
    def forc(self) -> bool:
        """In Fortran's order or in C's."""
        return self.f_contiguous or self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        if name not in ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA"):
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return getattr(self, name.lower())

    def __repr__(self) -> str:
        names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA")
        return "\n".join(f"  {name} : {self[name]}" for name in names)


class ndarray(Operators):
    """An array on the current device.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        memptr: Where it lies; newly allocated unless given.
        strides: How it lies there, in bytes; in order unless given.
        order: C's or Fortran's.

    Attributes:
        base: The array of which this is a view.
        data: Where it begins.
    """

    __module__ = "cupy"
    __array_priority__ = 100

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: memory.MemoryPointer | None = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if any(length < 0 for length in shape):
            raise ValueError("Negative dimensions are not allowed")
        dtype = supported(dtype) if memptr is None else np.dtype(dtype)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        self.base: Any = None
        self.data = memory.alloc(size) if memptr is None else memptr
        self._host = _lay(self.data.ptr, size, shape, dtype, strides, order)

    @classmethod
    def _over(cls, host: np.ndarray, pointer: memory.MemoryPointer, base: Any = None) -> Any:
        """The array that a view of the buffer of a piece of device memory plays."""
        made = cls.__new__(cls)
        made._host = host
        made.data = pointer
        made.base = base
        return made

    def _view_of(self, host: np.ndarray) -> Any:
        made = wrap(host)
        if made.size:
            made.base = self if self.base is None else self.base
        return made

    shape = property(lambda self: self._host.shape, lambda self, new: self._reshape_in_place(new))
    dtype = property(lambda self: self._host.dtype)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    ndim = property(lambda self: self._host.ndim)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: self if self.ndim < 2 else self._view_of(self._host.T))
    device = property(lambda self: self.data.device)

    def _reshape_in_place(self, shape: Any) -> None:
        self._host.shape = shape

    @property
    def flags(self) -> Flags:
        """How it lies in memory."""
        flags = self._host.flags
        return Flags(flags.c_contiguous, flags.f_contiguous, self.base is None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How other libraries find its content."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": get_current_stream().ptr or 1,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Sends numpy's ufuncs to those of the device."""
        import cupy

        involved = inputs
        if "out" in kwargs:
            if len(kwargs["out"]) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            involved += kwargs["out"]
            kwargs["out"] = kwargs["out"][0]
        function = getattr(cupy, ufunc.__name__, None)
        if function is not None and method != "__call__":
            function = getattr(function, method, None)
        if function is None or not all(_may_join(value) for value in involved):
            return NotImplemented
        if ufunc.__name__ in _COMPARISONS:
            inputs = tuple(
                value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
                for value in inputs
            )
        return function(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Sends numpy's functions to those of the device."""
        import cupy

        place: Any = cupy
        for name in (*func.__module__.split(".")[1:], func.__name__):
            place = getattr(place, name, None)
        if place is None or place is func:
            return NotImplemented
        if not all(issubclass(kind, ndarray | np.ndarray) for kind in types):
            return NotImplemented
        return place(*args, **kwargs)

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        """Copies its content to the host, and waits for it unless told not to."""
        stream = get_current_stream() if stream is None else stream
        if out is not None:
            self._check_out(out)
        elif self.size == 0:
            return np.ndarray(self.shape, self.dtype)
        else:
            order = order.upper()
            order = ("F" if self._host.flags.f_contiguous else "C") if order == "A" else order
            out = np.empty(self.shape, self.dtype, order=order)
        ours = self._host.flags
        source = self
        if not ((ours.c_contiguous and out.flags.c_contiguous) or (ours.fnc and out.flags.fnc)):
            with self.device, stream:
                source = self.copy("C" if out.flags.c_contiguous else "F")
        with self.device:  # the null stream is the one of its device
            source.data.copy_to_host_async(out.ctypes.data, source.nbytes, stream)
            if blocking:
                stream.synchronize()
        return out

    def _check_out(self, out: Any) -> None:
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if self.dtype != out.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        if self.shape != out.shape:
            raise ValueError(
                f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}"
            )
        if not out.flags.forc:
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copies an array of the host into it."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if self._host.flags.c_contiguous:
            arr = np.ascontiguousarray(arr)
        elif self._host.flags.f_contiguous:
            arr = np.asfortranarray(arr)
        else:
            raise RuntimeError("Cannot set to non-contiguous array")
        stream = get_current_stream() if stream is None else stream
        with self.device:
            self.data.copy_from_host_async(arr.ctypes.data, self.nbytes, stream)

    def fill(self, value: Any) -> None:
        """Fills it with a scalar."""
        if _crossing.is_array(value):
            if value.shape != ():
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            call(np.copyto, self, value, casting="unsafe")
            return
        value = np.asarray(value, dtype=self.dtype)
        if value.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        call(np.copyto, self, value[()])

    def __getitem__(self, index: Any) -> Any:
        index = _plain_index(index)
        if not _is_basic(index):
            return call(_taken, self, Hidden(index))
        return self._view_of(self._host[_keep_view(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        index = _plain_index(index)
        if _crossing.is_array(value):
            call(assign, self, Hidden(index), value)
        elif _is_basic(index):
            self[index].fill(value)
        else:
            call(assign, self, Hidden(index), Hidden(np.asarray(value, dtype=self.dtype)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __reduce__(self) -> Any:
        """Through the host."""
        import cupy

        return cupy.array, (self.get(order="A"),)


_crossing.adopt(ndarray)


def _lay(
    pointer: int, size: int, shape: Any, dtype: np.dtype[Any], strides: Any, order: str
) -> np.ndarray:
    if size == 0:
        return np.empty(shape, dtype)
    block = blocks.device_block(pointer, size if strides is None else 1, "the memory of an array")
    offset = pointer - block.address
    return np.ndarray(shape, dtype, block.buffer, offset, strides, order or "C")


def _may_join(value: Any) -> bool:
    return type(value) in SCALARS or isinstance(value, ndarray | np.ndarray)


def _plain_index(index: Any) -> Any:
    if isinstance(index, ndarray):
        return index._host
    if isinstance(index, tuple | list):
        return type(index)(_plain_index(part) for part in index)
    return index


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    basic = (int, np.integer, slice, type(None), type(...))
    return all(isinstance(part, basic) and not isinstance(part, bool) for part in parts)


def _keep_view(index: Any) -> Any:
    """The same index, so that numpy gives a view even of a single element."""
    parts = index if isinstance(index, tuple) else (index,)
    return parts if any(part is ... for part in parts) else (*parts, ...)


def _taken(host: np.ndarray, index: Any) -> np.ndarray:
    return host[index]


def assign(host: np.ndarray, index: Any, value: Any) -> None:
    host[index] = value
