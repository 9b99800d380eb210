"""Rules of products of tensors."""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np

from disco_client.distributed.pattern import LOCAL_AXIS, Pattern
from disco_client.distributed.rules import Local, only_tensors, register_rule
from disco_client.distributed.struct_info import TensorStructInfo
from disco_client.errors import ConfigError

__all__: list[str] = []

_SUBSCRIPTS = re.compile(r"[a-zA-Z]*(,[a-zA-Z]*)*(->[a-zA-Z]*)?")


@register_rule("matmul")
def _matmul(x: TensorStructInfo, y: TensorStructInfo) -> Local:
    only_tensors("matmul", x, y)
    one, other = tuple(x.shape), tuple(y.shape)
    if not one or not other:
        raise ConfigError("matmul needs tensors with at least one axis")
    rows = () if len(one) == 1 else ("m",)
    columns = () if len(other) == 1 else ("n",)
    inner = (1, *other)[-2] if columns else other[-1]
    if one[-1] != inner:
        raise ConfigError(f"matmul: {one} and {other} do not fit, {one[-1]} is not {inner}")
    try:
        batch = np.broadcast_shapes(one[:-2], other[:-2])
    except ValueError:
        raise ConfigError(f"matmul: {one} and {other} cannot be broadcast together") from None
    names = tuple(f"b{axis}" for axis in range(len(batch)))
    pattern = Pattern(
        (
            (*_batch(one[:-2], batch), *rows, "k"),
            (*_batch(other[:-2], batch), "k", *columns),
        ),
        (*names, *rows, *columns),
        (("k", "sum"),),
        ((0,), (1,)),
    )
    shape = (*batch, *one[-2:-1], *(other[-1:] if columns else ()))
    dtype = np.matmul(np.ones((1, 1), x.dtype), np.ones((1, 1), y.dtype)).dtype
    return Local("matmul", pattern, TensorStructInfo(shape, dtype))


def _batch(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[str, ...]:
    offset = len(batch) - len(shape)
    return tuple(
        f"b{offset + axis}" if extent == batch[offset + axis] else LOCAL_AXIS
        for axis, extent in enumerate(shape)
    )


@register_rule("einsum")
def _einsum(*operands: TensorStructInfo, subscripts: str) -> Local:
    only_tensors("einsum", *operands)
    text = subscripts.replace(" ", "")
    if not _SUBSCRIPTS.fullmatch(text):
        _refuse(subscripts, "expected letters, commas and ->; '...' has no rule")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands):
        _refuse(subscripts, f"expected {len(inputs)} operands, got {len(operands)}")
    extents: dict[str, int] = {}
    for letters, operand in zip(inputs, operands, strict=True):
        if len(letters) != operand.ndim:
            shape = tuple(operand.shape)
            _refuse(subscripts, f"{letters!r} does not fit a tensor of shape {shape}")
        for letter, extent in zip(letters, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                _refuse(subscripts, f"{letter!r} is {extents[letter]} and {extent}")
    if not arrow:
        right = "".join(sorted(letter for letter in extents if left.count(letter) == 1))
    if any(letter not in extents or right.count(letter) > 1 for letter in right):
        _refuse(subscripts, f"{right!r} is no result of {left!r}")
    pattern = Pattern(
        tuple(tuple(letters) for letters in inputs),
        tuple(right),
        tuple((letter, "sum") for letter in extents if letter not in right),
        tuple((number,) for number in range(len(operands))),
    )
    dtype = np.result_type(*(operand.dtype for operand in operands))
    whole = [extents[letter] for letter in right]
    full = f"{left}->{right}"
    return Local("einsum", pattern, TensorStructInfo(whole, dtype), {"subscripts": full})


def _refuse(subscripts: str, why: str) -> NoReturn:
    raise ConfigError(f"einsum of {subscripts!r}: {why}")
