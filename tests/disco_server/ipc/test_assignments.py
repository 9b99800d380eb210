"""What a rank is told first."""

from __future__ import annotations

import pytest

from disco_client.pb import node_pb2
from disco_client.wire.codec import EncodedEnvelope
from disco_client.wire.framing import FrameCutter
from disco_server.core.nodes import NodeShare
from disco_server.ipc.assignments import Assignments
from disco_server.ipc.shares import encode_share


@pytest.mark.parametrize(
    ("sessions", "nodes", "least"),
    [(0, 0, 0), (5, 0, 5), (0, 7, 7), (5, 7, 5), (7, 5, 5), (-1, 5, 5), (float("nan"), 5, 5)],
)
def test_a_rank_keeps_the_shorter_limit_of_its_session_and_its_node(sessions, nodes, least):
    """Zero is none, and what is no limit counts for none."""
    share = encode_share(NodeShare("one", (0,), (0,), ("cpu",)), "host")
    start = node_pb2.StartRanks(num_workers=1, nodes=[share], command_limit_s=sessions)
    rules = node_pb2.AssignRank(command_limit_s=nodes)
    (raw,) = FrameCutter().feed(Assignments(1, start, rules, {}).framed(0))
    told = EncodedEnvelope.FromString(raw)
    assert node_pb2.AssignRank.FromString(told.payload).command_limit_s == least
