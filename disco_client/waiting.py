"""How long a call waits, and what is said of one that waits for long."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from disco_client.clock import LONGEST_S, monotonic
from disco_client.errors import ConfigError, DiscoTimeout
from disco_client.output import say

__all__ = ["AUTO", "LOOK_S", "Deadline", "LongWaits", "Wait", "read_hang_report"]


LOOK_S = 1.0
"""How often a wait makes sure that its session goes on."""


class Deadline:
    """When a wait ends without an answer.

    Args:
        seconds: How long it may take.
    """

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds
        self._end = monotonic() + seconds

    @classmethod
    def of(cls, timeout: float | None) -> Deadline | None:
        """That of a call with a ``timeout``; None for one that waits as long as it takes.

        Raises:
            ConfigError: It is no number of seconds.
        """
        if timeout is None:
            return None
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            msg = f"expected a timeout of 0 or more seconds, or None for no limit, got {timeout!r}"
            raise ConfigError(msg)
        return cls(timeout)

    def left(self) -> float:
        """How many seconds to wait now, before the session is looked at."""
        return min(self.remaining(), LOOK_S)

    def remaining(self) -> float:
        """How many seconds are left; a day, where it is more."""
        return min(max(self._end - monotonic(), 0.0), LONGEST_S)

    def check(self) -> None:
        """Ends the wait if it is over.

        Raises:
            DiscoTimeout: It is.
        """
        if monotonic() >= self._end:
            raise self.error()

    def error(self) -> DiscoTimeout:
        """What a wait raises that is over."""
        return DiscoTimeout(
            f"no answer within timeout={self.seconds:g} s; the session goes on, so the call may be"
            " repeated (session.diagnose() says what the workers do)"
        )


# Long waits are reported automatically.


AUTO = -1.0
"""Stands for what ``DISCO_HANG_REPORT_S`` says, or else 30 seconds."""

_VARIABLE = "DISCO_HANG_REPORT_S"
_DEFAULT_S = 30.0


def read_hang_report(value: object, environ: Mapping[str, str] = os.environ) -> float:
    """After how many seconds a wait reports what it waits for; infinite for never.

    Args:
        value: Seconds; 0 or None for never; `AUTO` for what the environment says.
        environ: The environment.

    Raises:
        ConfigError: It is no such number.
    """
    where = "hang_report"
    if value == AUTO:
        where, value = _VARIABLE, environ.get(_VARIABLE) or _DEFAULT_S
    if value is None:
        return math.inf
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        msg = f"{where}: expected a number of seconds, 0 or None for never, got {value!r}"
        raise ConfigError(msg)
    return seconds or math.inf


class Wait(NamedTuple):
    """The state of a wait.

    Attributes:
        began: When it began.
        quiet: Until when nothing is reported.
        told: The verdict that was reported last, without its numbers; None if there was none.
    """

    began: float
    quiet: float
    told: str | None = None


class LongWaits:
    """Reports what a session waits for, on standard error.

    A wait that was reported is looked at from time to time, and reported again if it is for
    something else. For a session that makes progress that is reported once.

    Args:
        after: Seconds that a wait may take before it is reported; also between two looks.
        describe: Finds out what the session does: as a text, the verdict in it, and
            whether it makes progress.

    Attributes:
        on_interrupt: Called with what Ctrl-C raised, by a thread whose wait it has ended.
    """

    def __init__(
        self,
        after: float = math.inf,
        describe: Callable[[], tuple[str, str, bool]] = lambda: ("", "", False),
    ) -> None:
        self._after = after
        self._describe = describe
        self.on_interrupt: Callable[[KeyboardInterrupt], object] = lambda _error: None

    def look(self, wait: Wait | None) -> Wait:
        """Called each second by the waiting thread.

        Args:
            wait: What it returned the last time; None the first time.

        Returns:
            What to give the next time.
        """
        now = monotonic()
        if wait is None:
            wait = Wait(now - 1.0, now - 1.0 + self._after)
        if now < wait.quiet:
            return wait
        try:
            text, verdict, goes_on = self._describe()
        except Exception as error:  # noqa: BLE001  (the wait must continue after any error)
            text = verdict = f"what the ranks do cannot be found out: {error}"
            goes_on = False
        # Durations and commands' numbers change while the wait is for the same.
        verdict = _NUMBER.sub("", verdict)
        if wait.told is None or not (goes_on or verdict == wait.told):
            waited = (
                f"disco: this call has waited for {now - wait.began:.0f} s, and goes on waiting"
            )
            say(f"{waited}\n{text}")
            wait = wait._replace(told=verdict)
        return wait._replace(quiet=now + self._after)


_NUMBER = re.compile(r"[\d.]+( ms| s| min)?")
