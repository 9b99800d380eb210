"""When a session is warned and ended because of its length, or because its client does nothing.

A client does something when it sends commands, or waits for an answer. While a command runs,
nobody is idle: before a client is warned, the nodes are asked when the last command ended. That
costs nothing while commands are relayed.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from disco_server.core.session_state import Activity, EndReason, SessionState

if TYPE_CHECKING:
    from disco_server.core.quotas import Quota
    from disco_server.core.session_state import SessionTable

__all__ = ["LimitStep", "limit_of", "next_step", "note_quiet"]


class LimitStep(enum.Enum):
    """What is to be done about a session's limits."""

    ASK = "ask the nodes when the last command ended"
    TELL = "tell the client when a limit ends the session, or that none will soon"
    END = "end the session"


def limit_of(quota: Quota, reason: EndReason) -> float:
    """The limit that a reason to end a session speaks of, in seconds."""
    return quota.session_limit_s if reason is EndReason.EXPIRED else quota.idle_limit_s


def next_step(
    session: SessionTable, quota: Quota, warning_s: float, now: float
) -> LimitStep | None:
    """What to do now about the limits of a session that has slots.

    Args:
        session: The session; what is told of it is noted there.
        quota: What its owner may have.
        warning_s: How long before its end its client is warned.
        now: The time.
    """
    known = session.activity
    if known.began is None:
        known.began = now - known.before_s
    if known.acted:
        known.acted, known.active_at, known.quiet = False, now, False
    length = known.began + quota.session_limit_s if quota.session_limit_s else math.inf
    if now >= length:
        known.ends_by = EndReason.EXPIRED
        return LimitStep.END
    idle = math.inf
    if quota.idle_limit_s and session.state is SessionState.RUNNING:
        idle = known.active_at + quota.idle_limit_s
        if idle - now > _notice(quota.idle_limit_s, warning_s):
            idle = math.inf
        elif not known.quiet:
            if not known.asked:
                known.asked = True
                return LimitStep.ASK
            idle = math.inf
    if now >= idle:
        known.ends_by = EndReason.IDLE
        return LimitStep.END
    if length - now > _notice(quota.session_limit_s, warning_s):
        length = math.inf
    return _tell(known, length, idle)


def _notice(limit_s: float, warning_s: float) -> float:
    return min(warning_s, limit_s / 2)


def _tell(known: Activity, length: float, idle: float) -> LimitStep | None:
    """Notes which of two ends is the nearer one; something where that is news."""
    at = min(length, idle)
    by = None if at == math.inf else EndReason.IDLE if idle < length else EndReason.EXPIRED
    if by is known.ends_by and (by is None or at == known.ends_at):
        return None
    known.ends_at, known.ends_by = at, by
    return LimitStep.TELL


def note_quiet(
    session: SessionTable, quota: Quota, warning_s: float, now: float, seconds: float | None
) -> None:
    """Notes what the nodes of a session have said.

    Args:
        session: The session.
        quota: What its owner may have.
        warning_s: How long before its end its client is warned.
        now: The time.
        seconds: For how long no rank has run a command; None where a node did not say.
    """
    known = session.activity
    known.asked = False
    if seconds is None:
        return
    known.active_at = max(known.active_at, now - seconds)
    left = known.active_at + quota.idle_limit_s - now
    # Between two commands of many that wait none runs either, but not for long.
    known.quiet = left <= _notice(quota.idle_limit_s, warning_s)
