"""A stand-in for the library `cupy` on machines without a GPU; only for tests.

See the README beside this package for what it shows and what it cannot show.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import numpy as np

from cupy import cuda
from cupy._array import ndarray
from cupy._functions import FUNCTIONS, UFUNCS, linear_algebra, ufunc
from cupy._machine import signals as _signals
from cupy.cuda import memory as _memory
from cupy.cuda import pinned_memory as _pinned_memory

__version__ = "14.2.0"
STANDIN = True
"""What only the stand-in has: tests ask for it, so as not to take it for the library."""

_FROM_NUMPY = (
    "bool_ byte can_cast complex128 complex64 complexfloating dtype e euler_gamma finfo float16"
    " float32 float64 floating generic iinfo inexact inf int16 int32 int64 int8 int_ integer"
    " intp isscalar issubdtype nan ndim newaxis number pi promote_types result_type shape"
    " signedinteger size uint16 uint32 uint64 uint8 uintp unsignedinteger"
).split()

_signals.defer()

linalg = types.ModuleType("cupy.linalg", "The functions of numpy's `linalg`, for the device.")
linalg.__dict__.update(linear_algebra)
linalg.LinAlgError = np.linalg.LinAlgError
sys.modules["cupy.linalg"] = linalg

globals().update({name: getattr(np, name) for name in _FROM_NUMPY})
globals().update(UFUNCS)
globals().update(FUNCTIONS)

__all__ = [  # noqa: PLE0604 - made from the tables
    "cuda",
    "get_array_module",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "is_available",
    "linalg",
    "ndarray",
    "ufunc",
    *_FROM_NUMPY,
    *FUNCTIONS,
    *UFUNCS,
]


def is_available() -> bool:
    """Whether there is a device."""
    return cuda.is_available()


def get_array_module(*args: Any) -> types.ModuleType:
    """This module if one of the arguments is an array of a device, otherwise numpy."""
    of_device = builtins.any(isinstance(arg, ndarray) for arg in args)
    return sys.modules[__name__] if of_device else np


def get_default_memory_pool() -> _memory.MemoryPool:
    """The pool from which arrays get their memory."""
    return _memory._default_pool


def get_default_pinned_memory_pool() -> _pinned_memory.PinnedMemoryPool:
    """The pool of pinned memory."""
    return _pinned_memory._default_pool
