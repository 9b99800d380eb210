"""Which arrays beside the log a command names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disco_client.wire.codec import EncodedValue

__all__ = ["tickets_in"]


def tickets_in(values: Iterable[EncodedValue]) -> Iterator[int]:
    """Yields the tickets of the arrays in encoded values, those inside others included."""
    for value in values:
        kind = value.WhichOneof("kind")
        if kind == "array":
            if value.array.WhichOneof("data") == "ticket":
                yield value.array.ticket
        elif kind == "list":
            yield from tickets_in(value.list.items)
        elif kind == "map":
            yield from tickets_in(value.map.items.values())
