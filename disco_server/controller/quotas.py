"""The limits of a controller: its settings, and the file of the quotas of single owners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.transport.credentials import state_of
from disco_server.core.quotas import Quota, SessionLimits, read_quotas
from disco_server.core.session_state import Priority
from disco_server.observe import logs

if TYPE_CHECKING:
    from pathlib import Path

    from disco_server.config import ControllerConfig

__all__ = ["QuotaBook", "limits_of"]

_logger = logger_of("disco.controller")


def limits_of(config: ControllerConfig) -> SessionLimits:
    """The limits that the settings say, for owners that no file names."""
    quota = Quota(
        sessions=config.max_client_sessions,
        slots=config.max_client_slots,
        session_limit_s=config.session_limit_s,
        idle_limit_s=config.idle_limit_s,
        command_limit_s=config.command_limit_s,
        priority=Priority[config.client_priority.upper()],
    )
    return SessionLimits(
        config.max_sessions,
        config.max_workers,
        quota,
        warning_s=config.limit_warning_s,
        window=config.window,
    )


class QuotaBook:
    """The quotas of a file, which is read again when it has changed.

    Args:
        path: The file.
        usual: The limits for owners that it does not name.

    Attributes:
        limits: The limits with those quotas.

    Raises:
        ConfigError: It cannot be read, or is not of its form.
    """

    def __init__(self, path: Path, usual: SessionLimits) -> None:
        self._path = path
        self._usual = usual
        self._seen: object = state_of(path)
        self.limits = self._read()

    def _read(self) -> SessionLimits:
        where = f"quota_file {self._path}"
        try:
            text = self._path.read_text()
        except OSError as error:
            raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: is no text") from None
        owners = read_quotas(text, where, self._usual.quota)
        logs.record("quotas read", what=str(self._path), owners=len(owners))
        return replace(self._usual, owners=owners)

    def changed(self) -> SessionLimits | None:
        """The limits, if the file has changed; where it has become wrong, the former ones hold."""
        state = state_of(self._path)
        if state == self._seen:
            return None
        self._seen = state
        try:
            self.limits = self._read()
        except ConfigError as error:
            _logger.error("the quotas before serve on: %s", error)  # noqa: TRY400  (no traceback)
            logs.record("quotas read", what=str(self._path), outcome=str(error))
            return None
        return self.limits
