"""How many sessions a controller takes, of all and of one client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from disco_server.core.session_state import SessionTable

__all__ = ["DEFAULT_LIMITS", "SessionLimits"]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How many sessions there may be, those that wait for slots included.

    Attributes:
        total: Of all clients.
        per_client: Of one: what one token or certificate made, or, where nobody is asked
            who he is, one process as it names itself.
    """

    total: int = 1024
    per_client: int = 256

    def refusal(self, asked: SessionTable, sessions: Collection[SessionTable]) -> str:
        """Why a session is one too many; empty where it is not.

        Args:
            asked: The session.
            sessions: Those that are not gone, `asked` among them.
        """
        if len(sessions) > self.total:
            return (
                f"the controller has {self.total} sessions, as many as it takes; end one, "
                "or start it with a greater --max-sessions"
            )
        if sum(_client(session) == _client(asked) for session in sessions) > self.per_client:
            return (
                f"{asked.owner} has {self.per_client} sessions, as many as one client may have;"
                " end one, or start the controller with a greater --max-client-sessions"
            )
        return ""


DEFAULT_LIMITS: Final = SessionLimits()


def _client(session: SessionTable) -> str:
    return session.principal or session.owner
