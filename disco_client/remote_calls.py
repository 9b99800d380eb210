"""Calls of functions and classes that ``@remote`` decorates: in which session, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from disco_client import objects
from disco_client.core import Distributed, DRef, core_of
from disco_client.errors import ConfigError
from disco_client.own_code import OwnCode
from disco_client.session import Session, open_sessions
from disco_client.sources import is_worker
from disco_client.text import many

__all__ = ["call_remotely"]


def call_remotely(thing: Any, args: tuple[object, ...], keywords: Mapping[str, object]) -> Any:
    """Calls a function, or makes an object of a class, on every worker; see `OnWorkers`."""
    name = thing.__qualname__
    if is_worker():
        msg = f"this is a worker, which calls {name}(...) itself; {name}.remote is for the program"
        raise ConfigError(msg)
    instead = "create({}, ...)" if isinstance(thing, type) else "function({})(...)"
    session = _session_of(name, f"session.{instead.format(name)}", (*args, *keywords.values()))
    core = core_of(session)
    own_code = core.part(OwnCode)
    if not own_code.is_known(thing):
        core.check_may_wait(f"await asyncio.to_thread({name}.remote, ...), the first time")
    if isinstance(thing, type):
        return objects.create(core, own_code.known_name(thing), args, keywords)
    return own_code.known_function(thing)(*args, **keywords)


def _session_of(name: str, instead: str, values: Iterable[object]) -> Session:
    """The session of the first value that belongs to one, or the one that is open.

    Raises:
        ConfigError: No value does, and none is open, or several are.
    """
    opened = open_sessions()
    for value in values:
        reference = value.ref if isinstance(value, Distributed) else value
        if isinstance(reference, DRef):
            core = core_of(reference)  # of one inside a capture, what records it
            recording = (each for each in opened if core in core_of(each).recorders.values())
            return next(recording, reference.session)
    if len(opened) == 1:
        return opened[0]
    if opened:
        msg = (
            f"{many(len(opened), 'session')} are open, and no argument of {name}.remote belongs to"
            f" one; call {instead}"
        )
    else:
        msg = (
            f"{name}.remote needs an open session, as of disco_client.connect(...);"
            f" {name}(...) is a call in this process"
        )
    raise ConfigError(msg)
