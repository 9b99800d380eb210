"""What arguments that several of numpy's functions take mean for distributed tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from disco_client.distributed.dtensor import DTensor
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.host_arrays import as_host_array
from disco_client.wire.values import shown

__all__ = ["array_of", "as_dtype", "has_nan", "in_a_row", "no_out", "real_dtype", "unsaid"]


def array_of(operand: Any) -> Any:
    """An operand with a shape and a dtype: a distributed tensor, or an array of what else it is."""
    return operand if isinstance(operand, DTensor) else as_host_array(operand)


def in_a_row(call: Callable[..., DTensor], operand: Any) -> Any:
    """All elements of an operand along one axis.

    Args:
        call: Computes functions of distributed tensors: of an engine, or of steps.
        operand: A distributed tensor, or what stands for an array.
    """
    if isinstance(operand, DTensor):
        return call("reshape", operand, shape=(-1,))
    return as_host_array(operand).reshape(-1)


def as_dtype(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of a dtype; numbers of the program, which have none, must be among those it has.

    Args:
        value: An array, which is converted as numpy does, or numbers and lists of them.
        dtype: The dtype.

    Raises:
        DtypeError: A number cannot become that.
    """
    if hasattr(value, "dtype"):
        return as_host_array(value).astype(dtype, copy=False)
    try:
        _check_numbers(np.asarray(value), dtype)
        return np.asarray(value, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise DtypeError(f"{shown(value)} cannot become {dtype}: {error}") from None


def _check_numbers(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """Refuses text, and integers beyond a dtype, which before numpy 2 are taken modulo something.

    Raises:
        TypeError: It is text.
        OverflowError: The dtype has not all of them.
    """
    if given.dtype.kind in "SU" and dtype.kind not in "mM":
        msg = "it is text"
        raise TypeError(msg)
    if dtype.kind in "iu" and given.dtype.kind in "iuO" and given.size:
        limits = np.iinfo(dtype)
        if given.min() < limits.min or given.max() > limits.max:
            msg = f"it has numbers from {limits.min} to {limits.max}"
            raise OverflowError(msg)


def no_out(name: str, out: object) -> None:
    """Refuses an array to write into.

    Args:
        name: The function.
        out: The array; None where there is none.

    Raises:
        ConfigError: There is one.
    """
    if out is not None:
        raise ConfigError(f"numpy.{name} cannot write distributed tensors into out")


def unsaid(option: str, value: object) -> bool:
    """Whether an option of one of numpy's functions has the value that it has by default."""
    return value is np._NoValue or (option in ("out", "dtype") and value is None)  # noqa: SLF001


def has_nan(dtype: np.dtype[Any]) -> bool:
    """Whether numpy leaves out what is NaN in a dtype; NaT it leaves in, but for extremes."""
    return dtype.kind in "fc" or "float" in dtype.name


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """That of the real part of numbers of a dtype."""
    return np.abs(np.empty(0, dtype)).dtype if dtype.kind == "c" else dtype
