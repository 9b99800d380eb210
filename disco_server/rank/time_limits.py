"""Limits of how long commands may take, as one rank keeps them."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from disco_client.clock import monotonic
from disco_server.observe.flight import SLOT_MASK
from disco_server.rank.signals import AGAIN_S, CallGuard

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


__all__ = ["CommandLimits", "GonePast", "TimeLimitPassed"]

_IDLE_S = 1.0
"""How long the thread that watches waits for another command with a limit."""

_LOOKS = 4
"""How often, or oftener, the thread that watches all commands looks in the time of their limit."""

_LEAST_S, _MOST_S = 0.01, 1.0
"""How long that thread waits between two looks."""

_BEHIND_S = 2 * _MOST_S
"""How much later than the limit of commands a rank tells what it has gone past."""

_OPERATORS = ", which the cluster sets (--command-limit)"

_NONE = -1
"""No command."""

_RAISING = CallGuard.__module__


class TimeLimitPassed(Exception):
    """A command has taken longer than its limit."""


class CommandLimits:
    """Ends the command that a rank executes when its limit has passed.

    A thread watches, which is there while commands have limits of the program's. Where the
    operator of the cluster limits all commands, another one looks now and then at which command
    is executed, so that commands themselves do nothing for it. They cancel the command, as the
    program could, and the rank reports that as a failure.

    Args:
        guard: The rank's.
        longest_s: How long any command may take, in seconds; 0 for any time.
        on_passed: Called in another thread with a command whose limit has passed, and the limit
            in seconds; again and again while it has not ended.

    Raises:
        RuntimeError: The system starts no thread that would watch all commands.
    """

    def __init__(
        self,
        guard: CallGuard,
        longest_s: float = 0.0,
        on_passed: Callable[[int, float], object] | None = None,
    ) -> None:
        self._guard = guard
        self._on_passed = on_passed
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # When a command is to end, its number, and its limit.
        self._due: tuple[float, int, float] | None = None
        self._wakes_at = 0.0
        # The command that was ended last, its limit, and what is said of that.
        self._passed = _NONE, 0.0, ""
        if longest_s > 0:
            watch, name = self._watch_all, "disco-limits"
            threading.Thread(target=watch, args=(longest_s,), name=name, daemon=True).start()

    def begin(self, seq: int, seconds: float) -> None:
        """Limits the command that is executed now.

        Args:
            seq: The command.
            seconds: Its limit.

        Raises:
            RuntimeError: The system starts no thread that would watch.
        """
        due = monotonic() + seconds
        with self._changed:
            self._due = due, seq, seconds
            if self._thread is None:
                name = "disco-limits"
                thread = threading.Thread(target=self._watch, name=name, daemon=True)
                thread.start()
                self._thread = thread
            elif due < self._wakes_at:
                self._changed.notify()

    def end(self) -> None:
        """Lets the command take as long as it takes, as it is over."""
        self._due = None

    def passed(self, seq: int, ended: BaseException) -> TimeLimitPassed | None:
        """What is reported of a command if its limit has passed.

        Args:
            seq: The command.
            ended: What was raised in it, which says where it was.
        """
        last, seconds, whose = self._passed
        if last != seq:
            return None
        error = TimeLimitPassed(f"the command took longer than its limit of {seconds:g} s{whose}")
        return error.with_traceback(_before_signals(ended.__traceback__))

    def _watch(self) -> None:
        idle_since = monotonic()
        with self._changed:
            while True:
                now, due = monotonic(), self._due
                if due is not None:
                    idle_since = now
                    left = due[0] - now
                    if left <= 0:
                        self._end(*due[1:])
                        left = AGAIN_S
                elif now - idle_since >= _IDLE_S:
                    self._thread = None
                    return
                else:
                    left = math.inf
                self._wakes_at = now + left
                self._changed.wait(min(left, _IDLE_S))

    def _watch_all(self, longest_s: float) -> None:
        guard, clock = self._guard, threading.Event()
        pause = min(max(longest_s / _LOOKS, _LEAST_S), _MOST_S)
        seen, due = _NONE, math.inf
        while True:
            now = monotonic()
            # While the rank waits for an array of the program's, it does not call.
            executed = guard.position if guard.calling else _NONE
            if executed != seen:
                seen, due = executed, math.inf if executed == _NONE else now + longest_s
            elif now >= due:
                self._end(seen, longest_s, _OPERATORS)
                due = now + AGAIN_S
            clock.wait(min(pause, max(due - now, _LEAST_S)))

    def _end(self, seq: int, seconds: float, whose: str = "") -> None:
        if self._passed[0] != seq:  # otherwise another limit has passed before
            self._passed = seq, seconds, whose
        self._guard.cancelled[seq & SLOT_MASK] = seq
        self._guard.wake()
        if self._on_passed is not None:
            self._on_passed(seq, seconds)


class GonePast:
    """Tells the peers which commands this rank has executed, where commands have a limit.

    A peer that has entered a collective cannot take that back: if its limit passes, it waits until
    it knows that this rank never comes. That costs each channel a round, so it is told when the
    limit of the peer should have passed, and not after each command.

    Args:
        tell: Says that this rank is done with a command, and all before it.
        longest_s: How long any command may take, in seconds.
    """

    def __init__(self, tell: Callable[[int], object], longest_s: float) -> None:
        self._tell = tell
        self._after_s = longest_s + _BEHIND_S
        self._seq = 0
        self._due = self._latest = math.inf

    def look(self, seq: int) -> float:
        """Tells it if it is time; to be called between commands.

        Args:
            seq: The last command that was executed.

        Returns:
            In how many seconds to call it again, if no command comes before.
        """
        now = monotonic()
        if seq != self._seq:
            self._seq, self._due = seq, now + self._after_s
            # A rank that is given something to do again and again tells it too.
            self._latest = min(self._latest, now + 2 * self._after_s)
        left = min(self._due, self._latest) - now
        if left > 0:
            return left
        self._due = self._latest = math.inf
        self._tell(seq)
        return 0.0


def _before_signals(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames at its end that have raised what ends a command."""
    last = each = trace
    while each is not None:
        if each.tb_frame.f_globals.get("__name__") != _RAISING:
            last = each
        each = each.tb_next
    if last is not None:
        last.tb_next = None
    return trace
