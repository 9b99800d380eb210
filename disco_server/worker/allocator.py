"""How a rank's process keeps memory that arrays gave back."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h, for mallopt(3)
_LARGEST = 32 << 20
"""The most that glibc takes from its heap, and not from the system, for one array."""
_KEPT = 256 << 20
_THEIRS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Lets glibc keep up to 256 MiB of freed memory, for the next arrays.

    By itself it gives arrays from 128 KiB on back to the system at once, and gets the
    next ones from there, page by page, each of them cleared first: of a model whose
    layers make arrays of a megabyte that took a sixth of the time.

    Returns:
        Whether it does; not where the C library is another one, nor where one of glibc's
        own environment variables says how memory is to be handled.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _THEIRS):
        return False
    options = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _KEPT))
    return all(mallopt(option, value) for option, value in options)
