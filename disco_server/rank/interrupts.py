"""What the program has interrupted, as one rank has met it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from disco_client.errors import RemoteFailure
from disco_client.wire.codec import FailureKind
from disco_server.rank.registers import Poison, RegisterFile, is_any_array

__all__ = ["Interruption", "is_changeable"]

_WITHIN = "this command was interrupted (interrupt, cancel or Ctrl-C)"
_BEFORE = "this command was interrupted before it began (interrupt, cancel or Ctrl-C)"
_STALE = (
    "an interrupted command had this among its arguments, and may have changed it; on the workers"
    " that took the place of those before, nobody knows how. Make it again"
)
_KEPT = 1 << 16
"""How many are remembered; as many as commands may be under way."""


class Interruption:
    """Which commands a rank has left out or ended; for its one thread.

    Args:
        worker: The rank.
        node: Its node.
    """

    def __init__(self, worker: int, node: str) -> None:
        self._worker, self._node = worker, node
        # Runs of commands, each from its first to its last one, and those that had begun.
        self._left: list[list[int]] = []
        self._begun: list[int] = []

    def note(self, seq: int, *, begun: bool) -> None:
        """Notes that a command was left out, or had begun and was ended."""
        left = self._left
        if begun:
            self._begun.append(seq)
            del self._begun[:-_KEPT]
        if left and left[-1][1] == seq - 1:
            left[-1][1] = seq
            return
        left.append([seq, seq])
        del left[:-_KEPT]

    def poison(self, seq: int, function: str, *, begun: bool) -> Poison:
        """Makes what stands for the result of such a command."""
        message = _WITHIN if begun else _BEFORE
        failure = RemoteFailure(self._worker, seq, message, node=self._node, function=function)
        return Poison(failure, FailureKind.INTERRUPTED)

    def stale(self, seq: int) -> Poison:
        """Makes what stands for an argument that such a command may have changed."""
        failure = RemoteFailure(self._worker, seq, _STALE, node=self._node)
        return Poison(failure, FailureKind.STALE, lost=True)

    def tell(self, after: int, until: int, registers: RegisterFile) -> Mapping[str, Any]:
        """Describes what was left out or ended of some commands.

        Args:
            after: The command before the first of them.
            until: The last of them.
            registers: Where their results are missing.

        Returns:
            ``left``: the first and the last one of each run of commands that this rank has left
            out or ended; ``begun``: those of them that had begun; ``registers``: pairs of a
            register and the command whose result it stands for.
        """
        runs = self._left[bisect_right(self._left, after, key=lambda run: run[1]) :]
        left = [(max(first, after + 1), min(last, until)) for first, last in runs if first <= until]
        begun = self._begun[bisect_right(self._begun, after) : bisect_right(self._begun, until)]
        missing = [
            (register, held.failure.seq)
            for register, held in registers.poison()
            if held.kind is FailureKind.INTERRUPTED and after < held.failure.seq <= until
        ]
        return {name: _flat(rows) for name, rows in (("left", left), ("registers", missing))} | {
            "begun": np.asarray(begun, np.int64)
        }

    def spoil(self, registers: RegisterFile, pairs: Iterable[tuple[int, int]]) -> None:
        """Lets registers stand for commands that other ranks have left out.

        A collective that was aborted for that has failed for no other reason.

        Args:
            registers: The rank's.
            pairs: A register, and the command.
        """
        for register, seq in pairs:
            held, poison = registers.peek(register), self.poison(seq, "", begun=False)
            if type(held) is Poison and held.kind is FailureKind.ABORTED:
                registers.write(register, replace(held, failure=poison.failure, kind=poison.kind))
            else:
                registers.spoil(register, poison)


def _flat(rows: list[tuple[int, int]]) -> Any:
    """Pairs of numbers, one behind the other."""
    return np.asarray(rows, np.int64).reshape(-1)


_UNCHANGING = frozenset((type(None), bool, int, float, complex, str, bytes, tuple))


def is_changeable(value: object) -> bool:
    """Whether a function may have changed a value that it was called with."""
    return is_any_array(value) or not (type(value) in _UNCHANGING or callable(value))
