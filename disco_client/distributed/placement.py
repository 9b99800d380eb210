"""How a tensor lies along the axes of a mesh: split, copied, or as parts of a sum."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from disco_client.errors import ConfigError

__all__ = ["Kind", "Placement", "PlacementSpec", "mixes"]

_OPS = ("sum", "prod", "min", "max")


class Kind(enum.IntEnum):
    """How a tensor lies along one axis; the first two numbers are the original's."""

    SHARDING = 0
    REPLICA = 1
    PARTIAL = 2


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """How a tensor lies along one axis of a mesh.

    Made by :meth:`sharding`, :meth:`replica` and :meth:`partial`. Equal ones compare
    as equal, which the original's do not.

    Attributes:
        kind: Split, copied or partial.
        axis: The tensor's axis that is split; -1 where none is.
        op: How partial values become the whole; empty where they are not partial.
    """

    kind: Kind
    axis: int = -1
    op: str = ""

    @staticmethod
    def sharding(axis: int) -> PlacementSpec:
        """Split along an axis of the tensor; from the end where negative.

        Raises:
            TypeError: The axis is no integer.
        """
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            msg = f"expected an axis of the tensor, got {axis!r}"
            raise TypeError(msg)
        return PlacementSpec(Kind.SHARDING, axis.__index__())

    @staticmethod
    def replica() -> PlacementSpec:
        """The whole tensor for each."""
        return PlacementSpec(Kind.REPLICA)

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
        return PlacementSpec(Kind.PARTIAL, -1, op)

    @property
    def is_replica(self) -> bool:
        """Whether each has the whole."""
        return self.kind is Kind.REPLICA

    @property
    def is_partial(self) -> bool:
        """Whether each has values that are still to be combined."""
        return self.kind is Kind.PARTIAL

    def __str__(self) -> str:
        if self.kind is Kind.SHARDING:
            return f"S[{self.axis}]"
        return "R" if self.is_replica else f"P[{self.op}]"


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies on a mesh: one spec for each axis of the mesh.

    Attributes:
        dim_specs: The specs.

    Raises:
        TypeError: An element is no spec.
        ConfigError: Values are to be combined in several ways: what comes out would
            depend on which comes first.
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

        ``R`` is a copy for each, ``S[1]`` a split along axis 1, ``P`` or ``P[max]``
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

    def __len__(self) -> int:
        return len(self.dim_specs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.dim_specs))

    def __repr__(self) -> str:
        return f"Placement.from_text({str(self)!r})"


def mixes(specs: Sequence[PlacementSpec]) -> bool:
    """Whether values are to be combined in several ways, which is no placement."""
    return len({spec.op for spec in specs if spec.is_partial}) > 1


_SPEC = re.compile(r"R|S\s*\[\s*([+-]?\d{1,9})\]|P(?:\s*\[\s*(\w*)\s*\])?")
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
        return PlacementSpec.sharding(int(match[1]))
    op = match[2]
    if op is not None and op not in _OPS:
        _refuse(text, match.start(2), f"one of {', '.join(_OPS)}")
    return PlacementSpec.partial(op or "sum")


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
