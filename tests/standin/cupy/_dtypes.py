"""Which dtypes arrays on a device may have."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import ml_dtypes
except ImportError:
    _EXTRA: tuple[Any, ...] = ()
else:
    # With older ones, the library leaves it out as well: its loops would crash.
    _NEW_ENOUGH = np.lib.NumpyVersion(np.__version__) >= "2.1.2"
    _EXTRA = (np.dtype(ml_dtypes.bfloat16),) if _NEW_ENOUGH else ()

__all__ = ["SCALARS", "supported"]

_KINDS = "?bhilqBHILQefdFD"
SCALARS = (int, float, bool, complex, *{np.dtype(kind).type for kind in _KINDS})
"""What arithmetic takes beside arrays."""
SCALARS += tuple(dtype.type for dtype in _EXTRA)


def supported(dtype: Any) -> np.dtype[Any]:
    """The dtype that is meant.

    Raises:
        ValueError: A device has no such dtype.
    """
    dtype = np.dtype(dtype)
    if dtype.byteorder == ">":
        raise ValueError(f"Unsupported dtype {dtype} with big-endian byte-order")
    if dtype.type in SCALARS:
        return dtype
    if dtype.char == "V" and dtype.subdtype is None and dtype.itemsize and not dtype.hasobject:
        return dtype
    raise ValueError(f"Unsupported dtype {dtype}")
