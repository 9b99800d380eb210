"""What may be taken as an array: refuses what would lose its meaning as a plain one of numpy's.

``numpy.asarray`` drops a mask, a unit and what a column lacks without a word, and makes an array
without axes of a sparse matrix. Wherever an array enters, at the client and on workers, one of
the functions here is asked. For numpy's own arrays that costs the comparison of a type.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.values import dtype_name, shown

__all__ = ["Array", "ArrayRefused", "loss_of", "plain_array", "refuse_loss"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), np.ndarray))
"""Types of which numpy makes elements without a loss."""

_MAX_AXES = 64
_FILLS = ("filled", "fill_null", "fillna")
_UNITS = ("unit", "units")
_WITHOUT_UNIT = ("to_value", "m_as")
_DENSE = ("toarray", "todense", "to_dense")


class ArrayRefused(EncodingError):
    """Something may not be taken as an array; the message says why, and what to do."""


def refuse_loss(value: object) -> None:
    """Refuses an array, or what numpy can make one of, if it would lose its meaning.

    Raises:
        ArrayRefused: It would; the message names its type, what would be lost, and the way round.
    """
    if type(value) in _PLAIN:
        return
    array = isinstance(value, np.ndarray)
    if reason := (_loss_of_subclass(cast("Array", value)) if array else _loss_of_other(value)):
        raise ArrayRefused(reason)


def plain_array(value: object) -> Array:
    """Makes a plain array of what numpy can make one of; of the same memory where it is one.

    Args:
        value: An array of numpy's or of one of its subclasses, an array-like of another
            library, a number, or lists of these.

    Raises:
        ArrayRefused: It would lose its meaning, or numpy makes no array of numbers of it.
    """
    refuse_loss(value)
    if issubclass(type(value), (list, tuple)):
        _refuse_inside(cast("Sequence[object]", value), "", _MAX_AXES)
    # What a signal handler raises is not taken for an error of an array that is numpy's already.
    is_array = issubclass(type(value), np.ndarray)
    array = cast("Array", value) if is_array else _made_by_numpy(value)
    refuse_loss(array)
    if reason := _loss_of_dtype(array, value):
        raise ArrayRefused(reason)
    return np.asarray(array)


def _made_by_numpy(value: object) -> Array:
    try:
        return np.asanyarray(value)  # not asarray, which would hide what an array-like returns
    except MemoryError:
        raise
    except Exception as error:  # whatever a library's own code raises
        msg = f"expected what numpy makes an array of, got {_kind(value)}: {error}"
        raise ArrayRefused(msg) from error


def loss_of(value: object) -> str:
    """Why something may not be taken as an array, and what to do instead.

    Args:
        value: An array, or anything else.

    Returns:
        The text for an error; empty where it may be taken, and for what is nothing like an array.
    """
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return _loss_of_subclass(array) or _loss_of_dtype(array, array)
    return _loss_of_other(value)


def _loss_of_other(value: object) -> str:
    try:
        return _loss_of_unit(value, _static) or _loss_of_sparse(value) or _loss_of_missing(value)
    except Exception:  # noqa: BLE001  (of an object that is asked for what only array-likes have)
        return ""


def _loss_of_subclass(array: Array) -> str:
    if type(array) is np.ndarray:
        return ""
    mask: object = getattr(array, "mask", None)
    if mask is not None and not callable(mask):
        what = f"what its .{_first(array, _FILLS, 'filled')}(value) returns"
        return _text(array, "its mask would be lost", what)
    return _loss_of_unit(array, getattr)


def _loss_of_unit(value: object, look: Any) -> str:
    """Why a quantity may not be taken.

    Args:
        value: It, if it is one.
        look: Finds its attributes; a column of a table is none.
    """
    name = next((each for each in _UNITS if look(value, each, None) is not None), "")
    unit: object = getattr(value, name, None) if name else None
    dtype: Any = getattr(value, "dtype", None)
    its_own = look is _static and _is_time(dtype, unit)  # not of numpy's subclasses
    if unit is None or callable(unit) or its_own:
        return ""
    number = _first(value, _WITHOUT_UNIT, "")
    instead = (
        f"what its .{number}(unit) returns" if number else "its numbers alone, as a plain array"
    )
    return _text(value, f"its {name} would be lost", instead)


def _loss_of_sparse(value: object) -> str:
    dense = _first(value, _DENSE, "")
    if not dense or hasattr(type(value), "__array__"):  # which makes a dense one, or says why not
        return ""
    return _text(value, "it is sparse", f"what its .{dense}() returns")


def _loss_of_missing(value: object) -> str:
    """Why a table or a column may not be taken in which something is missing."""
    if not any(map(_lacks, (value, *_columns(value)))):
        return ""
    fill = _first(value, _FILLS, "")
    what = f"what its .{fill}(value) returns" if fill else "columns that lack nothing"
    if fill == "fillna":
        what += ", or .to_numpy(dtype, na_value=...)"
    return _text(value, "what it lacks (NA) would be lost", what)


def _columns(table: object) -> Iterable[object]:
    """The columns of a table of another library; none of anything else."""
    if hasattr(type(table), "dtypes") and hasattr(type(table), "items"):
        return _second(cast("Any", table).items())
    for name in ("itercolumns", "iter_columns"):
        if hasattr(type(table), name):
            return cast("Iterable[object]", getattr(table, name)())
    return ()


def _second(pairs: Iterable[tuple[object, object]]) -> Iterator[object]:
    return (second for _, second in pairs)


def _lacks(column: object) -> bool:
    """Whether a column lacks values in a manner that numpy has not; NaN is a number."""
    count: Any = getattr(type(column), "null_count", None)
    if count is not None:  # of arrow's manner
        found: Any = cast("Any", column).null_count
        found = found() if callable(found) else found
        return isinstance(found, int) and found > 0
    na: object = getattr(getattr(column, "dtype", None), "na_value", None)
    if type(na).__name__ != "NAType" or not hasattr(type(column), "isna"):
        return False
    return bool(np.any(cast("Any", column).isna()))


def _loss_of_dtype(array: Array, value: object) -> str:
    """Why an array may not be taken for its dtype.

    Args:
        array: It.
        value: Of what numpy made it.
    """
    dtype = array.dtype
    try:
        dtype_name(dtype)
    except ConfigError as error:
        if dtype.names is not None:
            how = f"its fields one by one, such as x[{dtype.names[0]!r}]"
            return _text(value, f"its dtype is structured, {dtype}", how)
        if not dtype.hasobject:
            return f"{error}, of {_kind(value)}"
        more = " of Python's objects" if array.ndim else ""
        return f"expected an array of numbers, got {_kind(value)}{more}: {shown(value)}"
    return ""


def _refuse_inside(items: Sequence[object], path: str, depth: int) -> None:
    """Refuses lists of which numpy would make an array without what their elements mean."""
    kinds = set(map(type, items)) - _PLAIN
    if depth and not all(issubclass(kind, np.generic) for kind in kinds):
        for number, item in enumerate(items):
            place = f"{path}[{number}]"
            if isinstance(item, (list, tuple)):
                _refuse_inside(cast("Sequence[object]", item), place, depth - 1)
            elif type(item) is not np.ndarray and (reason := loss_of(item)):
                raise ArrayRefused(f"at {place}: {reason}")


def _is_time(dtype: Any, unit: object) -> bool:
    """Whether a unit is what the dtype of times says by itself, as in columns of pandas."""
    is_time = getattr(dtype, "kind", None) in ("m", "M")
    return is_time and type(unit) is str and unit == np.datetime_data(dtype)[0]


def _static(value: object, name: str, default: object) -> object:
    """An attribute that a class or an object has by itself; a column of a table is not one."""
    return inspect.getattr_static(value, name, default)


def _first(value: object, names: Sequence[str], default: str) -> str:
    return next((name for name in names if hasattr(type(value), name)), default)


def _kind(value: object) -> str:
    name, module = type(value).__qualname__, type(value).__module__
    return name if module == "builtins" else f"{module}.{name}"


def _text(value: object, why: str, instead: str) -> str:
    return f"{_kind(value)} cannot be taken as plain numbers, because {why}; pass on {instead}"
