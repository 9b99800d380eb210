"""What the ranks of one session load and refuse, in the audit log of their daemon."""

from __future__ import annotations

from collections import OrderedDict

from google.protobuf.message import DecodeError

from disco_client.pb import node_pb2
from disco_server.observe import logs

__all__ = ["RankAudit"]

_REMEMBERED = 256


class RankAudit:
    """The entries of one session's ranks on one node.

    All ranks of a session do the same, so what one of them has reported is not logged again
    for the others.

    Args:
        start: The session.
        node: The node's name.
    """

    def __init__(self, start: node_pb2.StartRanks, node: str) -> None:
        self._start, self._node = start, node
        self._known: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def add(self, worker: int, payload: bytes) -> None:
        """Logs what a rank reports that it did, or refused to do.

        Args:
            worker: The rank.
            payload: The report; not trusted, as the process runs user code.
        """
        try:
            said = node_pb2.Audited.FromString(payload)
        except DecodeError:
            return
        key = said.what, said.name, said.refused
        if key in self._known:
            return
        self._known[key] = None
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        write = logs.refusals.record if said.refused else logs.record
        write(
            said.what,
            who=self._start.owner,
            what=said.name,
            session=self._start.session_name,
            outcome=said.refused or "allowed",
            node=self._node,
            rank=worker,
        )
