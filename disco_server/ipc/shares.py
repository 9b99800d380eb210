"""How a session's ranks on each node travel: every node of a session is told those of all.

What is the same for neighbours is said once, so that a node costs as many bytes with many ranks
as with one: with a thousand nodes, each byte of it is a million.
"""

from __future__ import annotations

from disco_client.pb import node_pb2
from disco_client.wire.limits import MOST_WORKERS
from disco_server.core.nodes import NodeShare

__all__ = ["decode_share", "decode_shares", "encode_share", "workers_of"]


def encode_share(share: NodeShare, host_id: str) -> node_pb2.NodeRanks:
    """Encodes a node's share of a session.

    Args:
        share: Its ranks, which follow one another.
        host_id: Tells its machine from others.
    """
    first, count = share.slots[0], len(share.workers)
    one_kind = len(set(share.devices)) == 1
    in_a_row = share.slots == tuple(range(first, first + count))
    return node_pb2.NodeRanks(
        node=share.node,
        first_worker=share.workers[0],
        num_workers=count,
        devices=share.devices[:1] if one_kind else share.devices,
        slots=share.slots[:1] if in_a_row else share.slots,
        host_id=host_id,
    )


def workers_of(encoded: node_pb2.NodeRanks) -> range:
    """The ranks of a share."""
    return range(encoded.first_worker, encoded.first_worker + encoded.num_workers)


def decode_share(encoded: node_pb2.NodeRanks) -> NodeShare:
    """Decodes a node's share of a session.

    Raises:
        ConnectionError: It is none.
    """
    workers = workers_of(encoded)
    devices, slots = tuple(encoded.devices), tuple(encoded.slots)
    count = len(workers)
    if count > MOST_WORKERS or not {len(devices), len(slots)} <= {1, count}:
        msg = f"expected a device and a slot for each of {count} ranks, or one for all"
        raise ConnectionError(msg)
    if len(slots) < count:
        slots = tuple(range(slots[0], slots[0] + count))
    if len(devices) < count:
        devices *= count
    return NodeShare(encoded.node, tuple(workers), slots, devices)


def decode_shares(start: node_pb2.StartRanks) -> tuple[NodeShare, ...]:
    """Decodes the shares of all nodes of a session.

    Raises:
        ConnectionError: They are not those of its ranks.
    """
    # Before any is decoded: a few bytes can stand for many ranks.
    count = sum(each.num_workers for each in start.nodes)
    if count != start.num_workers or count > MOST_WORKERS:
        msg = f"expected the shares of {start.num_workers} ranks, got {count}"
        raise ConnectionError(msg)
    return tuple(map(decode_share, start.nodes))
