"""Sessions in processes that are forked from their own.

A forked child has a copy of every session object, but neither its threads nor a
right to its workers: what it sent would tear the parent's stream, and its exit
would end the parent's workers.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from disco_client.errors import SessionClosed

__all__ = ["Disowned", "disown_in_children", "not_here"]


class Disowned(Protocol):
    """What a forked child must not use."""

    def disown(self) -> None:
        """Lets go of everything that is the parent's; called in the child, right after fork."""
        ...


_owned: weakref.WeakSet[Disowned] = weakref.WeakSet()


def disown_in_children(owned: Disowned) -> None:
    """Has every process that is forked from this one let go of an object."""
    _owned.add(owned)


def not_here(name: str) -> SessionClosed:
    """What the calls of a session raise in a child."""
    return SessionClosed(
        f"session {name!r} belongs to the process that forked this one; open another one here"
    )


def _disown_all() -> None:
    for owned in list(_owned):
        owned.disown()
    _owned.clear()


os.register_at_fork(after_in_child=_disown_all)
