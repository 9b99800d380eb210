"""Why workers were lost repeatedly: by chance, or by the same command."""

from __future__ import annotations

from dataclasses import dataclass

from disco_client.errors import PoisonCommand, SessionError, SessionLost, WorkerLost
from disco_client.recovery.base import MAX_CRASHES, Incarnation

__all__ = ["CrashLoopDetector"]


@dataclass(frozen=True, slots=True)
class _Crash:
    """One loss.

    Attributes:
        seq: The command at which it happened, or after which if that is not known.
        exact: Whether that is known.
        what: What the command does, or nothing.
        error: The error of the loss.
    """

    seq: int
    exact: bool
    what: str
    error: SessionLost


class CrashLoopDetector:
    """The losses of a session since it last made progress."""

    def __init__(self) -> None:
        self._row: list[_Crash] = []

    def judge(self, incarnation: Incarnation, error: SessionLost) -> PoisonCommand | None:
        """Notes a loss; returns the error if it is time to give up."""
        death = _examine(incarnation, error)
        if death is None or (self._row and not _same(self._row[-1], death)):
            self._row.clear()
        if death is None:
            return None
        self._row.append(death)
        if len(self._row) < MAX_CRASHES:
            return None
        what = f" ({death.what})" if death.what else ""
        where = "at" if death.exact else "soon after"
        lines = [str(each.error).partition("\n")[0] for each in self._row]
        told = "\n".join(f"  {number}. {line}" for number, line in enumerate(lines, 1))
        return PoisonCommand(
            f"given up, because workers were lost {where} command #{death.seq}{what}"
            f" {MAX_CRASHES} times in a row:\n{told}\n{_output(error)}".rstrip(),
            seq=death.seq,
            function=death.what,
            deaths=[each.error for each in self._row],
        )


def _same(one: _Crash, other: _Crash) -> bool:
    if one.exact and other.exact:
        return one.seq == other.seq
    return other.seq <= one.seq


def _examine(incarnation: Incarnation, error: SessionLost) -> _Crash | None:
    """Finds out at which command workers were lost; None where they had nothing to do."""
    if isinstance(error, WorkerLost):
        try:
            ranks = incarnation.transport.inspect(stacks=False, flights=False).ranks
        except SessionError:
            ranks = ()
        for rank in ranks:
            if rank.worker != error.worker:
                continue
            if rank.current is None:
                return None
            return _Crash(rank.current.seq, exact=True, what=rank.current.what, error=error)
    if incarnation.number == 0 or incarnation.complete:
        return None
    return _Crash(incarnation.acked, exact=False, what="", error=error)


def _output(error: SessionLost) -> str:
    lines = error.output if isinstance(error, WorkerLost) else ()
    return "\n".join(("its last output:", *(f"  {line}" for line in lines))) if lines else ""
