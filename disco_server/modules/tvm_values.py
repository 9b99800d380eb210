"""Values between this process's functions and TVM's; arrays are shared, not copied.

======================= ===========================================
here                    in TVM
======================= ===========================================
``numpy.ndarray``       ``Tensor`` of the same memory
``Shape``               ``Shape``
``numpy.dtype``         ``dtype``
``Device``              ``Device``
``list``, ``tuple``     ``Array``; comes back as ``list``
``dict``                ``Map``; comes back as ``dict``
a function              ``Function``
======================= ===========================================

None, bool, int, float, str and bytes are the same on both sides; other objects of
TVM, such as the state of a cache, stay what they are and can be passed on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.arrays import ALIGNMENT, empty_array
from disco_client.wire.values import Device, Shape, dtype_from_name, dtype_name, is_array
from disco_server.modules.base import LoadedModule
from disco_server.modules.tvm_runtime import runtime

__all__ = ["TvmFunction", "from_tvm", "served", "to_tvm"]

Array = np.ndarray[Any, Any]
_Copies = list[tuple[Array, Array]]
_local = threading.local()

_CARRIERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that DLPack in numpy does not know, and those of their size that it does."""


class _Raised:
    """An exception that waits beside TVM, through which only a text goes.

    TVM would ask it for its text, and end the process where that raises.
    """

    _count = itertools.count()

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.sign = (
            f"{type(error).__name__} in a function that was called back, #{next(self._count)}."
        )


class TvmFunction:
    """A function of TVM, called with values of this process."""

    __slots__ = ("func",)

    def __init__(self, func: Any) -> None:
        self.func = func

    def __call__(self, *args: Any) -> Any:
        """Calls it, and raises what a function of ours raised within."""
        copies: _Copies = []
        _local.raised = None
        try:
            result = self.func(*[to_tvm(arg, copies) for arg in args])
        except RuntimeError as error:
            stashed: _Raised | None = _local.raised
            if stashed is not None and stashed.sign in str(error):
                raise stashed.error from None
            raise
        finally:
            _local.raised = None
        for array, copy in copies:
            array[...] = copy
        return from_tvm(result)


def served(find: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Makes a function of ours one that TVM can call.

    Args:
        find: Returns the function, anew for each call.
    """

    def call(*args: Any) -> Any:
        try:
            return to_tvm(find()(*map(from_tvm, args)), [])
        except Exception as error:  # noqa: BLE001  (it goes around TVM)
            _local.raised = stashed = _Raised(error)
            raise RuntimeError(stashed.sign) from None

    return call


def to_tvm(value: Any, copies: _Copies) -> Any:
    """Makes a value one of TVM.

    Args:
        value: Any value that a register may hold.
        copies: Gets the arrays whose copies TVM works on, with these copies:
            those that lie in memory as compiled code does not take it.

    Raises:
        EncodingError: TVM has no such dtype or device.
    """
    if is_array(value):
        return _tensor(value, copies)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    ffi = runtime()
    if isinstance(value, Shape):
        return ffi.Shape(value)
    if isinstance(value, (list, tuple, dict)):
        return ffi.convert(_items(cast("Any", value), copies))
    if isinstance(value, np.generic):
        return cast("np.generic[Any]", value).item()
    return _special(ffi, value)


def _items(value: Any, copies: _Copies) -> Any:
    if isinstance(value, dict):
        return {key: to_tvm(item, copies) for key, item in cast("Any", value).items()}
    return [to_tvm(item, copies) for item in value]


def _special(ffi: Any, value: Any) -> Any:
    if isinstance(value, np.dtype):
        try:
            return ffi.dtype(dtype_name(cast("np.dtype[Any]", value)))
        except (ConfigError, ValueError, RuntimeError):
            msg = f"TVM has no dtype {value}"
            raise EncodingError(msg) from None
    if isinstance(value, Device):
        return ffi.device(value.kind, value.index)
    if isinstance(value, TvmFunction):
        return value.func
    if isinstance(value, LoadedModule):
        return getattr(value.functions, "module", value)
    if callable(value) and not isinstance(value, ffi.Object):
        return ffi.convert(served(lambda: value))
    return value


def _tensor(array: Array, copies: _Copies) -> Any:
    ffi = runtime()
    name = dtype_name(array.dtype)
    carrier = _CARRIERS.get(name)
    if carrier is None and array.dtype.kind not in "biuf":
        msg = f"an array of {name} cannot be passed to TVM"
        raise EncodingError(msg)
    lent = array
    flags = array.flags
    # Compiled code reads whole vectors and ends the process where they lie askew.
    if (
        not (flags.c_contiguous and flags.writeable and array.dtype.isnative)
        or array.ctypes.data % ALIGNMENT
    ):
        lent = empty_array(array.shape, array.dtype.newbyteorder("="))
        lent[...] = array
        if flags.writeable:
            copies.append((array, lent))
    if carrier is None:
        return ffi.from_dlpack(lent)
    return _viewed(ffi.from_dlpack(lent.view(carrier)), name)


def _viewed(tensor: Any, dtype: str) -> Any:
    """The same memory under another dtype of that size."""
    ffi = runtime()
    view = ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, tensor.shape, ffi.dtype(dtype), 0)


def from_tvm(value: Any) -> Any:  # noqa: PLR0911  (one return a kind)
    """Makes a value of TVM one of this process."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    ffi = runtime()
    if isinstance(value, ffi.Tensor):
        return _array(value)
    if isinstance(value, ffi.Shape):
        dims = list(value)
        return Shape(dims) if min(dims, default=0) >= 0 else dims
    if isinstance(value, (ffi.Array, ffi.List)):
        return [from_tvm(item) for item in value]
    if isinstance(value, (ffi.Map, ffi.Dict)):
        items = {from_tvm(key): from_tvm(item) for key, item in value.items()}
        return items if all(isinstance(key, str) for key in items) else value
    if isinstance(value, ffi.dtype):
        try:
            return dtype_from_name(str(value))
        except ConfigError:
            return str(value)  # such as "handle"
    if isinstance(value, ffi.Device):
        kind = value.type
        return Device(kind, value.index) if kind in ("cpu", "cuda", "rocm") else value
    if isinstance(value, ffi.Function):
        return TvmFunction(value)
    if isinstance(value, ffi.Module):
        from disco_server.modules.tvm import ModuleFunctions

        return LoadedModule(value.kind, ModuleFunctions(value, ()))
    if isinstance(value, str):
        return str(value)
    return bytes(value) if isinstance(value, bytes) else value


def _array(tensor: Any) -> Any:
    """The memory of a tensor as an array; the tensor itself where numpy cannot see it."""
    dtype = str(tensor.dtype)
    if tensor.device.type != "cpu":
        return tensor
    carrier = _CARRIERS.get(dtype)
    if carrier is None:
        try:
            return np.from_dlpack(tensor)
        except (BufferError, RuntimeError):
            return tensor
    return np.from_dlpack(_viewed(tensor, carrier)).view(dtype_from_name(dtype))
