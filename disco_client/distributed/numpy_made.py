"""numpy's names that make distributed tensors of none, or that numpy itself does not dispatch.

Each function takes the namespace that it belongs to first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, SupportsIndex

import numpy as np

from disco_client.distributed.dtensor import DTensor, several
from disco_client.distributed.numpy_arguments import array_of
from disco_client.distributed.ops import integers
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.values import dtype_from_name

__all__ = ["MADE", "Making"]


_ANY: Any = np
"""numpy, whose stubs know nothing of distributed tensors."""


class Making(Protocol):
    """What these functions need of a namespace."""

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> DTensor:
        """Numbers in even steps."""
        ...

    def linspace(self, start: Any, stop: Any, num: int = 50, endpoint: bool = True) -> Any:
        """So many numbers at equal distances."""
        ...

    def ones(self, shape: Any, dtype: Any = "float64") -> DTensor:
        """A tensor of ones."""
        ...

    def asarray(self, a: Any, dtype: Any = None) -> DTensor:
        """A tensor of what is none yet."""
        ...


# Numbers at distances that grow.


def _logspace(
    xp: Making,
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> DTensor:
    """Powers of a base whose exponents are at equal distances."""
    if any(np.ndim(each) for each in (start, stop, base)) or axis not in (0, -1):
        raise ConfigError("logspace on the workers takes numbers as its ends and its base")
    made = np.power(base, xp.linspace(start, stop, num, endpoint))
    return made if dtype is None else made.astype(dtype_from_name(dtype))


def _geomspace(
    xp: Making,
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> DTensor:
    """Numbers of which each is as many times the one before; both ends are exact."""
    if any(np.ndim(each) for each in (start, stop)) or axis not in (0, -1):
        raise ConfigError("geomspace on the workers takes numbers as its ends")
    if not start or not stop:
        raise ConfigError(f"geomspace: no sequence leads to 0 or from it, got {start} and {stop}")
    if isinstance(start, complex) or isinstance(stop, complex) or (start < 0) != (stop < 0):
        raise ConfigError(f"geomspace on the workers: {start} and {stop} have different signs")
    (count,) = integers("geomspace", (num,))
    kind = np.result_type(np.asarray(start), np.asarray(stop), float(count))
    sign = math.copysign(1, start)
    ends = [math.log10(abs(each)) for each in (start, stop)]
    out: Any = np.power(10.0, xp.linspace(ends[0], ends[1], count, endpoint)) * sign
    at = xp.arange(count)
    out = np.where(at == 0, float(start), out)
    if endpoint and count > 1:
        out = np.where(at == count - 1, float(stop), out)
    return out.astype(kind if dtype is None else dtype_from_name(dtype))  # type: ignore[return-value]


# Windows, by their formulas as in Oppenheim and Schafer, "Discrete-time signal processing".


def _window(name: str, formula: Callable[..., Any]) -> Callable[..., DTensor]:
    def window(xp: Making, M: Any, *more: Any) -> DTensor:  # noqa: N803  (numpy's name)
        if isinstance(M, DTensor) or np.ndim(M) or np.asarray(M).dtype.kind not in "iuf":
            raise DtypeError(f"{name}: expected a number of points, got {M!r}")
        count = max(math.ceil(M), 0)
        if count <= 1:
            return xp.ones(count)
        return formula(xp.arange(1 - count, count, 2, dtype="float64"), count, *more)

    return window


def _cosine(n: Any, count: int, times: int = 1) -> Any:
    return _ANY.cos(times * math.pi / (count - 1) * n)


def _bartlett(n: Any, count: int) -> Any:
    return _ANY.where(n <= 0, 1 + n / (count - 1), 1 - n / (count - 1))


def _blackman(n: Any, count: int) -> Any:
    return 0.42 + 0.5 * _cosine(n, count) + 0.08 * _cosine(n, count, 2)


def _hamming(n: Any, count: int) -> Any:
    return 0.54 + 0.46 * _cosine(n, count)


def _hanning(n: Any, count: int) -> Any:
    return 0.5 + 0.5 * _cosine(n, count)


def _kaiser(n: Any, count: int, beta: float) -> Any:
    inside = np.sqrt(1 - (n / (count - 1)) ** 2)
    return np.i0(beta * inside) / float(np.i0(np.float64(beta)))


# Positions.


def _rows(ends: Any, number: DTensor) -> Any:
    """In which row each element is if rows end there."""
    return _ANY.searchsorted(ends, number, side="right")


def _triangle(name: str, *, upper: bool) -> Callable[..., tuple[DTensor, DTensor]]:
    """The rows and the columns of one side of a diagonal."""

    def positions(
        xp: Making, n: SupportsIndex, k: SupportsIndex = 0, m: SupportsIndex | None = None
    ) -> tuple[DTensor, DTensor]:
        rows, offset, columns = integers(name, (n, k, n if m is None else m))
        at = np.arange(rows)
        before = np.clip(at + offset + (0 if upper else 1), 0, columns)
        # Of each row the first column, and how many.
        first, counts = (before, columns - before) if upper else (at * 0, before)
        ends = np.cumsum(counts)
        number = xp.arange(int(ends[-1]) if rows else 0)
        row = _rows(ends, number)
        return row, number + _ANY.take(first - (ends - counts), row)

    return positions


def _diag_indices(xp: Making, n: SupportsIndex, ndim: SupportsIndex = 2) -> tuple[DTensor, ...]:
    (extent, axes) = integers("diag_indices", (n, ndim))
    return tuple(xp.arange(extent) for _ in range(axes))


# Of what is an array, or is to be one.


def _as_tensor(name: str, *, at_least: int = 0) -> Callable[..., DTensor]:
    def made(xp: Making, a: Any, dtype: Any = None, order: Any = None, **more: Any) -> DTensor:
        del order  # each worker has its part in C order
        if any(value is not None for value in more.values()):
            raise ConfigError(f"{name} on the workers has no {', '.join(more)}")
        out = xp.asarray(a, dtype)
        return out if out.ndim >= at_least else out.reshape(1)

    return made


def _asarray_chkfinite(xp: Making, a: Any, dtype: Any = None, order: Any = None) -> DTensor:
    """Waits for whether there is an infinity or NaN."""
    del order
    out = xp.asarray(a, dtype)
    if out.dtype.kind in "fc" and not np.all(np.isfinite(out)).item():
        msg = "array must not contain infs or NaNs"
        raise ValueError(msg)
    return out


def _require(xp: Making, a: Any, dtype: Any = None, requirements: Any = None) -> DTensor:
    """A tensor has what can be required of it, but for the order of Fortran."""
    wanted = {each.upper() for each in several(requirements or ())}
    known = {"C", "C_CONTIGUOUS", "CONTIGUOUS", "A", "ALIGNED", "W", "WRITEABLE", "O", "OWNDATA"}
    if not wanted <= {*known, "E", "ENSUREARRAY"}:
        raise ConfigError(f"require: parts lie in C order, expected {sorted(known)}, got {wanted}")
    return xp.asarray(a, dtype)


def _from_client(name: str) -> Callable[..., DTensor]:
    """What numpy reads at the client, as a tensor."""

    def read(xp: Making, *args: Any, **options: Any) -> DTensor:
        return xp.asarray(getattr(np, name)(*args, **options))

    return read


def _of_number(name: str) -> Callable[..., Any]:
    """A function of a number, which is fetched."""

    def text(xp: Making, number: Any, *args: Any, **options: Any) -> Any:
        del xp
        value = number.item() if isinstance(number, DTensor) else number
        return getattr(np, name)(value, *args, **options)

    return text


def _isscalar(xp: Making, element: Any) -> bool:
    del xp
    return not isinstance(element, DTensor) and np.isscalar(element)


def _iterable(xp: Making, y: Any) -> bool:
    del xp
    return bool(y.ndim) if isinstance(y, DTensor) else np.iterable(y)


def _isfortran(xp: Making, a: Any) -> bool:
    """Never: each worker has its part in C order."""
    del xp
    return not isinstance(a, DTensor) and np.isfortran(array_of(a))


MADE: dict[str, Callable[..., Any]] = {
    "logspace": _logspace,
    "geomspace": _geomspace,
    "bartlett": _window("bartlett", _bartlett),
    "blackman": _window("blackman", _blackman),
    "hamming": _window("hamming", _hamming),
    "hanning": _window("hanning", _hanning),
    "kaiser": _window("kaiser", _kaiser),
    "tril_indices": _triangle("tril_indices", upper=False),
    "triu_indices": _triangle("triu_indices", upper=True),
    "diag_indices": _diag_indices,
    "asanyarray": _as_tensor("asanyarray"),
    "ascontiguousarray": _as_tensor("ascontiguousarray", at_least=1),
    "asfortranarray": _as_tensor("asfortranarray", at_least=1),
    "asarray_chkfinite": _asarray_chkfinite,
    "require": _require,
    **{
        name: _from_client(name)
        for name in ("frombuffer", "fromiter", "fromstring", "loadtxt", "genfromtxt")
    },
    **{
        name: _of_number(name)
        for name in (
            *("base_repr", "binary_repr", "format_float_positional", "format_float_scientific"),
        )
    },
    "isscalar": _isscalar,
    "iterable": _iterable,
    "isfortran": _isfortran,
}
"""By numpy's names."""
