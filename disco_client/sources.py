"""Which file of this program brings the workers a function that they lack."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disco_client.errors import RemoteFailure

__all__ = ["name_source"]


def name_source(failure: RemoteFailure) -> RemoteFailure:
    """Says of a name that a worker lacks, and this program registers, how to bring it there."""
    # Where the program has not imported the server, it registers nothing.
    server: Any = sys.modules.get("disco_server.rank.functions")
    if server is None or not failure.missing:
        return failure
    home = server.registered_by(failure.missing)
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
