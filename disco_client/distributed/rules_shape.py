"""Rules of functions that move elements without computing: reshape, slices, take and so on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.layout import local_shapes
from disco_client.distributed.pattern import LOCAL_AXIS, Pattern
from disco_client.distributed.rules import Local, only_tensors, register_rule
from disco_client.distributed.rules_reduce import normal_axes, normal_axis
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.values import Shape

__all__: list[str] = []


@register_rule("transpose")
def _transpose(x: TensorStructInfo, *, axes: Any = None) -> Local:
    order = normal_axes(axes, x.ndim) if axes is not None else tuple(reversed(range(x.ndim)))
    if len(order) != x.ndim:
        raise ConfigError(f"transpose needs each of {x.ndim} axes once, got {order}")
    letters = tuple(f"a{axis}" for axis in range(x.ndim))
    pattern = Pattern((letters,), tuple(letters[axis] for axis in order), linear=((0,),))
    result = TensorStructInfo([x.shape[axis] for axis in order], x.dtype)
    return Local("transpose", pattern, result, {"axes": Shape(order)})


@register_rule("reshape")
def _reshape(x: TensorStructInfo, *, shape: Sequence[SupportsIndex]) -> Local:
    before, after = tuple(x.shape), _filled(tuple(x.shape), [each.__index__() for each in shape])
    inputs, output = [LOCAL_AXIS] * len(before), [LOCAL_AXIS] * len(after)
    even: list[tuple[str, int]] = []
    for number, (ours, theirs) in enumerate(_groups(before, after)):
        letter = f"g{number}"
        if len(ours) == len(theirs) == 1:
            inputs[ours[0]] = output[theirs[0]] = letter
        elif ours and theirs:
            # Of axes that become one, or one that becomes several, the first may be split.
            inputs[ours[0]] = output[theirs[0]] = letter
            even.append((letter, math.gcd(before[ours[0]], after[theirs[0]])))
    pattern = Pattern((tuple(inputs),), tuple(output), (), ((0,),), tuple(even))

    def tables(
        _operands: Sequence[DTensorStructInfo], result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        return {"shape": local_shapes(result)}

    return Local("reshape", pattern, TensorStructInfo(after, x.dtype), {}, tables)


def _filled(before: tuple[int, ...], wanted: list[int]) -> tuple[int, ...]:
    size = math.prod(before)
    if wanted.count(-1) == 1:
        rest = math.prod(extent for extent in wanted if extent != -1)
        if rest and not size % rest:
            wanted[wanted.index(-1)] = size // rest
    if any(extent < 0 for extent in wanted) or math.prod(wanted) != size:
        raise ConfigError(f"a tensor of shape {before} cannot be reshaped to {tuple(wanted)}")
    return tuple(wanted)


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Which axes become which, as small as can be; axes of extent 1 belong to none."""
    ours = [axis for axis, extent in enumerate(before) if extent != 1]
    theirs = [axis for axis, extent in enumerate(after) if extent != 1]
    groups: list[tuple[list[int], list[int]]] = []
    if 0 in before:
        return groups
    while ours and theirs:
        left, right = [ours.pop(0)], [theirs.pop(0)]
        one, other = before[left[0]], after[right[0]]
        while one != other:
            if one < other:
                left.append(ours.pop(0))
                one *= before[left[-1]]
            else:
                right.append(theirs.pop(0))
                other *= after[right[-1]]
        groups.append((left, right))
    return groups


