"""Rules of functions of which each element of the result needs one of each operand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from disco_client.distributed.pattern import LOCAL_AXIS, Pattern
from disco_client.distributed.rules import Local, register_rule
from disco_client.distributed.struct_info import TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.values import dtype_from_name, dtype_name

__all__ = ["letters_of", "probe"]

_LINEAR_TOGETHER = {"add", "subtract"}
_LINEAR_ALONE = {"negative", "positive", "multiply"}
_LINEAR_IN_FIRST = {"divide", "true_divide"}
_ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid")


def letters_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[str, ...]:
    """The letters of an operand's axes that is broadcast to a shape, aligned at the end."""
    offset = len(whole) - len(shape)
    return tuple(
        f"a{offset + axis}" if extent == whole[offset + axis] else LOCAL_AXIS
        for axis, extent in enumerate(shape)
    )


def probe(operand: Any) -> Any:
    """Stands for an operand where only dtypes matter: an empty array, or the number itself."""
    return np.empty((0,), operand.dtype) if isinstance(operand, TensorStructInfo) else operand


def _broadcast(name: str, operands: tuple[Any, ...]) -> tuple[int, ...]:
    shapes = [tuple(each.shape) for each in operands if isinstance(each, TensorStructInfo)]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ConfigError(f"{name}: shapes {shapes} cannot be broadcast together") from None


def _elementwise(
    name: str, operands: tuple[Any, ...], dtype: Any, options: Mapping[str, Any] | None = None
) -> Local:
    whole = _broadcast(name, operands)
    inputs = tuple(
        letters_of(tuple(each.shape), whole)
        for each in operands
        if isinstance(each, TensorStructInfo)
    )
    output = tuple(f"a{axis}" for axis in range(len(whole)))
    pattern = Pattern(inputs, output, linear=_linear(name, operands, len(inputs)))
    return Local(name, pattern, TensorStructInfo(whole, dtype), options or {})


def _linear(name: str, operands: tuple[Any, ...], tensors: int) -> tuple[tuple[int, ...], ...]:
    if name in _LINEAR_TOGETHER:
        return ((0, 1),) if tensors == len(operands) else ()
    if name in _LINEAR_ALONE:
        return tuple((number,) for number in range(tensors))
    if name in _LINEAR_IN_FIRST and isinstance(operands[0], TensorStructInfo):
        return ((0,),)
    return ()


def _ufunc(*operands: Any, name: str) -> Local:
    function = getattr(np, name)
    if len(operands) != function.nin:
        raise ConfigError(f"numpy.{name} takes {function.nin} operands, got {len(operands)}")
    try:
        with np.errstate(all="ignore"):
            dtype = function(*(probe(each) for each in operands)).dtype
    except TypeError as error:
        raise ConfigError(f"numpy.{name}: {error}") from None
    return _elementwise(name, operands, dtype)


for _name in ELEMENTWISE:
    register_rule(_name)(partial(_ufunc, name=_name))


def _activation(x: TensorStructInfo, *, name: str) -> Local:
    if not np.issubdtype(x.dtype, np.floating) and x.dtype.name != "bfloat16":
        raise ConfigError(f"{name} needs real floating-point numbers, got {x.dtype}")
    return _elementwise(name, (x,), x.dtype)


for _name in _ACTIVATIONS:
    register_rule(_name)(partial(_activation, name=_name))


@register_rule("cast")
def _cast(x: TensorStructInfo, *, dtype: object) -> Local:
    found = dtype_from_name(dtype)
    return _elementwise("cast", (x,), found, {"dtype": dtype_name(found)})


@register_rule("where")
def _where(condition: Any, x: Any, y: Any) -> Local:
    dtype = cast("Any", np.where(probe(condition), probe(x), probe(y))).dtype
    return _elementwise("where", (condition, x, y), dtype)
