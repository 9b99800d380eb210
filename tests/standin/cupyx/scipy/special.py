"""Special functions, for arrays of the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from cupy._crossing import call

__all__ = ["erf", "erfc"]


def _elementwise(function: Any, array: np.ndarray, out: np.ndarray | None) -> Any:
    # As in the library: double precision for float16, whose results are no float16 either.
    result = array.dtype if array.dtype in (np.float32, np.float64) else np.float64
    made = np.array([function(float(value)) for value in array.flat], result).reshape(array.shape)
    if out is None:
        return made
    out[...] = made
    return out


def erf(x: Any, out: Any = None) -> Any:
    """The error function."""
    return call(lambda array, into: _elementwise(math.erf, array, into), x, out)


def erfc(x: Any, out: Any = None) -> Any:
    """One minus the error function, precise where that is small."""
    return call(lambda array, into: _elementwise(math.erfc, array, into), x, out)
