"""What an executor asks of whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from disco_client.wire.porter import ArrayPorter

__all__ = ["Outlet"]


class Outlet(Protocol):
    """Where an executor's answers go, and where arrays outside the log come from."""

    def reply(self, raw: bytes) -> None:
        """Sends one encoded reply to the client."""
        ...

    @property
    def live(self) -> Callable[[int, Any], None] | None:
        """Answers command ``seq`` with an object; None where the client is elsewhere."""
        ...

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        ...
