"""Disco's server side: controller, worker daemons, and the rank processes.

A function that workers should offer is registered where it is defined::

    import disco_server

    @disco_server.register_func("my.scale")
    def scale(array, factor):
        return array * factor

and reaches the workers with ``session.import_python_module``. Inside such a
function, :func:`current_worker` tells which rank runs it and offers collectives. A class of
which sessions may make objects is registered with :func:`register_class`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disco_server.rank.functions import register_func
    from disco_server.rank.objects import register_class
    from disco_server.rank.worker import Worker, current_worker

__all__ = ["Worker", "current_worker", "register_class", "register_func"]

_HOMES = {
    "Worker": "disco_server.rank.worker",
    "current_worker": "disco_server.rank.worker",
    "register_class": "disco_server.rank.objects",
    "register_func": "disco_server.rank.functions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
