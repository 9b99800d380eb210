"""What tests of several parts put in place of the rest: a rank's outlet, a cluster, a pair."""

from __future__ import annotations

import asyncio

import pytest

from disco_client import connect
from disco_client.wire.codec import ArrayPorter, EncodedReply
from disco_server.core.cluster import Cluster
from disco_server.core.nodes import Node


class Replies:
    """Collects what an executor sends."""

    live = None
    porter = ArrayPorter()

    def __init__(self):
        self.raw = []

    def reply(self, raw, ack):
        self.raw.append(raw)

    def take(self):
        """What came since the last time."""
        taken, self.raw = [EncodedReply.FromString(raw) for raw in self.raw], []
        return taken


def cluster_of_two(asked, heard=0.0):
    """A cluster of the nodes a and b, with a slot each, of which a session of two has asked."""
    cluster = Cluster(10.0, 10.0)
    for name in ("a", "b"):
        cluster.node_joined(Node(name, ("cpu",), 1, "1", name, heard, host_id=name))
    cluster.requested(asked)
    return cluster


@pytest.fixture(scope="module")
def pair(cluster):
    """Two workers, shared by the tests of a file; two slots are left for others."""
    with connect(cluster.address, num_workers=2, name="shared") as shared:
        shared.import_python_module("disco_test_functions")
        yield shared


def echo(session, *args):
    """What each worker makes of the arguments."""
    result = session.get_global_func("tests.echo")(*args)
    return [result.debug_get_from_remote(worker) for worker in range(session.num_workers)]


async def begun(waiting):
    """Starts a call and lets it come as far as it gets by itself."""
    task = asyncio.ensure_future(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    return task