@register_rule("slice")
def _slice(x: TensorStructInfo, *, items: Sequence[Sequence[int | None]]) -> Local:
    letters: list[str] = []
    shape: list[int] = []
    for axis, (extent, item) in enumerate(zip(x.shape, items, strict=True)):
        picked = range(extent)[slice(*item)]
        letters.append(f"a{axis}" if picked == range(extent) else LOCAL_AXIS)
        shape.append(len(picked))
    pattern = Pattern((tuple(letters),), tuple(letters), linear=((0,),))

    def tables(
        operands: Sequence[DTensorStructInfo], _result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        # Where an axis is split all of each part is taken.
        whole = [None, None, None]
        split = set(operands[0].axes)
        found = [whole if axis in split else list(item) for axis, item in enumerate(items)]
        return {"items": [found] * operands[0].device_mesh.size}

    return Local("slice", pattern, TensorStructInfo(shape, x.dtype), {}, tables)


@register_rule("concatenate")
def _concatenate(*operands: TensorStructInfo, axis: SupportsIndex = 0) -> Local:
    only_tensors("concatenate", *operands)
    if not operands:
        raise ConfigError("concatenate needs at least one tensor")
    first = operands[0]
    place = normal_axis(axis, first.ndim)
    for each in operands:
        rest = [*each.shape[:place], *each.shape[place + 1 :]]
        if each.ndim != first.ndim or rest != [*first.shape[:place], *first.shape[place + 1 :]]:
            raise ConfigError(
                f"concatenate along axis {place}: {tuple(first.shape)} and {tuple(each.shape)}"
                " differ along another axis"
            )
    letters = [f"a{number}" for number in range(first.ndim)]
    letters[place] = LOCAL_AXIS
    shape = list(first.shape)
    shape[place] = sum(each.shape[place] for each in operands)
    together = (tuple(range(len(operands))),)
    pattern = Pattern((tuple(letters),) * len(operands), tuple(letters), linear=together)
    dtype = np.result_type(*(each.dtype for each in operands))
    return Local("concatenate", pattern, TensorStructInfo(shape, dtype), {"axis": place})


@register_rule("take")
def _take(x: TensorStructInfo, ids: TensorStructInfo, *, axis: SupportsIndex = 0) -> Local:
    only_tensors("take", x, ids)
    if ids.dtype.kind not in "iu":
        raise ConfigError(f"take needs positions of an integer dtype, got {ids.dtype}")
    place = normal_axis(axis, x.ndim)
    letters = [f"a{number}" for number in range(x.ndim)]
    letters[place] = "v"
    places = tuple(f"i{number}" for number in range(ids.ndim))
    output = (*letters[:place], *places, *letters[place + 1 :])
    # A worker gives zeros for rows that it has not, so that the sum is the row.
    pattern = Pattern((tuple(letters), places), output, (("v", "sum"),), ((0,),))
    shape = (*x.shape[:place], *ids.shape, *x.shape[place + 1 :])

    def tables(
        operands: Sequence[DTensorStructInfo], _result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        mesh = operands[0].device_mesh
        return {"first": [operands[0].bounds(at)[place][0] for at in range(mesh.size)]}

    options = {"axis": place, "extent": x.shape[place]}
    return Local("take", pattern, TensorStructInfo(shape, x.dtype), options, tables)


@register_rule("update")
def _update(
    x: TensorStructInfo, values: TensorStructInfo, start: Any, *, axis: SupportsIndex = 0
) -> Local:
    place = normal_axis(axis, x.ndim)
    rest = [each for number, each in enumerate(x.shape) if number != place]
    if (
        values.ndim != x.ndim
        or [each for number, each in enumerate(values.shape) if number != place] != rest
        or values.shape[place] > x.shape[place]
    ):
        raise ConfigError(
            f"update along axis {place}: expected values that fit into {tuple(x.shape)} there and"
            f" have its other extents, got {tuple(values.shape)}"
        )
    if values.dtype != x.dtype:
        raise ConfigError(f"update: expected values of dtype {x.dtype}, got {values.dtype}")
    letters = [f"a{number}" for number in range(x.ndim)]
    letters[place] = LOCAL_AXIS
    inputs = [tuple(letters), tuple(letters)]
    if isinstance(start, TensorStructInfo):
        if start.ndim or start.dtype.kind not in "iu":
            raise ConfigError(
                "update: expected an integer without axes as the start, got"
                f" {start.dtype}{list(start.shape)}"
            )
        inputs.append(())
    pattern = Pattern(tuple(inputs), tuple(letters), linear=((0, 1),))
    return Local("update", pattern, TensorStructInfo(x.shape, x.dtype), {"axis": place})
