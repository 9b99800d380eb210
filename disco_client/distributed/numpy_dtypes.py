"""numpy's functions of dtypes, where distributed tensors stand for theirs, and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.wire.values import dtype_from_name

__all__ = ["DTYPES"]


def _dtype(value: Any) -> Any:
    return value.dtype if isinstance(value, DTensor) else value


def _astype(
    _engine: Computing, x: DTensor, dtype: object, *, copy: bool = True, device: Any = None
) -> DTensor:
    alike = not copy and x.dtype == dtype_from_name(dtype)
    out = x if alike else x.astype(dtype)
    return out if device is None else out.to_device(device)


def _can_cast(_engine: Computing, from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(_dtype(from_), to, casting)


def _result_type(_engine: Computing, *arrays_and_dtypes: Any) -> np.dtype[Any]:
    return np.result_type(*map(_dtype, arrays_and_dtypes))


DTYPES: dict[str, Composite] = {
    "astype": _astype,
    "can_cast": _can_cast,
    "result_type": _result_type,
}
"""By numpy's names, of which older versions of numpy lack some."""
