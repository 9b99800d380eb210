"""Host arrays of any library: what speaks DLPack is taken as numpy's array of the same memory.

numpy's own ``from_dlpack`` refuses bfloat16 and its kind, and before numpy 2.1 its
arrays cannot be written, so the description that DLPack passes is read here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.values import DLPACK_KINDS, dtype_from_name, is_array

__all__ = ["Array", "as_destination", "as_host_array", "speaks_dlpack"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_HOST = (1, 3, 11)
"""Devices whose memory the CPU reads: its own, and what CUDA or ROCm pinned of it."""

_NEWEST = (1, 1)
_READ_ONLY = 1
_NUMPY_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_EXTENSIONS = {
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""Dtypes of ``ml_dtypes`` by DLPack's code and number of bits."""


class _TensorFields(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedFields(ctypes.Structure):
    """DLPack's ``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _TensorFields),
    )


# Prototypes of their own: other libraries set the argument types of ctypes.pythonapi's.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Exported:
    """Memory of another library, in the form that numpy reads; it lives as long as this."""

    def __init__(self, capsule: object, interface: Mapping[str, object]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def speaks_dlpack(value: object) -> bool:
    """Whether a value is an array of another library than numpy that DLPack can pass."""
    kind = type(value)
    speaks = hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")
    return speaks and not is_array(value)


def as_host_array(value: object) -> Array:
    """Makes an array of a program's argument; of the same memory where it is an array.

    Args:
        value: An array of numpy, of another library in the CPU's memory, or what
            ``numpy.asarray`` makes one of.

    Raises:
        EncodingError: It is no array of numbers, lies on a GPU, or records gradients.
    """
    if hasattr(value, "reg_id"):
        msg = "expected a host array, got a reference to an array on the workers"
        raise EncodingError(msg)
    if speaks_dlpack(value):
        return _borrow(value)
    array: Array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "SU":
        msg = f"expected an array of numbers, got {value!r} of type {type(value).__name__}"
        raise EncodingError(msg)
    return array


def as_destination(value: object) -> Array:
    """An array of the same memory as one that is to be filled.

    Raises:
        EncodingError: It is no array, cannot be written, lies on a GPU, or records gradients.
    """
    kind = f"{value!r} of type {type(value).__name__}"
    if is_array(value) or speaks_dlpack(value):
        array = as_host_array(value)
        if array.flags.writeable and not _is_constant(value):
            return array
        kind = "a read-only one"
    msg = f"expected a writable array to copy into, got {kind}"
    raise EncodingError(msg)


def _is_constant(value: object) -> bool:
    """Whether a library never changes an array, though its DLPack does not say so."""
    if is_array(value) or not hasattr(type(value), "__array__"):
        return False
    try:
        return not np.asarray(value).flags.writeable
    except Exception:  # noqa: BLE001  (any library's, of a dtype that numpy has not)
        return False


def _borrow(value: Any) -> Array:
    """The memory of an array of another library as numpy's array."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if getattr(value, "requires_grad", False) is True:
        msg = f"this {kind} requires grad, which does not travel; give its .detach()"
        raise EncodingError(msg)
    try:
        device, index = value.__dlpack_device__()
        capsule = _capsule_of(value) if device in _HOST else None
    except Exception as error:  # noqa: BLE001  (any library's)
        return _copy(value, kind, error)
    if capsule is None:
        where = f"{DLPACK_KINDS.get(int(device), f'device type {int(device)}')}:{index}"
        msg = (
            f"expected an array in the CPU's memory, got a {kind} on {where}; copy it to the CPU"
            " first, as with .cpu() or .get()"
        )
        raise EncodingError(msg)
    return _read(capsule, kind)


def _copy(value: object, kind: str, why: Exception) -> Array:
    """What numpy makes of an array that cannot pass its memory, such as one of several pieces."""
    if hasattr(type(value), "__array__"):
        try:
            copied: Array = np.array(value)
        except Exception as error:  # noqa: BLE001  (any library's)
            why = error
        else:
            copied.flags.writeable = False  # what is written there would be lost
            return copied
    msg = f"this {kind} cannot be read as an array of the CPU's memory: {why}"
    raise EncodingError(msg) from why


def _capsule_of(value: Any) -> object:
    try:
        return value.__dlpack__(max_version=_NEWEST)
    except TypeError:  # a library of before DLPack 1.0
        return value.__dlpack__()


def _read(capsule: object, kind: str) -> Array:
    """The array that a capsule of DLPack describes."""
    constant = False
    if _is_valid(capsule, b"dltensor_versioned"):
        whole = _VersionedFields.from_address(_pointer_in(capsule, b"dltensor_versioned"))
        constant, fields = bool(whole.flags & _READ_ONLY), whole.tensor
    else:
        fields = _TensorFields.from_address(_pointer_in(capsule, b"dltensor"))
    stored, dtype = _dtypes_of(fields, kind)
    size, strides = stored.itemsize, None
    if fields.strides:
        strides = tuple(fields.strides[axis] * size for axis in range(fields.ndim))
    interface = {
        "version": 3,
        "shape": tuple(fields.shape[axis] for axis in range(fields.ndim)),
        "typestr": stored.str,
        "strides": strides,
        "data": ((fields.data or 0) + fields.byte_offset, constant),
    }
    return np.asarray(_Exported(capsule, interface)).view(dtype)


def _dtypes_of(fields: Any, kind: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """A dtype of numpy's own for the elements, and the one that they have."""
    code, bits = int(fields.code), int(fields.bits)
    try:
        if fields.lanes == 1 and (code, bits) in _EXTENSIONS:
            return np.dtype(f"u{bits // 8}"), dtype_from_name(_EXTENSIONS[code, bits])
        if fields.lanes == 1 and code in _NUMPY_KINDS and bits % 8 == 0:
            dtype: np.dtype[Any] = np.dtype(f"{_NUMPY_KINDS[code]}{bits // 8}")
            return dtype, dtype
    except (TypeError, ConfigError) as error:
        raise EncodingError(f"this {kind} cannot travel: {error}") from None
    msg = (
        f"this {kind} has a dtype that numpy and ml_dtypes have not (DLPack's code {code} of"
        f" {bits} bits, {fields.lanes} to an element); convert it first"
    )
    raise EncodingError(msg)
