"""What this program registers itself, in words: for errors of workers that lack it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from disco_client.reentry import import_uninterrupted

if TYPE_CHECKING:
    from disco_client.errors import RemoteFailure

__all__ = ["described", "is_worker", "name_source"]


def name_source(failure: RemoteFailure) -> RemoteFailure:
    """Says of a name that a worker lacks, and this program registers, how to bring it there."""
    if os.sep in failure.missing:
        return _name_package(failure)
    server = _server()
    home = server.registered_by(failure.missing) if server and failure.missing else None
    if home is None:
        return failure
    module, file = home
    if file:
        call = f"session.load_source({'__file__' if module == '__main__' else repr(file)})"
        where = f"in {file!r}; call {call} first"
    else:
        where = "in no file; put it into one, and call session.load_source(path) first"
    message = f"{failure.missing!r} is registered by this program, and not on this worker: {where}"
    return replace(failure, message=message)


def _name_package(failure: RemoteFailure) -> RemoteFailure:
    """Says how to bring a module that a brought file imports and that is beside that file."""
    found = import_uninterrupted("disco_client.package_files").beside(failure.missing)
    if not found:
        return failure
    name = failure.missing.rpartition(os.sep)[2]
    hint = f"module {name!r} is beside that file: session.include({found}) brings it"
    return replace(failure, message=f"{failure.message}; {hint}")


def described(thing: object) -> str:
    """What was given instead of a name, with the names under which this program registers it."""
    server = _server()
    names: list[str] = server.names_of(thing) if server else []
    known = f", which is registered as {' and '.join(map(repr, names))}" if names else ""
    return f"{thing!r} of type {type(thing).__name__}{known}"


def is_worker() -> bool:
    """Whether the caller's thread is a worker's, which executes functions of sessions."""
    worker: Any = sys.modules.get("disco_server.rank.worker")
    return worker is not None and worker.is_worker_thread()


def _server() -> Any:
    """The registry of this process; None where the program has not imported it."""
    return sys.modules.get("disco_server.rank.functions")
