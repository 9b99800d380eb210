"""Rules by which numpy's functions that are no ufuncs are computed of parts.

There are few, because many functions go along their axes alike: of each element by itself, along
one axis that is whole, and counts, which are summed up over the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.ops import (
    LOCAL_AXIS,
    Local,
    Pattern,
    letters_of,
    normal_axis,
    numpy_dtype,
    only_tensors,
    register_rule,
)
from disco_client.distributed.placement import TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.numpy_parts import NUMPY_PARTS
from disco_client.wire.values import Shape

__all__ = ["options_of"]

_LINEAR = frozenset(["real", "imag"])


def options_of(**options: Any) -> tuple[tuple[str, Any], ...]:
    """What one of numpy's functions takes by name, as an option of these rules."""
    return tuple(options.items())


_FEW = 64
"""Of tables, which may have a row for each axis, so many elements stand for all."""


def _dtype(
    function: str,
    operands: Sequence[TensorStructInfo],
    options: Mapping[str, Any],
    tables: int = 0,
    whole: Sequence[int] = (),
) -> np.dtype[Any]:
    """Of the result: what numpy gives of hardly an element, zeros."""
    first = len(operands) - tables
    few = [
        np.zeros(
            [
                min(extent, _FEW) if number >= first or axis in whole else 1
                for axis, extent in enumerate(each.shape)
            ],
            each.dtype,
        )
        for number, each in enumerate(operands)
    ]
    return numpy_dtype(f"numpy.{function}", lambda: NUMPY_PARTS[function](np, *few, **options))


def _local(
    function: str, pattern: Pattern, result: TensorStructInfo, options: Mapping[str, Any]
) -> Local:
    named = [[key, value] for key, value in options.items()]
    return Local("numpy_part", pattern, result, {"function": function, "named": named})


def _tables(operands: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    return tuple((LOCAL_AXIS,) * each.ndim for each in operands)


@register_rule("elements")
def _elements(
    *operands: Any, function: str, tables: int = 0, named: Sequence[tuple[str, Any]] = ()
) -> Local:
    """Each element of the result from one of each operand, and of tables from all, the last ones.

    Args:
        *operands: They are broadcast, but for the tables.
        function: One of `NUMPY_PARTS`.
        tables: How many of them are.
        named: What the function takes by name.
    """
    only_tensors(function, *operands)
    options = dict(named)
    first = len(operands) - tables
    shapes = [tuple(each.shape) for each in operands[:first]]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ConfigError(f"{function}: {shapes} cannot be broadcast together") from None
    inputs = tuple(letters_of(shape, whole) for shape in shapes)
    output = tuple(f"a{axis}" for axis in range(len(whole)))
    linear = ((0,),) if function in _LINEAR else ()
    pattern = Pattern((*inputs, *_tables(operands[first:])), output, linear=linear)
    result = TensorStructInfo(whole, _dtype(function, operands, options, tables))
    return _local(function, pattern, result, options)


@register_rule("rows")
def _rows(
    *operands: Any,
    function: str,
    axis: SupportsIndex,
    extent: int,
    tables: int = 0,
    named: Sequence[tuple[str, Any]] = (),
) -> Local:
    """Along one axis, which is whole where it is computed; the others are broadcast.

    Args:
        *operands: Of equally many axes, but for the tables, the last ones.
        function: One of `NUMPY_PARTS`.
        axis: The axis.
        extent: Of the result there.
        tables: How many of the operands each worker has whole.
        named: What the function takes by name besides the axis.
    """
    only_tensors(function, *operands)
    first = len(operands) - tables
    place = normal_axis(axis, operands[0].ndim)
    options = {**dict(named), "axis": place}
    shapes = [(*each.shape[:place], 1, *each.shape[place + 1 :]) for each in operands[:first]]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        found = [tuple(each.shape) for each in operands[:first]]
        raise ConfigError(f"{function} along axis {place}: {found} do not fit") from None
    inputs = [list(letters_of(shape, whole)) for shape in shapes]
    output = [f"a{at}" for at in range(len(whole))]
    for letters in (*inputs, output):
        letters[place] = LOCAL_AXIS
    pattern = Pattern((*map(tuple, inputs), *_tables(operands[first:])), tuple(output))
    shape = (*whole[:place], extent, *whole[place + 1 :])
    result = TensorStructInfo(shape, _dtype(function, operands, options, tables))
    return _local(function, pattern, result, options)


@register_rule("counts")
def _counts(
    *operands: Any,
    function: str,
    shape: Sequence[int],
    whole: Sequence[int] = (),
    tables: int = 0,
    named: Sequence[tuple[str, Any]] = (),
    combine: str = "sum",
) -> Local:
    """What parts have of something, which adds up to what the whole has.

    Args:
        *operands: The elements and, if any, their weights; then tables.
        function: One of `NUMPY_PARTS`.
        shape: Of the result.
        whole: The axes of the elements that must be.
        tables: How many of the operands each worker has whole.
        named: What the function takes by name.
        combine: What makes the whole of the parts, if it is no sum.
    """
    only_tensors(function, *operands)
    options = dict(named)
    first = len(operands) - tables
    letters = tuple(LOCAL_AXIS if axis in whole else f"a{axis}" for axis in range(operands[0].ndim))
    inputs = tuple(letters[: each.ndim] for each in operands[:first])
    along = tuple((letter, combine) for letter in letters if letter != LOCAL_AXIS)
    pattern = Pattern((*inputs, *_tables(operands[first:])), (LOCAL_AXIS,) * len(shape), along)
    dtype = _dtype(function, operands, options, tables, whole)
    return _local(function, pattern, TensorStructInfo(Shape(shape), dtype), options)


@register_rule("ranks")
def _ranks(v: TensorStructInfo, a: TensorStructInfo, *, side: str) -> Local:
    """How many of sorted numbers are smaller: the sum of how many of each part are."""
    only_tensors("searchsorted", v, a)
    letters = tuple(f"a{axis}" for axis in range(v.ndim))
    # In given parts a worker may have a later piece before an earlier one.
    pattern = Pattern((letters, ("k",)), letters, (("k", "sum"),), equal=("k",))
    options = {"side": side}
    dtype = _dtype("searchsorted", (v, a), options)
    result = TensorStructInfo(v.shape, dtype)
    return _local("searchsorted", pattern, result, options)
