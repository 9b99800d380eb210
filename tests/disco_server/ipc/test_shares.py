"""The shares of a session's nodes, as they travel: all that was said comes, in few bytes."""

from __future__ import annotations

import pytest

from disco_client.pb import node_pb2
from disco_server.core.nodes import NodeShare
from disco_server.ipc.shares import decode_share, decode_shares, encode_share, workers_of

GPUS = ("cuda:0", "cuda:1", "cuda:2")


@pytest.mark.parametrize(
    ("slots", "devices"),
    [((0, 1, 2), ("cpu",) * 3), ((1, 2, 7), ("cpu",) * 3), ((4, 5, 6), GPUS), ((0, 2, 1), GPUS)],
)
def test_a_share_comes_as_it_was(slots, devices):
    """Whether or not its slots are in a row and its devices the same; so does one of one rank."""
    for count in (1, 3):
        workers = tuple(range(5, 5 + count))
        share = NodeShare("one", workers, slots[:count], devices[:count])
        encoded = encode_share(share, "host")
        assert decode_share(encoded) == share
        assert tuple(workers_of(encoded)) == workers
        assert (encoded.node, encoded.host_id) == ("one", "host")


def test_many_ranks_cost_as_few_bytes_as_one():
    """Of each node's share, every other node of the session gets a copy."""
    sizes = [
        encode_share(
            NodeShare("n", tuple(range(count)), tuple(range(count)), ("cpu",) * count), "h"
        ).ByteSize()
        for count in (1, 64)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_workers": 3, "devices": ["cpu"], "slots": [0, 1]},
        {"num_workers": 3, "devices": ["cpu"] * 2, "slots": [0]},
        {"num_workers": 2, "devices": [], "slots": [0]},
        {"num_workers": (1 << 32) - 1, "devices": ["cpu"], "slots": [0]},
    ],
)
def test_what_is_no_share_is_refused(fields):
    """Also one that would take all memory."""
    with pytest.raises(ConnectionError, match="expected a device and a slot"):
        decode_share(node_pb2.NodeRanks(**fields))


@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1 << 31, 1 << 31)])
def test_shares_of_other_ranks_than_the_session_has_are_refused(counts):
    """Before any of them is decoded."""
    nodes = [node_pb2.NodeRanks(num_workers=count, devices=["cpu"], slots=[0]) for count in counts]
    with pytest.raises(ConnectionError, match="expected the shares of 3 ranks"):
        decode_shares(node_pb2.StartRanks(num_workers=3, nodes=nodes))
