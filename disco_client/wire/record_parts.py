"""What a value is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from disco_client.wire.values import shown

__all__ = ["DICT", "RecordParts", "is_named", "is_named_class"]

DICT = "dict"
"""The type of a dict whose keys are not all texts: its keys, each before its value."""


class RecordParts(NamedTuple):
    """What a value is made of.

    Attributes:
        type: The name of its type on the wire.
        items: The values that it is made of.
        of: Its class, as ``module:Qualified.name``; "" for types of Python's own.
        fields: The names of the items, where they have some.
    """

    type: str
    items: Sequence[Any]
    of: str = ""
    fields: Sequence[str] = ()

    def step(self, number: int) -> str:
        """Where one of the items is, for an error."""
        if self.type == DICT:
            key = shown(self.items[number & ~1])
            return f"[{key}]" if number & 1 else f" in the key {key}"
        return f".{self.fields[number]}" if self.fields else f" in its {self.type}"


def is_named(value: object) -> bool:
    """Whether a value is a named tuple."""
    return is_named_class(type(value))


def is_named_class(cls: Any) -> bool:
    """Whether a class is one of named tuples."""
    return tuple in cls.__mro__ and hasattr(cls, "_fields")
