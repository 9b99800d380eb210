"""How a tensor is placed along the axes of a mesh: split, copied, or as parts of a sum."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeGuard, TypeVar, cast, overload

from disco_client.distributed.mesh import DeviceMesh
from disco_client.errors import ConfigError, DtypeError
from disco_client.text import many
from disco_client.wire.partition import (
    WHOLE,
    Bounds,
    Intervals,
    bounds_of,
    coordinate_of,
    divide_all,
    length_of,
)
from disco_client.wire.values import (
    Shape,
    dtype_from_name,
    dtype_name,
    extents_of,
    is_extension,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "DTensorStructInfo",
    "DTensorType",
    "Placement",
    "PlacementSpec",
    "PlacementSpecKind",
    "TensorStructInfo",
    "combines",
    "crosses",
    "mixes",
    "placement_on",
]


_OPS = ("sum", "prod", "min", "max")
_Kind = TypeVar("_Kind")


class PlacementSpecKind(enum.IntEnum):
    """How a tensor is placed along one axis; the first two numbers are the original's."""

    SHARDING = 0
    REPLICA = 1
    PARTIAL = 2


class Fused(NamedTuple):
    """An axis that several matrices were fused along, each of which is split by itself.

    Attributes:
        sizes: Their number, if they are equally long, or the extent of each.
        uneven: Whether an extent may be one that the workers do not divide.
    """

    sizes: int | tuple[int, ...]
    uneven: bool


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """How a tensor is placed along one axis of a mesh.

    Made by :meth:`sharding`, :meth:`fused`, :meth:`explicit`, :meth:`replica` and
    :meth:`partial`. Equal ones compare as equal, which the original's do not.

    Attributes:
        kind: Split, copied or partial.
        axis: The tensor's axis that is split; -1 where none is.
        op: How partial values become the whole; empty where they are not partial.
        parts: What each along the mesh axis holds of the tensor's axis, where that is not
            as equal as can be; those of a :meth:`fused` axis are known with a tensor.

    Examples:
        >>> spec = distributed.PlacementSpec.sharding(1)
        >>> x = session.distribute(np.ones((2, 8)), placement=distributed.Placement([spec]))
        >>> x.shape_on(0)
        (2, 2)
    """

    kind: PlacementSpecKind
    axis: int = -1
    op: str = ""
    parts: tuple[Intervals, ...] | Fused = ()

    @staticmethod
    def sharding(axis: int) -> PlacementSpec:
        """Split along an axis of the tensor; from the end where negative.

        Raises:
            TypeError: The axis is no integer.
        """
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            msg = f"expected an axis of the tensor, got {axis!r}"
            raise TypeError(msg)
        return PlacementSpec(PlacementSpecKind.SHARDING, axis.__index__())

    @staticmethod
    def fused(axis: int, parts: int | Sequence[int] = 1, uneven: bool = False) -> PlacementSpec:
        """Split along an axis that matrices were fused along, such as query, key and value.

        Each of them is split by itself, and a worker's part is its slice of the first,
        then of the second, and so on.

        Args:
            axis: The axis; from the end where negative.
            parts: The number of matrices, if they are equally long, or the extent of each.
            uneven: Whether an extent may be one that the workers do not divide; the first
                workers then get one more.

        Raises:
            ConfigError: An argument is not as described.
        """
        if not _is_int(axis):
            msg = f"expected an axis such as 0 or -1, got {axis!r}"
            raise ConfigError(msg)
        given: object = parts
        if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
            sizes = tuple(cast("Sequence[object]", given))
            if sizes and all(_is_int(size) and size >= 0 for size in sizes):
                return PlacementSpec(
                    PlacementSpecKind.SHARDING,
                    axis,
                    "",
                    Fused(cast("tuple[int, ...]", sizes), bool(uneven)),
                )
        elif _is_int(given) and given >= 1:
            if given == 1 and uneven:
                return PlacementSpec.sharding(axis)
            return PlacementSpec(PlacementSpecKind.SHARDING, axis, "", Fused(given, bool(uneven)))
        msg = f"expected the number of fused parts, or the extent of each, got {parts!r}"
        raise ConfigError(msg)

    @staticmethod
    def explicit(
        axis: int, parts: Sequence[tuple[int, int] | Sequence[tuple[int, int]]]
    ) -> PlacementSpec:
        """Split along an axis in given parts, which may be uneven and may overlap.

        Args:
            axis: The axis; from the end where negative.
            parts: For each worker along the axis of the mesh what it holds: the first
                index and the one behind the last, or several such pairs in ascending order.

        Raises:
            TypeError: The axis is no integer.
            ConfigError: These are no such parts.
        """
        spec = PlacementSpec.sharding(axis)
        return PlacementSpec(PlacementSpecKind.SHARDING, spec.axis, "", tuple(map(_pieces, parts)))

    @staticmethod
    def replica() -> PlacementSpec:
        """The whole tensor for each."""
        return PlacementSpec(PlacementSpecKind.REPLICA)

    @staticmethod
    def partial(op: str = "sum") -> PlacementSpec:
        """Values for each that together make the tensor, as after half of a contraction.

        Args:
            op: What makes them whole: ``"sum"``, ``"prod"``, ``"min"`` or ``"max"``.

        Raises:
            ConfigError: It is none of these.
        """
        if op not in _OPS:
            raise ConfigError(f"expected one of {', '.join(_OPS)}, got {op!r}")
        return PlacementSpec(PlacementSpecKind.PARTIAL, -1, op)

    @property
    def is_replica(self) -> bool:
        """Whether each has the whole."""
        return self.kind is PlacementSpecKind.REPLICA

    @property
    def is_partial(self) -> bool:
        """Whether each has values that are still to be combined."""
        return self.kind is PlacementSpecKind.PARTIAL

    @property
    def overlaps(self) -> bool:
        """Whether two workers along the axis of the mesh hold the same index in given parts."""
        if not self.parts or isinstance(self.parts, Fused):
            return False
        ends = [stop for pieces in self.parts for _, stop in pieces]
        return sum(map(length_of, self.parts)) > max(ends, default=0)

    def __str__(self) -> str:
        if isinstance(self.parts, Fused):
            sizes, uneven = self.parts
            more = [] if sizes == 1 else [f"parts={sizes}"]
            more += ["uneven"] if uneven else []
            return f"S[{self.axis}]" + (f" ({', '.join(more)})" if more else "")
        if self.parts:
            each = ("+".join(f"{a}-{b}" for a, b in pieces) or "-" for pieces in self.parts)
            return f"S[{self.axis}: {', '.join(each)}]"
        if self.kind is PlacementSpecKind.SHARDING:
            return f"S[{self.axis}]"
        return "R" if self.is_replica else f"P[{self.op}]"


