"""Arrays of other libraries as numpy's, and numpy's for other libraries, without a copy; by DLPack.

numpy speaks DLPack too, but not of bfloat16 and the floating-point numbers of 8 bits. So the
description of the memory is read here, and for these dtypes written, which is a structure of C:
https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.array_likes import ArrayRefused
from disco_client.wire.torch_memory import view_plain
from disco_client.wire.values import DLPACK_KINDS, dtype_from_name, is_extension

__all__ = [
    "DlpackError",
    "exported",
    "library_name",
    "on_host",
    "refuse_hidden_state",
    "speaks_dlpack",
    "view",
]


HostArray = np.ndarray[Any, Any]


class DlpackError(ArrayRefused):
    """An array of another library cannot be shared."""


def speaks_dlpack(value: object) -> bool:
    """Whether a value is an array of another library than numpy, that it can share.

    Distributed tensors, which have registers, make a copy for whoever asks; it is none of theirs.
    """
    kind = type(value)
    return (
        hasattr(kind, "__dlpack__")
        and hasattr(kind, "__dlpack_device__")
        and not isinstance(value, np.ndarray)
        and not hasattr(kind, "reg_id")
    )


def library_name(value: object) -> str:
    """The type of a value as messages name it: ``torch.Tensor``."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def on_host(value: Any) -> bool:
    """Whether the memory of an array of another library is the host's.

    Raises:
        DlpackError: Its library cannot tell.
    """
    try:
        kind, _ = value.__dlpack_device__()
        return int(kind) in _HOST_DEVICES
    except Exception as error:
        msg = f"a {library_name(value)} does not say where it is: {type(error).__name__}: {error}"
        raise DlpackError(msg) from error


def _place_of(value: Any) -> str:
    kind, index = value.__dlpack_device__()
    return f"{DLPACK_KINDS.get(int(kind), f'device type {int(kind)}')}:{int(index)}"


def refuse_hidden_state(value: Any) -> None:
    """Refuses an array that is more than its memory says.

    Raises:
        DlpackError: Its library records how it was computed, or negates what lies in the memory
            when that is read, as torch does with ``x.conj().imag`` and exports all the same.
    """
    if getattr(value, "requires_grad", False) is True:
        msg = (
            f"a {library_name(value)} that requires grad cannot be shared, because its gradients "
            "would be lost; pass on what its .detach() returns"
        )
        raise DlpackError(msg)
    is_neg: Any = getattr(value, "is_neg", None)
    if callable(is_neg) and is_neg() is True:
        msg = (
            f"a {library_name(value)} whose negation is still to be done cannot be shared, because"
            " its memory has the other signs; pass on what its .resolve_neg() returns"
        )
        raise DlpackError(msg)


def view(value: Any) -> HostArray:
    """Returns an array of another library in the host's memory as numpy's: the same memory.

    The memory lives as long as the result does. The result is read-only where the library
    does not permit to write.

    Args:
        value: What speaks DLPack. bfloat16 and floating-point numbers of 8 bits get the
            dtypes of ``ml_dtypes``.

    Raises:
        DlpackError: It requires grad or is negated lazily, has a dtype that numpy cannot have, or
            its library refuses for another reason.
        EncodingError: It is on a GPU.
    """
    refuse_hidden_state(value)
    plain = view_plain(value)
    if plain is not None:
        return plain
    name = library_name(value)
    if not on_host(value):
        msg = (
            f"expected an array in the CPU's memory, got a {name} on {_place_of(value)}; copy it to"
            " the CPU first, as with .cpu() or .get()"
        )
        raise EncodingError(msg)
    try:
        capsule = _capsule_of(value)
    except Exception as error:
        msg = f"a {name} cannot be shared: {type(error).__name__}: {error}"
        raise DlpackError(msg) from error
    described, read_only = _read(capsule, name)
    read_only = _is_constant(value) if read_only is None else read_only
    return _as_numpy(described, capsule, name, read_only=read_only)


def exported(array: HostArray) -> Any:
    """Returns what the ``from_dlpack`` of other libraries takes, for an array that is writable."""
    return _Extended(array) if is_extension(array.dtype.name) else array


