"""How far a session has come to its end, as its client knows it."""

from __future__ import annotations

from enum import Enum
from typing import Final

from disco_client.errors import SessionError

__all__ = ["Phase", "SessionEnd"]


class Phase(Enum):
    """How far it is.

    OPEN: The program may issue commands.
    CLOSING: It may not any more; those before may still be answered.
    ENDED: Nothing comes any more.
    """

    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"


_MOVES: Final = {
    Phase.OPEN: (Phase.CLOSING, Phase.ENDED),
    Phase.CLOSING: (Phase.ENDED,),
    Phase.ENDED: (),
}
"""To which phases each may lead; other moves change nothing."""


class SessionEnd:
    """One state for all who ask whether the session is over; its owner's lock guards it.

    Attributes:
        phase: How far it is.
        refused: What calls raise; None while the session is open.
        error: What waits raise; None until nothing comes any more.
        told: Whether a call or a wait has raised one of them.
    """

    __slots__ = ("error", "phase", "refused", "told")

    def __init__(self) -> None:
        self.phase: Phase = Phase.OPEN
        self.refused: SessionError | None = None
        self.error: SessionError | None = None
        self.told: bool = False

    def close(self, why: SessionError) -> None:
        """Refuses further commands with an error; the first one counts."""
        if Phase.CLOSING in _MOVES[self.phase]:
            # No call from here on, so that an exception finds all of it or nothing.
            self.refused, self.phase = why, Phase.CLOSING

    def end(self, error: SessionError) -> None:
        """Ends all waits with an error; the first one counts, also for commands if none has."""
        if Phase.ENDED in _MOVES[self.phase]:
            refused = self.refused or error
            self.refused, self.error, self.phase = refused, error, Phase.ENDED

    def check_open(self) -> None:
        """Raises why commands are refused.

        Raises:
            SessionError: The session is closed or lost.
        """
        if self.refused is not None:
            self._raise(self.refused)

    def check_alive(self) -> None:
        """Raises why nothing comes any more.

        Raises:
            SessionError: The session has ended.
        """
        if self.error is not None:
            self._raise(self.error)

    def _raise(self, error: SessionError) -> None:
        self.told = True
        # The same error is raised each time, with the traceback of this time.
        raise error.with_traceback(None)
