"""The functions behind ``session.create`` and the members of its objects."""

from __future__ import annotations

from typing import Any

from disco_server.rank.functions import register_func
from disco_server.rank.objects import find_class, member_of, needs_torch
from disco_server.rank.worker import current_worker

__all__: list[str] = []


@register_func("runtime.disco.create_object")
def create_object(name: str, /, *args: Any, **keywords: Any) -> Any:
    """Makes an object.

    Args:
        name: The registered or dotted name of its class.
        *args: What the class is called with.
        **keywords: The same with names.
    """
    worker = current_worker()
    kind = find_class(name, worker.allow_modules)
    worker.audit("object created", name, "")
    if needs_torch(kind):
        worker.torch_group()
    return kind(*args, **keywords)


@register_func("runtime.disco.get_attribute")
def get_attribute(held: Any, name: str) -> Any:
    """Looks up a method of an object, or reads an attribute.

    Args:
        held: The object.
        name: A public name.
    """
    return member_of(held, name, current_worker().allow_modules)
