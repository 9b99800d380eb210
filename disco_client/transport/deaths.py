"""Why workers were lost, one time after another: by chance, or by the same command."""

from __future__ import annotations

from dataclasses import dataclass

from disco_client.errors import PoisonCommand, SessionError, SessionLost, WorkerLost
from disco_client.transport.life import Life

__all__ = ["MOST", "Deaths"]

MOST = 3
"""How often the same command may end workers before it is given up."""


@dataclass(frozen=True, slots=True)
class _Death:
    """One loss.

    Attributes:
        seq: The command at which it happened, or after which where that is not known.
        exact: Whether that is known.
        what: What the command does, or nothing.
        error: The error of the loss.
    """

    seq: int
    exact: bool
    what: str
    error: SessionLost


class Deaths:
    """The losses of a session since it was last further than before."""

    def __init__(self) -> None:
        self._row: list[_Death] = []

    def judge(self, life: Life, error: SessionLost) -> PoisonCommand | None:
        """Notes a loss; says whether it is time to give up, and why."""
        death = _examine(life, error)
        if death is None or (self._row and not _same(self._row[-1], death)):
            self._row.clear()
        if death is None:
            return None
        self._row.append(death)
        if len(self._row) < MOST:
            return None
        what = f" ({death.what})" if death.what else ""
        where = "at" if death.exact else "soon after"
        lines = [str(each.error).partition("\n")[0] for each in self._row]
        told = "\n".join(f"  {number}. {line}" for number, line in enumerate(lines, 1))
        return PoisonCommand(
            f"given up, because workers were lost {where} command #{death.seq}{what}"
            f" {MOST} times in a row:\n{told}\n{_output(error)}".rstrip(),
            seq=death.seq,
            function=death.what,
            deaths=[each.error for each in self._row],
        )


def _same(one: _Death, other: _Death) -> bool:
    if one.exact and other.exact:
        return one.seq == other.seq
    return other.seq <= one.seq


def _examine(life: Life, error: SessionLost) -> _Death | None:
    """Finds out at which command workers were lost; None where they had nothing to do."""
    if isinstance(error, WorkerLost):
        try:
            ranks = life.transport.inspect(stacks=False, flights=False).ranks
        except SessionError:
            ranks = ()
        for rank in ranks:
            if rank.worker != error.worker:
                continue
            if rank.current is None:
                return None
            return _Death(rank.current.seq, exact=True, what=rank.current.what, error=error)
    if life.number == 0 or life.complete:
        return None
    return _Death(life.acked, exact=False, what="", error=error)


def _output(error: SessionLost) -> str:
    lines = error.output if isinstance(error, WorkerLost) else ()
    return "\n".join(("its last output:", *(f"  {line}" for line in lines))) if lines else ""