def _pieces(part: object) -> Intervals:
    """Reads what one worker holds of an axis; adjacent pieces are joined."""
    given = tuple(cast("Iterable[Any]", part)) if isinstance(part, Sequence) else (None,)
    if given and all(map(_is_int, given)):
        given = (given,)
    found: list[tuple[int, int]] = []
    for piece in given:
        pair = tuple(cast("Iterable[Any]", piece)) if isinstance(piece, Sequence) else ()
        ahead = found[-1][1] if found else 0
        if len(pair) != 2 or not all(map(_is_int, pair)) or not ahead <= pair[0] <= pair[1]:  # noqa: PLR2004
            msg = f"expected parts such as (0, 4) or [(0, 4), (8, 10)], ascending, got {part!r}"
            raise ConfigError(msg)
        if pair[0] == pair[1]:
            continue
        if found and pair[0] == ahead:
            pair = (found.pop()[0], pair[1])
        found.append(pair)
    return tuple(found)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor is placed on a mesh: one spec for each axis of the mesh.

    Attributes:
        dim_specs: The specs.

    Raises:
        TypeError: An element is no spec.
        ConfigError: Values are to be combined in several ways: the result would
            depend on their order.

    Examples:
        >>> mesh = session.mesh((2, 2))
        >>> placement = distributed.Placement.from_text("S[0], R")
        >>> session.distribute(np.ones((4, 2)), mesh, placement).shape_on(3)
        (2, 2)
    """

    dim_specs: tuple[PlacementSpec, ...]

    def __init__(self, dim_specs: Iterable[PlacementSpec]) -> None:
        specs = tuple(cast("Iterable[object]", dim_specs))
        for spec in specs:
            if not isinstance(spec, PlacementSpec):
                msg = f"expected specs such as PlacementSpec.replica(), got {spec!r}"
                raise TypeError(msg)
        if mixes(cast("tuple[PlacementSpec, ...]", specs)):
            raise ConfigError(
                f"the values of {', '.join(map(str, specs))} would be combined in several ways, and"
                " the order would decide what comes out; combine along one axis first"
            )
        object.__setattr__(self, "dim_specs", specs)

    @staticmethod
    def from_text(text: str) -> Placement:
        """Reads ``"S[0], R"``: a spec for each axis of the mesh.

        ``R`` is a copy for each, ``S[1]`` a split along axis 1, ``S[1: 0-4, 2-6+8-9]``
        one in these parts (``-`` for none), ``P`` or ``P[max]``
        values that are still to be combined. Spaces and commas between them do not
        matter. The original reads no ``P``, and reads some texts that break off
        (``S[0``) or numbers of more than 32 bits, which are refused here.

        Raises:
            TypeError: It is no text.
            ConfigError: It is no placement; the message points at the character.
        """
        if not isinstance(cast("object", text), str):
            msg = f"expected the text of a placement such as 'S[0], R', got {text!r}"
            raise TypeError(msg)
        specs: list[PlacementSpec] = []
        at = 0
        while (at := _skip(text, at)) < len(text):
            match = _SPEC.match(text, at)
            if match is None:
                _refuse(text, at)
            specs.append(_spec(text, match))
            at = match.end()
        return Placement(specs)

    def combined(self) -> Placement:
        """The same with a copy for each where there are partial values."""
        whole = PlacementSpec.replica()
        return Placement(whole if spec.is_partial else spec for spec in self.dim_specs)

    def plain(self) -> Placement:
        """The same with copies for partial values, and equal parts for given ones."""
        specs = self.combined().dim_specs
        return Placement(
            PlacementSpec.sharding(spec.axis) if spec.parts else spec for spec in specs
        )

    def __len__(self) -> int:
        return len(self.dim_specs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.dim_specs))

    def __repr__(self) -> str:
        return f"Placement.from_text({str(self)!r})"


def mixes(specs: Sequence[PlacementSpec]) -> bool:
    """Whether values are to be combined in several ways, which is no placement."""
    return len({spec.op for spec in specs if spec.is_partial}) > 1


def crosses(specs: Sequence[PlacementSpec]) -> bool:
    """Whether an axis in given parts is split along another axis of the mesh too."""
    split = [spec.axis for spec in specs if spec.kind is PlacementSpecKind.SHARDING]
    return any(spec.parts and split.count(spec.axis) > 1 for spec in specs)


_PART = r"(?:\d{1,18}-\d{1,18}(?:\+\d{1,18}-\d{1,18})*|-)"
_SPEC = re.compile(
    rf"R|S\s*\[\s*([+-]?\d{{1,9}})(?::\s*({_PART}(?:[\s,]+{_PART})*))?\]"
    r"|P(?:\s*\[\s*(\w*)\s*\])?"
)
_BETWEEN = re.compile(r"[\s,]*")
_BEGUN = re.compile(r"S\s*(\[\s*([+-]?\d*))?|P\s*\[\s*\w*")


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match is not None else at


def _spec(text: str, match: re.Match[str]) -> PlacementSpec:
    kind = text[match.start()]
    if kind == "R":
        return PlacementSpec.replica()
    if kind == "S":
        if match[2] is None:
            return PlacementSpec.sharding(int(match[1]))
        return PlacementSpec.explicit(
            int(match[1]), list(map(_read_part, re.split(r"[\s,]+", match[2])))
        )
    op = match[3]
    if op is not None and op not in _OPS:
        _refuse(text, match.start(3), f"one of {', '.join(_OPS)}")
    return PlacementSpec.partial(op or "sum")


def _read_part(text: str) -> list[tuple[int, int]]:
    pairs = (piece.partition("-") for piece in text.split("+") if piece != "-")
    return [(int(start), int(stop)) for start, _, stop in pairs]


def _refuse(text: str, at: int, expected: str = "") -> NoReturn:
    """Points at the character from which a text is no placement."""
    begun = _BEGUN.match(text, at)
    if begun is not None and not expected:
        at = begun.end()
        number = begun[2] is not None
        expected = ("']'" if begun[2] else "an axis") if number else "'[' and an axis"
        if text[begun.start()] == "P":
            expected = "']'"
    expected = expected or "R, S[axis] or P[op]"
    msg = (
        f"expected {expected} at character {at + 1} of a placement\n  {text!r}\n  {' ' * (at + 1)}^"
    )
    raise ConfigError(msg)


# What a tensor is, and its placement on a mesh.


_dtype = functools.cache(dtype_from_name)


@dataclass(frozen=True, slots=True)
class TensorStructInfo:
    """The shape and dtype of a tensor.

    Args:
        shape: The extents.
        dtype: A dtype or its name.

    Raises:
        ConfigError: There is no such dtype.

    Examples:
        >>> distributed.TensorStructInfo((2, 3), "float32").dtype
        dtype('float32')
    """

    shape: Shape
    dtype_name: str

    def __init__(self, shape: Sequence[int], dtype: object) -> None:
        object.__setattr__(self, "shape", extents_of(shape))
        name = dtype if is_extension(dtype) else dtype_name(dtype_from_name(dtype))
        object.__setattr__(self, "dtype_name", name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype.

        Raises:
            ConfigError: It is one of ``ml_dtypes``, which is not installed here.
        """
        return _dtype(self.dtype_name)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the whole has."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class DTensorStructInfo:
    """A tensor on a mesh, after ``tvm.relax.distributed.DTensorStructInfo``.

    Args:
        tensor_sinfo: The tensor as a whole.
        device_mesh: The mesh.
        placement: Its placement there, or the text of it. Negative axes are counted
            from the end, and become those from the front.
        span: A place in a source, of the original's; not kept.
        tensor_ty: The tensor as a whole, under the name that newer versions of the
            original use, instead of ``tensor_sinfo``.

    Raises:
        TypeError: An argument is of another type.
        ConfigError: The placement has not one spec for each axis of the mesh, or an
            axis that the tensor has not, or partial values of a kind that its
            dtype does not have.

    Examples:
        >>> mesh = distributed.DeviceMesh((4,), range(4))
        >>> whole = distributed.TensorStructInfo((8, 2), "float32")
        >>> distributed.DTensorStructInfo(whole, mesh, "S[0]").placement
        Placement.from_text('S[0]')
    """

    tensor_sinfo: TensorStructInfo
    device_mesh: DeviceMesh
    placement: Placement
    _hash: int = field(repr=False, compare=False)

    @overload
    def __init__(
        self,
        tensor_sinfo: TensorStructInfo,
        device_mesh: DeviceMesh,
        placement: Placement | str,
        span: object = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        tensor_ty: TensorStructInfo,
        device_mesh: DeviceMesh,
        placement: Placement | str,
        span: object = None,
    ) -> None: ...

    def __init__(
        self,
        tensor_sinfo: TensorStructInfo | None = None,
        device_mesh: DeviceMesh | None = None,
        placement: Placement | str | None = None,
        span: object = None,
        *,
        tensor_ty: TensorStructInfo | None = None,
    ) -> None:
        del span
        given = tensor_sinfo if tensor_ty is None else tensor_ty
        tensor = _checked("tensor_sinfo", given, TensorStructInfo)
        mesh = _checked("device_mesh", device_mesh, DeviceMesh)
        found = Placement.from_text(placement) if isinstance(placement, str) else placement
        if not isinstance(found, Placement):
            msg = f"expected a Placement or its text for placement, got {placement!r}"
            raise TypeError(msg)
        object.__setattr__(self, "tensor_sinfo", tensor)
        object.__setattr__(self, "device_mesh", mesh)
        placed = _resolved(tensor, mesh, found)
        object.__setattr__(self, "placement", placed)
        # Each call looks up what is known of its operands, by this.
        object.__setattr__(self, "_hash", hash((tensor, mesh, placed)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def tensor_ty(self) -> TensorStructInfo:
        """The tensor as a whole, under the name that newer versions of the original use."""
        return self.tensor_sinfo

    @property
    def axes(self) -> tuple[int, ...]:
        """For each axis of the mesh the tensor's axis that it splits, or WHOLE."""
        return tuple(
            spec.axis if spec.kind is PlacementSpecKind.SHARDING else WHOLE
            for spec in self.placement.dim_specs
        )

    def bounds(self, place: int) -> Bounds:
        """The part that the worker at a place of the mesh's list holds.

        Raises:
            ConfigError: It is not one block; :meth:`pieces` says what it is.
        """
        if not self.is_explicit:
            return self._plain_bounds(place)
        pieces = self.pieces(place)
        if any(len(each) > 1 for each in pieces):
            raise ConfigError(f"the parts of {self.placement} have no bounds, only pieces")
        return tuple(each[0] if each else (0, 0) for each in pieces)

    @property
    def is_explicit(self) -> bool:
        """Whether an axis is split in given parts."""
        return any(spec.parts for spec in self.placement.dim_specs)

    def pieces(self, place: int) -> tuple[Intervals, ...]:
        """What the worker at a place of the mesh's list holds of each axis."""
        at = coordinate_of(self.device_mesh.shape, place)
        found: list[Intervals] = [(each,) for each in self._plain_bounds(place)]
        for spec, index in zip(self.placement.dim_specs, at, strict=True):
            if spec.parts:
                found[spec.axis] = cast("tuple[Intervals, ...]", spec.parts)[index]
        return tuple(found)

    def local_shape(self, place: int) -> tuple[int, ...]:
        """The shape of the part that the worker at a place of the mesh's list holds."""
        if self.is_explicit:
            return tuple(map(length_of, self.pieces(place)))
        return tuple(stop - start for start, stop in self._plain_bounds(place))

    def _plain_bounds(self, place: int) -> Bounds:
        mesh = self.device_mesh.shape
        return bounds_of(self.tensor_sinfo.shape, mesh, self.axes, coordinate_of(mesh, place))

    def __repr__(self) -> str:
        tensor = self.tensor_sinfo
        return (
            f"DTensor({tuple(tensor.shape)}, {tensor.dtype_name!r}, {self.device_mesh!r},"
            f" {str(self.placement)!r})"
        )


def _checked(name: str, value: object, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        msg = f"expected a {kind.__name__} for {name}, got {value!r}"
        raise TypeError(msg)
    return value


DTensorType = DTensorStructInfo
"""The name that newer versions of the original give it.

Examples:
    >>> distributed.DTensorType is distributed.DTensorStructInfo
    True
"""


def combines(dtype: np.dtype[Any], op: str) -> bool:
    """Whether collectives combine values of a dtype.

    Args:
        dtype: Others can be moved, as bytes.
        op: "sum", "prod", "min" or "max".
    """
    if dtype.kind == "c" and op in ("min", "max"):
        return False
    return dtype.name in _COMBINED


_COMBINED = frozenset(
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    ]
)


def _resolved(tensor: TensorStructInfo, mesh: DeviceMesh, placement: Placement) -> Placement:
    if len(placement) != mesh.ndim:
        raise ConfigError(
            f"expected {many(mesh.ndim, 'spec')}, one for each axis of the mesh, got"
            f" {len(placement)}: {str(placement)!r}"
        )
    ops = dict.fromkeys(spec.op for spec in placement.dim_specs if spec.is_partial)
    for op in ops:
        if combines(tensor.dtype, op):
            continue
        if tensor.dtype.kind == "c":
            raise DtypeError(f"{tensor.dtype.name} has no order, so no {op}")
        raise DtypeError(f"{tensor.dtype} cannot be combined between workers: it has no P[{op}]")
    specs: list[PlacementSpec] = []
    for spec, count in zip(placement.dim_specs, mesh.shape, strict=True):
        if spec.kind is not PlacementSpecKind.SHARDING:
            specs.append(spec)
            continue
        if not -tensor.ndim <= spec.axis < tensor.ndim:
            raise ConfigError(
                f"{spec} splits an axis that a tensor of shape {tuple(tensor.shape)} does not have"
            )
        axis = spec.axis % tensor.ndim
        specs.append(
            _divided(spec, axis, tensor.shape[axis], count)
            if spec.parts
            else PlacementSpec.sharding(axis)
        )
    if crosses(specs):
        raise ConfigError(
            f"{', '.join(map(str, specs))}: an axis in given parts cannot be split along another"
            " axis of the mesh too"
        )
    return Placement(specs)


def _divided(spec: PlacementSpec, axis: int, extent: int, count: int) -> PlacementSpec:
    """The spec that one with parts becomes for an axis of a tensor, among so many workers."""
    parts = spec.parts
    if isinstance(parts, Fused):
        parts = divide_all(extent, count, parts.sizes, uneven=parts.uneven)
    if len(parts) != count:
        raise ConfigError(f"{spec} has {many(len(parts), 'part')}, for {many(count, 'worker')}")
    at = 0
    for start, stop in sorted(piece for pieces in parts for piece in pieces):
        if start > at:
            break
        at = max(at, stop)
    if at != extent:
        raise ConfigError(f"the parts of {spec} do not make up an axis of extent {extent}")
    if parts == divide_all(extent, count):
        return PlacementSpec.sharding(axis)
    return PlacementSpec(PlacementSpecKind.SHARDING, axis, "", parts)


def placement_on(mesh: DeviceMesh, info: DTensorStructInfo) -> Placement:
    """The placement of a tensor as it would be on another mesh; copies where it does not fit.

    Args:
        mesh: The other mesh.
        info: The tensor.
    """
    specs = info.placement.plain().dim_specs
    alike = len(specs) == mesh.ndim
    return Placement(specs if alike else [PlacementSpec.replica()] * mesh.ndim)
