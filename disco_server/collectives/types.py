"""What everything about collectives shares: the reductions, what may go wrong, and the channels."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy.typing as npt

from disco_client.errors import ConfigError
from disco_client.text import name_workers

__all__ = [
    "AbortedError",
    "Array",
    "CollectiveError",
    "CommunicatorLost",
    "LeftOutError",
    "MismatchError",
    "ReduceOp",
    "Tag",
    "UnavailableError",
    "wide_channels",
]


Array = npt.NDArray[Any]


class ReduceOp(IntEnum):
    """How elements of several ranks become one; the numbers are sent in headers."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4

    @classmethod
    def from_name(cls, name: str) -> ReduceOp:
        """Finds an operation by the name users write.

        Args:
            name: One of "sum", "prod", "min", "max" and "avg".

        Raises:
            ConfigError: There is no operation of that name.
        """
        found = _BY_NAME.get(name)
        if found is None:
            choices = ", ".join(repr(each) for each in _BY_NAME)
            raise ConfigError(f"no reduction is called {name!r}; the choices are {choices}")
        return found


_BY_NAME = {op.name.lower(): op for op in ReduceOp}


class CollectiveError(Exception):
    """The base of what a communicator raises."""


class MismatchError(CollectiveError):
    """Ranks brought different or wrong things to one collective.

    Every rank of the collective raises it with the same text, and none of them
    has touched its destination.

    Attributes:
        ranks: The worker ids of the odd ones, in order.
    """

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class AbortedError(CollectiveError):
    """A collective cannot happen because other ranks failed before they entered it.

    Attributes:
        ranks: The worker ids of those that failed, in order.
        seq: The command in which this rank waited for them.
        op: The name of the collective it waited in.
    """

    def __init__(self, ranks: Iterable[int], seq: int, op: str) -> None:
        self.ranks = tuple(ranks)
        self.seq = seq
        self.op = op
        super().__init__(self._text())

    def _text(self) -> str:
        who = name_workers(self.ranks)
        return f"{self.op} of command #{self.seq} cannot happen: {who} failed before entering it"


class LeftOutError(AbortedError):
    """A collective cannot happen because the call is one of chosen workers, without these ranks."""

    def _text(self) -> str:
        return (
            f"{self.op} of command #{self.seq} needs {name_workers(self.ranks)} too, where this"
            " call was not made: call the function on every worker, or use a group or a team that"
            " only has workers of the call"
        )


class UnavailableError(CollectiveError):
    """A collective library is missing or did not start; the message says what to do."""


class CommunicatorLost(CollectiveError):
    """A communicator failed or was aborted; the message says in which collective, and why."""


class Tag(IntEnum):
    """The kinds of channels."""

    WORLD = 0
    GROUP = 1
    PAIR = 2
    TEAM = 3


def wide_channels(num_workers: int, num_groups: int) -> list[tuple[Tag, tuple[int, ...]]]:
    """The channels of all workers and of each group, where more than one rank is in them."""
    size = num_workers // num_groups
    found = [(Tag.WORLD, tuple(range(num_workers)))]
    if num_groups > 1:
        firsts = range(0, num_workers, size)
        found += [(Tag.GROUP, tuple(range(first, first + size))) for first in firsts]
    return [(tag, members) for tag, members in found if len(members) > 1]
