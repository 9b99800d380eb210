"""Which session it is, and where it runs."""

from __future__ import annotations

from disco_client.command_log import CommandLog
from disco_client.transport.base import RankPlace, Transport, Welcome

__all__ = ["Identity"]


class Identity:
    """The part of a session that says what it is; no round trip."""

    _transport: Transport
    _log: CommandLog
    _num_groups: int
    _closed: bool

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

    def _repr_html_(self) -> str:
        from disco_client.distributed.pictures.model import ranges
        from disco_client.notebook import facts_table

        counts = self._log.statistics()
        facts = {
            "state": "closed" if self._closed else "open",
            "id": self.session_id,
            "workers": f"{self.num_workers} in {self.num_groups} group(s)",
        }
        for node in dict.fromkeys(rank.node for rank in self.workers):
            here = [rank for rank in self.workers if rank.node == node]
            devices = ", ".join(dict.fromkeys(rank.device for rank in here))
            facts[f"node {node}"] = f"workers {ranges([rank.worker for rank in here])} on {devices}"
        facts["commands"] = f"{counts['issued']} issued, {counts['acked']} known to be executed"
        return facts_table(f"Session {self.name}", facts)
