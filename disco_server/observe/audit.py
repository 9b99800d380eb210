"""The audit log: who did what, from where, and whether it was allowed.

Its lines are records of the logger ``disco.audit``, with the fields below bound. They
hold names and paths, and never what somebody keeps secret.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import time
from pathlib import Path
from typing import Any, Final

from disco_client.errors import ConfigError
from disco_server.observe.logs import JsonFormatter

__all__ = ["AUDIT_LOGGER", "record", "refusals", "setup_audit"]

AUDIT_LOGGER: Final = "disco.audit"

_logger = logging.getLogger(AUDIT_LOGGER)
_MAX_TEXT: Final = 500
_REFUSALS_A_SECOND: Final = 20


def record(
    event: str,
    *,
    who: str = "",
    peer: str = "",
    what: str = "",
    session: str = "",
    outcome: str = "allowed",
    **more: object,
) -> None:
    """Writes one line.

    Args:
        event: What happened, as ``session created``.
        who: Who did it.
        peer: From which address.
        what: To what: a name, a path.
        session: The session's name.
        outcome: ``allowed``, or why it was refused.
        **more: Other fields, such as the node.
    """
    level = logging.INFO if outcome == "allowed" else logging.WARNING
    given = {"who": who, "peer": peer, "what": what, "session": session, "outcome": outcome}
    fields = {name: text[:_MAX_TEXT] for name, text in given.items() if text}
    _logger.log(level, "%s", event, extra={**more, **fields})


class Refusals:
    """Writes lines of what was refused, so many a second: nobody can fill the disk with them."""

    def __init__(self) -> None:
        self._second = 0.0
        self._written = 0
        self._left_out = 0

    def record(self, event: str, **fields: Any) -> None:
        """Writes a line, or counts it."""
        now = time.monotonic()
        if now - self._second >= 1.0:
            left_out, self._left_out = self._left_out, 0
            self._second, self._written = now, 0
            if left_out:
                record("refused", outcome=f"{left_out} more refusals were not written")
        self._written += 1
        if self._written > _REFUSALS_A_SECOND:
            self._left_out += 1
            return
        record(event, **fields)


refusals: Final = Refusals()


def setup_audit(file: Path | None) -> None:
    """Lets the lines go to a file of their own, whatever else is logged.

    Args:
        file: Where; it is opened anew when somebody has moved it away. None leaves them
            in the log.

    Raises:
        ConfigError: It cannot be written.
    """
    if file is None:
        return
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        handler = logging.handlers.WatchedFileHandler(file)
    except OSError as error:
        raise ConfigError(f"audit_log: {file} cannot be written: {error.strerror}") from None
    handler.setFormatter(JsonFormatter())
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
