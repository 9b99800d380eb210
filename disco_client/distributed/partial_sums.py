"""Which functions of partial sums each worker computes of its own part.

The parts add up to the tensor. A function that is linear may be computed of each, and what comes
out adds up to the result, if arithmetic were exact. That of computers is not: a part may overflow
where the sum does not, and go round or lose its fraction where dtypes change. Here stands where
parts give what the sum would give, up to rounding; elsewhere they are combined first.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import Any, cast

import numpy as np

from disco_client.distributed.placement import TensorStructInfo

__all__ = ["NumberStructInfo", "may_convert", "may_scale"]


_LARGE = 2.0**64
"""Numbers to this one, and down to one by it, are ordinary factors and divisors.

Those of single precision reach its square: only parts that are larger than this can overflow.
"""

_EXACT_BYTES = 4
"""A floating-point dtype of fewer is so narrow that ordinary parts overflow."""


@dataclass(frozen=True, slots=True)
class NumberStructInfo(TensorStructInfo):
    """A number of the program's among operands that has a dtype: numpy's, or a complex one.

    Calls are compiled once for all numbers that are alike in what is known of them here.

    Args:
        host: An array without axes.

    Attributes:
        is_ordinary: Whether its value is an ordinary factor.
    """

    is_ordinary: bool

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        TensorStructInfo.__init__(self, (), host.dtype)
        object.__setattr__(self, "is_ordinary", _is_ordinary(host.item()))


def may_scale(factor: object, summand: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Whether parts may be multiplied by a factor, or divided by a divisor, before they are summed.

    Not by zero, infinities and NaN, nor by what makes them of ordinary parts; and in half
    precision by no number. What the elements of an array are is not known here.

    Args:
        factor: A number, or what is known of a tensor.
        summand: The dtype of the parts.
        result: That of the result.
    """
    if isinstance(factor, TensorStructInfo) and not isinstance(factor, NumberStructInfo):
        return True
    if _is_modular(result):  # integers go round alike before and after
        return True
    if min(summand.itemsize, result.itemsize) < _EXACT_BYTES:
        return False
    return factor.is_ordinary if isinstance(factor, NumberStructInfo) else _is_ordinary(factor)


def _is_ordinary(number: object) -> bool:
    # NaN is neither smaller nor larger. What is no number is of a dtype that has no partial sums.
    return not isinstance(number, Number) or 1 / _LARGE <= abs(cast("float", number)) <= _LARGE


def may_convert(summand: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Whether parts may come to another dtype before they are summed.

    Partial integers may go round at the ends of their dtype, and partial truth values
    are true on several workers: in another dtype their sum would be another one. So
    only floating-point numbers may change their dtype before they are combined, and
    to one that has all of theirs: in a narrower one parts may overflow.

    Args:
        summand: The dtype of the parts.
        result: That of the result.
    """
    return summand == result or (not _is_modular(summand) and np.can_cast(summand, result))


def _is_modular(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype has truth values or integers, those of ml_dtypes among them."""
    return dtype.kind in "biu" or "int" in dtype.name
