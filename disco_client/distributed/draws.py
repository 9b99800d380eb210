"""Random tensors that the workers draw, the same ones wherever they lie.

See ``disco_server.rank.builtins.draws`` for how a worker draws its part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import DTensorStructInfo, Placement, PlacementSpec
from disco_client.errors import ConfigError
from disco_client.wire.blocks import drawn_elements, spanned
from disco_client.wire.values import INLINE_ARRAY_BYTES, Shape

__all__ = ["BLOCK", "Draw", "Key", "Parameter", "checked_sample", "draw", "stream", "units_of"]

BLOCK = 1 << 15
"""How many elements a block has; other numbers of them give other tensors."""

_PER_ELEMENT = 10
"""About how many nanoseconds a drawn element takes, and a byte that moves one."""

_PER_MOVE = 300_000
"""About how many a redistribution takes besides."""

Key: TypeAlias = tuple[np.uint64, np.uint64]
"""Of Philox, the lower half first."""


class Parameter(NamedTuple):
    """What a distribution takes.

    Attributes:
        value: A number, an array or a distributed tensor.
        inner: How many axes one value has: 1 for the probabilities of `multinomial`.
    """

    value: Any
    inner: int = 0

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes that are broadcast against the shape of the result."""
        shape = np.shape(self.value)
        return tuple(shape[: len(shape) - self.inner])


class Draw(NamedTuple):
    """What is drawn by one call.

    Attributes:
        name: The method of numpy's generator.
        units: The shape of what is drawn independently.
        row: The shape of each of these.
        dtype: Of the elements.
        parameters: The distribution's.
        options: The method's besides.
    """

    name: str
    units: tuple[int, ...]
    row: tuple[int, ...]
    dtype: np.dtype[Any]
    parameters: Sequence[Parameter]
    options: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the result."""
        return (*self.units, *self.row)


def stream(key: Key, number: int) -> np.random.Generator:
    """Numpy's generator of the first block of a draw."""
    counter = np.array([0, 0, 0, number], np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array(key), counter=counter))


_nobody = functools.cache(lambda: np.random.Generator(np.random.Philox(0)))


def checked_sample(
    name: str, parameters: Sequence[Parameter], options: Mapping[str, Any]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape of what a distribution draws; numpy checks the parameters.

    Of distributed tensors it sees the dtype alone.

    Returns:
        The dtype, and the axes that one has: of `multinomial` one.

    Raises:
        ValueError: numpy's, for instance of a negative scale.
        TypeError: numpy's, for instance of a dtype that it does not draw.
        ConfigError: The parameters cannot be broadcast together.
    """
    batch = _broadcast(name, [each.batch for each in parameters])
    given = [each.value for each in parameters]
    size: tuple[int, ...] | None
    if any(isinstance(value, DTensor) for value in given):
        given = [
            np.empty((0, *batch), value.dtype) if isinstance(value, DTensor) else value
            for value in given
        ]
        size, before = None, 1 + len(batch)
    elif any(each.inner for each in parameters) or not batch:
        size, before = (1, *batch), 1 + len(batch)
    elif name == "integers":  # which checks nothing where it draws nothing
        size, before = None, len(batch)
    else:
        size, before = (0, *batch), 1 + len(batch)
    sample = np.asarray(getattr(_nobody(), name)(*given, size=size, **options))
    return sample.dtype, sample.shape[before:]


def _broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ConfigError(
            f"{name}: parameters of shapes {', '.join(map(str, shapes))} cannot be broadcast"
            " together"
        ) from None


def units_of(
    name: str, size: tuple[int, ...] | None, parameters: Sequence[Parameter]
) -> tuple[int, ...]:
    """The shape that is drawn: by default that of the parameters.

    Raises:
        ConfigError: The parameters cannot be broadcast to it.
    """
    batch = _broadcast(name, [each.batch for each in parameters])
    if size is None:
        return batch
    try:
        fits = np.broadcast_shapes(batch, size) == size
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"{name}: parameters of shape {batch} cannot be broadcast to size {size}")
    return size


def draw(engine: Computing, key: Key, number: int, what: Draw, info: DTensorStructInfo) -> DTensor:
    """Draws a tensor on the workers; returns at once.

    Args:
        engine: Computes.
        key: Of the generator.
        number: Of the draw.
        what: Is drawn.
        info: What the result is to be.
    """
    row = math.prod(what.row)
    length = max(1, BLOCK // max(row, 1))
    made_as = _cheaper(info, length * max(row, 1))
    values: list[Any] = []
    parts: list[bool] = []
    for each in what.parameters:
        value, is_part = _brought(engine, each, made_as, len(what.units), length)
        values.append(value)
        parts.append(is_part)
    how = {
        "name": what.name,
        "axes": len(what.units),
        "length": length,
        "key": list(key),
        "number": number,
        "options": dict(what.options),
        "inner": [each.inner for each in what.parameters],
        "parts": parts,
    }
    made = engine.create("random", made_as, Shape(info.tensor_sinfo.shape), how, *values)
    if made_as == info:
        return made._explained_as(what.name, made)
    return made.redistribute(info.placement)._explained_as(what.name, made)


@functools.lru_cache(maxsize=1024)
def _cheaper(info: DTensorStructInfo, block: int) -> DTensorStructInfo:
    """How a tensor is drawn: as it is to lie, or by rows which are then redistributed.

    A part that is cut across the blocks has elements of many, and each worker would draw nearly
    all.
    """
    whole = info.tensor_sinfo
    if not whole.ndim or not math.prod(whole.shape):
        return info
    mesh = info.device_mesh
    rows = DTensorStructInfo(whole, mesh, Placement([PlacementSpec.sharding(0)] * mesh.ndim))
    places = range(mesh.size)
    most, least = (
        max(drawn_elements(whole.shape, each.pieces(place), block) for place in places)
        for each in (info, rows)
    )
    moved = max(math.prod(info.local_shape(place)) for place in places) * whole.dtype.itemsize
    by_rows = _PER_ELEMENT * least + moved + _PER_MOVE
    return rows if by_rows < _PER_ELEMENT * most else info


def _brought(
    engine: Computing, parameter: Parameter, info: DTensorStructInfo, axes: int, length: int
) -> tuple[Any, bool]:
    """A parameter as it goes with the command, and whether it is a part for each worker.

    Of distributed tensors, and of large arrays that are not broadcast, each worker gets what
    belongs to the blocks that it draws; other arrays go to all of the workers.

    Args:
        engine: Moves it.
        parameter: The parameter.
        info: How the result is drawn.
        axes: How many of its axes number what is drawn independently.
        length: How many of these a block has.
    """
    value, inner = parameter
    is_tensor = isinstance(value, DTensor)
    units = tuple(info.tensor_sinfo.shape[:axes])
    is_large = units and parameter.batch == units and value.nbytes > INLINE_ARRAY_BYTES
    if not is_tensor and not is_large:
        return (value if value.ndim else value[()]), False
    core = tuple(value.shape[value.ndim - inner :])
    wide = np.broadcast_to(value, (*units, *core))
    flat = np.reshape(wide, (math.prod(units), *core))
    mesh = info.device_mesh
    line = DeviceMesh((mesh.size,), mesh.device_ids)
    spans = [spanned(units, info.pieces(place)[:axes], length) for place in range(mesh.size)]
    there = Placement([PlacementSpec.explicit(0, spans)])
    if is_tensor:
        return flat.redistribute(line, there).ref, True  # type: ignore[attr-defined]
    return engine.distribute(flat, line, there).ref, True
