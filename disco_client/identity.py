"""Which session it is, and where it runs."""

from __future__ import annotations

from disco_client.transport.base import RankPlace, Transport, Welcome

__all__ = ["Identity"]


class Identity:
    """The part of a session that says what it is; no round trip."""

    _transport: Transport
    _num_groups: int

    @property
    def _welcome(self) -> Welcome:
        # A session that recovers has other workers, and another id, afterwards.
        return self._transport.welcome

    @property
    def num_workers(self) -> int:
        """How many workers the session has."""
        return len(self._welcome.ranks)

    @property
    def num_groups(self) -> int:
        """Into how many equal groups the workers are divided."""
        return self._num_groups

    @property
    def name(self) -> str:
        """The session's name at the controller."""
        return self._welcome.name

    @property
    def session_id(self) -> str:
        """The session's id at the controller, in hexadecimal."""
        return f"{self._welcome.session:016x}"

    @property
    def workers(self) -> tuple[RankPlace, ...]:
        """Where each worker runs: node, process id, device."""
        return self._welcome.ranks
