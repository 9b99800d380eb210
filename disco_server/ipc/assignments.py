"""What each rank of a session on one node is told first: which one it is, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disco_client.pb import node_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.ipc.shares import decode_share, workers_of

__all__ = ["Assignments"]


class Assignments:
    """The assignments of one session's ranks on one node.

    Args:
        session: The session's id.
        start: What the session is, and where its ranks are.
        rules: What sessions may do here: the fields that are the same for all ranks.
        secrets: The secrets that the session brings.

    Attributes:
        share: The ranks of this node.
        machines: The ranks of each machine: several nodes may share one and its memory.
        local_workers: The ranks of this machine.

    Raises:
        ConnectionError: The session has no ranks for this node.
    """

    def __init__(
        self,
        session: int,
        start: node_pb2.StartRanks,
        rules: node_pb2.AssignRank,
        secrets: Mapping[str, str],
    ) -> None:
        if start.node_index >= len(start.nodes):
            msg = f"expected ranks for node {start.node_index} of {len(start.nodes)}"
            raise ConnectionError(msg)
        self._session, self._start, self._rules = session, start, rules
        self._secrets = secrets
        self._host_id = start.nodes[start.node_index].host_id
        self.share = decode_share(start.nodes[start.node_index])
        by_host: dict[str, list[int]] = {}
        for node in start.nodes:
            by_host.setdefault(node.host_id, []).extend(workers_of(node))
        self.machines: Sequence[Sequence[int]] = list(by_host.values())
        self.local_workers: Sequence[int] = sorted(by_host[self._host_id])

    def device_of(self, worker: int) -> str:
        """The device of a rank of this node."""
        return self.share.devices[worker - self.share.workers[0]]

    def framed(self, worker: int, work_dir: str = "") -> bytes:
        """The first frame for a rank of this node.

        Args:
            worker: The rank.
            work_dir: Its folder, where it has one.
        """
        start = self._start
        assign = node_pb2.AssignRank(
            worker=worker,
            num_workers=start.num_workers,
            num_groups=start.num_groups,
            ccl=start.ccl,
            node=self.share.node,
            device=self.device_of(worker),
            session_name=start.session_name,
            owner=start.principal or start.owner,
            work_dir=work_dir,
            local_workers=len(self.local_workers),
            local_rank=self.local_workers.index(worker),
            host_id=self._host_id,
            with_gpus=any(name != "cpu" for node in start.nodes for name in node.devices),
            secrets=self._secrets,
        )
        assign.MergeFrom(self._rules)
        limits = start.command_limit_s, self._rules.command_limit_s
        assign.command_limit_s = min((each for each in limits if each > 0), default=0.0)
        kind = EnvelopeKind.ASSIGN
        return frame(envelope(kind, assign.SerializeToString(), session=self._session))
