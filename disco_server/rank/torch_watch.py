"""What becomes of a rank in a collective of torch that another rank does not enter.

Torch does not compare calls before data moves, so such a rank waits for as long as torch's time
limit is, half an hour by default, in code that no interrupt reaches. A rank whose command fails
notes that in torch's store. One that has been in torch in the same command for some seconds looks
there, and ends as where any collective library is lost: torch has no way to end the wait alone.
So does one whose command has taken longer than its limit.
"""

from __future__ import annotations

import dis
import json
import re
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from disco_client.clock import monotonic
from disco_server.collectives.types import AbortedError

if TYPE_CHECKING:
    from disco_server.rank.signals import CallGuard

__all__ = ["TorchWatch", "calls_wait"]

_WHAT: Final = "a collective of torch"
_NONE: Final = -1
_LOOK_S = 0.5
_STUCK_S = 2.0
"""For how long a rank is in torch before it looks whether others have left."""

_LAST_S = 1.5
"""How much longer rank 0 is, whose process has the store that the others look into."""

_CAUSE_S = 3.0
"""How long a failure of torch is kept back for its cause: who watches a process that was killed
learns of its end later than its peers, whose connections to it break."""

_PAUSE_S = 0.25
_CALLS: Final = ("CALL", "PRECALL")
_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD")
_BROKEN = re.compile(r"gloo|nccl|connection (closed|reset) by peer", re.IGNORECASE)


class TorchWatch:
    """Watches one rank that has a process group of torch.

    Args:
        worker: The rank; the thread that makes this is the one that runs its calls.
        guard: Says which command it executes.
        store: A client of torch's store that nothing else uses.
        end: Ends the rank, with a text that follows its name and says why.

    Raises:
        RuntimeError: The system starts no thread.
    """

    def __init__(
        self, worker: int, guard: CallGuard, store: Any, end: Callable[[str], object]
    ) -> None:
        self._me, self._guard, self._store, self._end = worker, guard, store, end
        self._watched = threading.get_ident()
        self._clock = threading.Event()
        self._broken = False
        # The command whose limit has passed, that limit, and when it was noticed.
        self._overdue = _NONE, 0.0, 0.0
        threading.Thread(target=self._watch, name="disco-torch", daemon=True).start()

    def leave(self, seq: int, why: str) -> None:
        """Tells the other ranks that a command has failed on this one.

        Args:
            seq: The command.
            why: What it raised, and where.
        """
        said = json.dumps([self._me, why])
        self._ask(lambda: self._store.set(_key(seq), said))

    def limit_passed(self, seq: int, seconds: float) -> None:
        """Notes that a command takes longer than its limit; for any thread.

        Args:
            seq: The command.
            seconds: The limit.
        """
        if self._overdue[0] != seq:
            self._overdue = seq, seconds, monotonic()

    def explain(self, seq: int, error: BaseException) -> BaseException:
        """Finds the cause of a command's failure, where that is one of torch.

        Where a rank was killed this one is ended while it waits.

        Args:
            seq: The command.
            error: What was raised.

        Returns:
            What is to be reported: the same, or that another rank failed before.
        """
        if not isinstance(error, RuntimeError) or not _BROKEN.search(str(error)):
            return error
        until = monotonic() + _CAUSE_S
        while monotonic() < until:
            self._clock.wait(_PAUSE_S)
            left = self._who_left(seq)
            if left is not None:
                caused = AbortedError((left[0],), seq, _WHAT)
                return caused.with_traceback(error.__traceback__)
        return error

    def _watch(self) -> None:
        stuck_s = _STUCK_S if self._me else _STUCK_S + _LAST_S
        seen, since = _NONE, 0.0
        while not self._clock.wait(_LOOK_S):
            line = self._waits_at() if self._guard.calling else ""
            seq, now = self._guard.position if line else _NONE, monotonic()
            if seq != seen:
                seen, since = seq, now
            elif seq != _NONE and now - since >= stuck_s:
                why = self._why_over(seq, stuck_s, line)
                if why:
                    self._end(f"was ended because it waited in torch {why}")

    def _why_over(self, seq: int, stuck_s: float, line: str) -> str:
        """Why a wait in torch has to end; "" where it goes on."""
        left = self._who_left(seq)
        if left is not None:
            return f"for worker {left[0]}, on which command #{seq} failed: {left[1]}"
        late, limit_s, noticed = self._overdue
        if late != seq or monotonic() - noticed < stuck_s:
            return ""
        return f"when command #{seq} had taken longer than its limit of {limit_s:g} s ({line})"

    def _waits_at(self) -> str:
        """The line that has called a function of torch that may wait for other ranks; else ""."""
        frame: FrameType | None = sys._current_frames().get(self._watched)  # noqa: SLF001  (public)
        # Of `dist.all_reduce(x, async_op=True).wait()` no frame is torch's.
        waits = frame is not None and calls_wait(frame.f_code, frame.f_lasti)
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if not module.startswith("torch."):
                break
            waits = waits or module.startswith(("torch.distributed", "torch.autograd"))
            frame = frame.f_back
        if frame is None or not waits:
            return ""
        code = frame.f_code
        return f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'

    def _who_left(self, seq: int) -> tuple[int, str] | None:
        """Another rank that said that this command has failed there, and why; None for none."""
        key = _key(seq)
        told: Any = self._ask(lambda: self._store.check([key]) and self._store.get(key))
        who, why = json.loads(told) if told else (self._me, "")
        return None if who == self._me else (who, why)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Asks the store; nothing any more where it is gone, because rank 0 has ended."""
        if self._broken:
            return None
        try:
            return question()
        except RuntimeError:
            self._broken = True
            return None


def calls_wait(code: CodeType, at: int) -> bool:
    """Whether an instruction of the top frame of a thread is the call of a method named ``wait``.

    The method is then not written in Python, else it would have the top frame. That of torch's
    work is such a one; of the standard library only `os.wait` looks the same.

    Args:
        code: The frame's.
        at: The offset of the instruction.
    """
    if "wait" not in code.co_names:
        return False
    before = [each for each in dis.get_instructions(code) if each.offset <= at]
    if not before or not before[-1].opname.startswith(_CALLS):
        return False
    begins = _begins(before[-1])
    loaded = [each for each in before if each.opname in _LOADS and _begins(each) == begins]
    return begins is not None and bool(loaded) and loaded[-1].argval == "wait"


def _begins(instruction: dis.Instruction) -> tuple[int, int] | None:
    """The line and the column where the expression of an instruction begins."""
    at = instruction.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None
    return at.lineno, at.col_offset


def _key(seq: int) -> str:
    return f"disco/failed/{seq}"
