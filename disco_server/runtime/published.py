"""Values that workers keep under a name, beyond the life of the registers they were in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disco_server.runtime.context import current_worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.functions import register_func

__all__: list[str] = []

_MOST = 10_000
_SHOWN = 10


@register_func("runtime.disco._publish")
def publish(name: str, value: Any, facts: Mapping[str, Any]) -> None:
    """Keeps a value.

    Args:
        name: The name.
        value: What this worker's register holds.
        facts: What the client wants to know of it again.
    """
    published = current_worker().published
    if name not in published and len(published) >= _MOST:
        msg = f"expected at most {_MOST} published values; unpublish some"
        raise ArgumentRefused(msg)
    published[name] = value, facts


@register_func("runtime.disco._published")
def find_published(name: str) -> Any:
    """The value under a name."""
    return _find(name)[0]


@register_func("runtime.disco._published_facts")
def find_facts(name: str) -> Mapping[str, Any]:
    """What the client noted about the value under a name."""
    return _find(name)[1]


@register_func("runtime.disco._list_published")
def list_published() -> list[str]:
    """All names, in order."""
    return sorted(current_worker().published)


@register_func("runtime.disco._unpublish")
def unpublish(name: str) -> None:
    """Forgets a name."""
    _find(name)
    del current_worker().published[name]


def _find(name: str) -> tuple[Any, Mapping[str, Any]]:
    published = current_worker().published
    if name not in published:
        names = ", ".join(map(repr, sorted(published)[:_SHOWN])) or "nothing is"
        more = f" and {len(published) - _SHOWN} more" if len(published) > _SHOWN else ""
        msg = f"nothing is published as {name!r} in this session; published: {names}{more}"
        raise ArgumentRefused(msg)
    return published[name]
