"""What goes wrong on the pretended machine."""

from __future__ import annotations

import contextlib
import os
from typing import TypeVar

__all__ = ["CUDARuntimeError", "StandinFault", "again", "cuda_fault", "tell"]

INVALID_VALUE = 1
MEMORY_ALLOCATION = 2
INITIALIZATION = 3
INSUFFICIENT_DRIVER = 35
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
NOT_READY = 600
ILLEGAL_ADDRESS = 700

_TEXTS = {
    0: "cudaSuccess: no error",
    INVALID_VALUE: "cudaErrorInvalidValue: invalid argument",
    MEMORY_ALLOCATION: "cudaErrorMemoryAllocation: out of memory",
    INITIALIZATION: "cudaErrorInitializationError: initialization error",
    INSUFFICIENT_DRIVER: (
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
    ),
    NO_DEVICE: "cudaErrorNoDevice: no CUDA-capable device is detected",
    INVALID_DEVICE: "cudaErrorInvalidDevice: invalid device ordinal",
    INVALID_HANDLE: "cudaErrorInvalidResourceHandle: invalid resource handle",
    NOT_READY: "cudaErrorNotReady: device not ready",
    ILLEGAL_ADDRESS: "cudaErrorIllegalAddress: an illegal memory access was encountered",
}

_Error = TypeVar("_Error", bound=Exception)


class CUDARuntimeError(RuntimeError):
    """A call of the runtime failed; see the class of this name in `cupy.cuda.runtime`.

    Attributes:
        status: The number of the error.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_TEXTS.get(status, "unrecognized error code: unrecognized error code"))

    def __reduce__(self):
        """Made again from its number, as the library does."""
        return (type(self), (self.status,))


class StandinFault(RuntimeError):
    """A real device or library would go on with wrong data, or hang: here it is told."""


def tell(text: str) -> None:
    """Writes a line to the standard error of the process, as a library written in C does."""
    with contextlib.suppress(OSError):
        os.write(2, f"stand-in: {text}\n".encode())


def cuda_fault(status: int, detail: str) -> CUDARuntimeError:
    """An error of the runtime that also tells what the stand-in saw."""
    error = CUDARuntimeError(status)
    error.args = (f"{error.args[0]} [stand-in: {detail}]",)
    return error


def again(error: _Error) -> _Error:
    """The same error to raise once more, without the traceback of the first time."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy
