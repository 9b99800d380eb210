"""The library that moves data between GPUs: NCCL of NVIDIA's, RCCL of AMD's.

Both have one interface, which cupy binds under the name `cupy.cuda.nccl`: a cupy
built for ROCm brings RCCL behind it.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from disco_server.collectives.types import ReduceOp, UnavailableError
from disco_server.collectives.validation import Family
from disco_server.devices.gpu import EXTRAS
from disco_server.settings import GPU_LIBRARIES

if TYPE_CHECKING:
    from disco_server.devices.base import Arrays

__all__ = ["DeviceType", "NcclLibrary", "library_for"]

_FILES = {"nccl": "libnccl.so.2", "rccl": "librccl.so.1"}

# ncclCommSplit came with 2.18.1.
_SPLITS = 21801

_TYPES = {
    "bool": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "bfloat16": "BFLOAT16",
    # Their sums are those of twice as many real numbers.
    "complex64": "FLOAT32",
    "complex128": "FLOAT64",
}


def library_for(kind: str) -> str:
    """The library for devices of a kind: "nccl" for "cuda", "rccl" for "rocm"; else empty."""
    return next((name for name, device in GPU_LIBRARIES.items() if device == kind), "")


class DeviceType(NamedTuple):
    """How the library sees elements of a dtype.

    Attributes:
        number: The library's number of its own dtype.
        each: How many of those an element is.
    """

    number: int
    each: int


class NcclLibrary:
    """The library behind a rank's GPU.

    Args:
        name: "nccl" or "rccl".
        arrays: The rank's device.

    Attributes:
        name: Its name.
        binding: The module that binds it.
        version: Its version as it counts, such as 23203 for 2.32.3.

    Raises:
        UnavailableError: It cannot be loaded.
    """

    def __init__(self, name: str, arrays: Arrays) -> None:
        self.name = name
        extra = EXTRAS[GPU_LIBRARIES[name]]
        try:
            binding: Any = import_module("cupy.cuda.nccl")
        except ImportError as error:
            raise UnavailableError(
                f"{name} cannot be loaded ({error}); install the extra {extra}"
            ) from None
        if not binding.available:
            raise UnavailableError(
                f"cupy finds no {name} ({_FILES[name]}); install the extra {extra}"
            )
        self.binding: Any = binding
        self.version = int(binding.get_version())
        self.byte = int(binding.NCCL_INT8)
        self._types = {
            kind: DeviceType(
                int(getattr(binding, f"NCCL_{own}")), 2 if kind.startswith("complex") else 1
            )
            for kind, own in _TYPES.items()
        }
        ops = ("SUM", "PROD", "MIN", "MAX", "AVG")
        self._ops = tuple(int(getattr(binding, f"NCCL_{op}")) for op in ops)
        self.error: type[Exception] = binding.NcclError
        self.device = arrays.device

    @property
    def splits(self) -> bool:
        """Whether it makes communicators of parts of another one."""
        return self.version >= _SPLITS and hasattr(self.binding.NcclCommunicator, "commSplit")

    def make_id(self) -> bytes:
        """Makes a unique id, by which the ranks of one communicator find the one that made it."""
        return bytes(self.binding.get_unique_id())

    def type_of(self, dtype: Any) -> DeviceType:
        """How it sees elements that are to be reduced."""
        return self._types[dtype.name]

    def reduction(self, op: ReduceOp, family: Family) -> int:
        """Its number of a reduction."""
        if family is Family.BOOL:
            # Over bytes that are 0 or 1, "or" is the maximum and "and" the minimum.
            op = ReduceOp.MAX if op in (ReduceOp.SUM, ReduceOp.MAX) else ReduceOp.MIN
        return self._ops[op]

    def last_error(self) -> str:
        """What it says of the last error in this process; empty if it says nothing."""
        try:
            library = ctypes.CDLL(_FILES[self.name], mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            explain = library.ncclGetLastError
        except (OSError, AttributeError):
            return ""
        # The argument has no meaning yet and may be NULL, says nccl.h.
        explain.argtypes, explain.restype = [ctypes.c_void_p], ctypes.c_char_p
        text: bytes | None = explain(None)
        return text.decode("utf-8", "replace").strip() if text else ""

    def explain(self, error: Exception) -> str:
        """The text of an error, and the library's last error message."""
        more = self.last_error()
        return f"{error} ({more})" if more else str(error)

    def version_text(self) -> str:
        """Its version in the usual notation, such as 2.32.3."""
        return version_text(self.version)


def version_text(version: int) -> str:
    """Writes a version: 23203 is 2.32.3; before 2.9 there were fewer digits."""
    base = 10_000 if version >= 10_000 else 1_000  # noqa: PLR2004  (explained above)
    return f"{version // base}.{version % base // 100}.{version % 100}"
