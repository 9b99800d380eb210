"""The interface of spans, and the span that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self, TypeAlias

__all__ = ["NO_SPAN", "Attributes", "Span"]

Attributes: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str] | Sequence[int]]


class Span:
    """Does nothing, and defines the interface of all spans.

    As a context manager it is the active span meanwhile, ends with the block, and fails
    with what the block raises.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """What another process needs to continue the trace: the headers of W3C."""
        return {}

    @property
    def ids(self) -> Mapping[str, str]:
        """``trace_id`` and ``span_id``, for log lines."""
        return {}

    def note(self, attributes: Attributes) -> None:
        """Adds attributes that have become known since it began."""

    def fail(self, why: BaseException | str) -> None:
        """Marks it as failed; the first reason counts."""

    def end(self) -> None:
        """Ends it; idempotent."""

    def within(self, name: str, attributes: Attributes | None = None) -> Span:
        """Begins a part of it.

        Where the program has an active span, that one is the parent, and this one is
        linked: a request that is served by a session belongs to the request.
        """
        del name, attributes
        return self

    def active(self) -> AbstractContextManager[object]:
        """Makes it the active span for a block, and leaves it open."""
        return nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, error, trace


NO_SPAN = Span()
