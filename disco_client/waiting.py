"""Waits that take long say so by themselves, once each."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping

from disco_client.errors import ConfigError

__all__ = ["AUTO", "LongWaits", "read_hang_report"]

AUTO = -1.0
"""Stands for what ``DISCO_HANG_REPORT_S`` says, or else 30 seconds."""

_VARIABLE = "DISCO_HANG_REPORT_S"
_DEFAULT_S = 30.0


def read_hang_report(value: object, environ: Mapping[str, str] = os.environ) -> float:
    """After how many seconds a wait says what it waits for; infinite for never.

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


class LongWaits:
    """Says what a session waits for, on standard error.

    Args:
        after: Seconds that a wait may take before.
        describe: Finds out what the session does.
    """

    def __init__(self, after: float = math.inf, describe: Callable[[], object] = str) -> None:
        self._after = after
        self._describe = describe

    def look(self, since: float | None) -> float:
        """Called each second by whoever waits.

        Args:
            since: What it returned the last time; None the first time.

        Returns:
            What to give the next time.
        """
        now = time.monotonic()
        if since is None:
            since = now - 1.0
        if now - since < self._after:
            return since
        try:
            text = str(self._describe())
        except Exception as error:  # noqa: BLE001  (the wait must go on, whatever this is)
            text = f"what the ranks do cannot be found out: {error}"
        print(  # noqa: T201  (for the person who waits)
            f"disco: this call has waited for {now - since:.0f} s, and goes on waiting\n{text}",
            file=sys.stderr,
            flush=True,
        )
        return math.inf