# The structures of dlpack.h.


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_VERSION = (1, 0)
_READ_ONLY = 1
_PLAIN, _WITH_VERSION = b"dltensor", b"dltensor_versioned"
_HOST_DEVICES = frozenset((1, 3, 11))
"""The CPU's memory, and such as is pinned for CUDA or ROCm."""

_DTYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    **{(5, bits): f"complex{bits}" for bits in (64, 128)},
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_CODES = {name: code for code, name in _DTYPES.items()}

# With prototypes of their own: those of ctypes.pythonapi's attributes are everybody's to set.
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _capsule_of(value: Any, **options: Any) -> Any:
    try:
        return value.__dlpack__(**options, max_version=_VERSION)
    except TypeError:  # older than versions
        return value.__dlpack__()


def _is_constant(value: Any) -> bool:
    """Whether a library never changes an array, which capsules of before DLPack 1 do not say."""
    if not hasattr(value, "__array__"):
        return False
    try:
        return not np.asarray(value).flags.writeable
    except Exception:  # noqa: BLE001  (any library's, of a dtype that numpy does not have)
        return False


def _read(capsule: Any, name: str) -> tuple[_Tensor, bool | None]:
    """Returns what a capsule describes, and whether it is read-only; None where it cannot say."""
    if _is_capsule(capsule, _WITH_VERSION):
        found = _Versioned.from_address(_pointer_in(capsule, _WITH_VERSION))
        if found.major != _VERSION[0]:
            msg = f"expected DLPack 1 of a {name}, got {found.major}.{found.minor}"
            raise DlpackError(msg)
        return found.tensor, bool(found.flags & _READ_ONLY)
    if _is_capsule(capsule, _PLAIN):
        return _Tensor.from_address(_pointer_in(capsule, _PLAIN)), None
    msg = f"expected the __dlpack__ of a {name} to return a capsule, got {type(capsule).__name__}"
    raise DlpackError(msg)


def _dtype_in(described: _Tensor, name: str) -> np.dtype[Any]:
    code, bits, lanes = described.dtype.code, described.dtype.bits, described.dtype.lanes
    known = _DTYPES.get((code, bits)) if lanes == 1 else None
    if known is None:
        msg = (
            f"a {name} has a dtype that numpy and ml_dtypes have not (DLPack's code {code} of"
            f" {bits} bits, {lanes} to an element); convert it first"
        )
        raise DlpackError(msg)
    try:
        return dtype_from_name(known)
    except ConfigError as error:
        raise DlpackError(str(error)) from None


class _Memory:
    """What numpy asks for memory; owns the capsule, whose end frees the memory."""

    __slots__ = ("__array_interface__", "_capsule")

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self._capsule = capsule
        self.__array_interface__ = interface


def _as_numpy(described: _Tensor, capsule: Any, name: str, *, read_only: bool) -> HostArray:
    dtype = _dtype_in(described, name)
    shape = tuple(described.shape[: described.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    # Under an integer's name, where numpy could not tell the dtype from a word.
    storage = np.dtype(f"u{dtype.itemsize}") if is_extension(dtype.name) else dtype
    interface: dict[str, Any] = {
        "version": 3,
        "shape": shape,
        "typestr": storage.str,
        "data": (cast("int", described.data) + described.byte_offset, read_only),
    }
    if described.strides:
        steps: Sequence[int] = described.strides[: described.ndim]
        interface["strides"] = tuple(step * dtype.itemsize for step in steps)
    return np.asarray(_Memory(capsule, interface)).view(dtype)


class _Extended:
    """An array of a dtype of which numpy cannot speak, under its name in DLPack."""

    def __init__(self, array: HostArray) -> None:
        self._storage: Any = array.view(f"u{array.itemsize}")
        self._code = _CODES[array.dtype.name]

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return self._storage.__dlpack_device__()

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        """Makes a capsule; numpy does, and what it says of the dtype is replaced."""
        capsule = (
            _capsule_of(self._storage, **options) if max_version else self._storage.__dlpack__()
        )
        described, _ = _read(capsule, "numpy.ndarray")
        described.dtype.code, described.dtype.bits = self._code
        return capsule
