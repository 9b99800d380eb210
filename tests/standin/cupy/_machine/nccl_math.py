"""What collectives compute, and how the library numbers dtypes and operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["DTYPES", "OPERATORS", "divided", "reduced"]

DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.int8),
    1: np.dtype(np.uint8),
    2: np.dtype(np.int32),
    3: np.dtype(np.uint32),
    4: np.dtype(np.int64),
    5: np.dtype(np.uint64),
    6: np.dtype(np.float16),
    7: np.dtype(np.float32),
    8: np.dtype(np.float64),
    9: np.dtype(ml_dtypes.bfloat16),
}
OPERATORS = ("sum", "prod", "max", "min", "avg")
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def reduced(parts: Sequence[bytes], dtype: np.dtype[Any], operator: str) -> bytes:
    """Combines what the ranks sent, in the order of the ranks.

    Narrow floats are added as float32 and rounded at the end. The greater of a number and
    a NaN is the number, as on the device.
    """
    arrays = [np.frombuffer(part, dtype) for part in parts]
    if dtype in _NARROW:
        arrays = [array.astype(np.float32) for array in arrays]
    floating = arrays[0].dtype.kind == "f"
    functions = {
        "sum": np.add,
        "avg": np.add,
        "prod": np.multiply,
        "max": np.fmax if floating else np.maximum,
        "min": np.fmin if floating else np.minimum,
    }
    with np.errstate(all="ignore"):
        result = reduce(functions[operator], arrays)
        if operator == "avg":
            result = divided(result, len(parts))
        return result.astype(dtype).tobytes()


def divided(sums: np.ndarray, count: int) -> np.ndarray:
    """Divides; integers towards zero."""
    if sums.dtype.kind not in "iu":
        return sums / sums.dtype.type(count)
    quotients = sums // count
    if sums.dtype.kind == "i":
        quotients += ((sums < 0) & (quotients * count != sums)).astype(sums.dtype)
    return quotients
