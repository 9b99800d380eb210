"""What a node says of sessions that run and of those that have ended."""

from __future__ import annotations

import asyncio
import os
import signal
import zlib
from types import SimpleNamespace

import grpc
import pytest

from disco_client import connect, errors
from disco_client.pb import envelope_pb2, node_pb2
from disco_client.tracing import ring
from disco_client.tracing.trace import Flight
from disco_client.transport.admin import ask_for_inspection
from disco_client.transport.channel import target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS
from disco_client.wire.reports import RankState
from disco_server.observe.rank_memory import RankMemory
from disco_server.worker import inspector
from disco_server.worker.counters import NodeCounters
from disco_server.worker.environment import WorkFolders
from disco_server.worker.fork_server import ForkServer
from disco_server.worker.services import NodeServices
from disco_server.worker.session import WorkerSession


@pytest.fixture
def ask(cluster):
    """Asks the cluster's controller about a session."""
    with grpc.insecure_channel(target(cluster.address), options=CHANNEL_OPTIONS) as channel:
        yield lambda name, **options: ask_for_inspection(
            channel, name, **({"stacks": False, "flights": True} | options)
        )


def test_a_session_that_ended_is_remembered(cluster, ask, eventually):
    """By name and id, on both of its nodes, with what it did last and that it has ended."""
    with connect(cluster.address, num_workers=4, name="remembered") as session:
        session.get_global_func("time.time")()
        session_id = session.session_id
        first = ask("remembered")
        assert {report.state for report in first.ranks} == {RankState.RUNNING}

    def over():
        found = ask("remembered")
        return found if {r.state for r in found.ranks} == {RankState.ENDED} else None

    found = eventually(over, what="the end of every rank")
    again = ask(session_id)
    assert [r.finished.seq for r in again.ranks] == [r.finished.seq for r in found.ranks]
    assert {r.state for r in again.ranks} == {RankState.ENDED}
    for rank in Flight.of(found).ranks:
        assert "time.time" in [command.name for command in rank.commands]


def test_a_session_whose_rank_was_killed_can_be_asked_itself(cluster, eventually):
    """The client's session is over, and its records are at the nodes."""
    with connect(cluster.address, num_workers=2, name="killed") as session:
        session.sync_all()
        os.kill(session.workers[1].pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost):
            session.sync_all()
        eventually(
            lambda: {r.state for r in session.diagnose().ranks} == {RankState.ENDED},
            what="the end of every rank",
        )
        assert session.flight().ranks[1].commands
        session.shutdown()
        with pytest.raises(errors.SessionError, match="shut down here"):
            session.diagnose()


def ended_session(number, **fields):
    """A session of which no rank is left."""
    ranks = node_pb2.NodeRanks(node="a", num_workers=2, devices=["cpu"], slots=[0])
    start = node_pb2.StartRanks(session_name=f"s{number}", num_workers=2, nodes=[ranks], **fields)
    services = NodeServices(
        node="a",
        rules=node_pb2.AssignRank(),
        max_array_bytes=0,
        folders=WorkFolders(),
        fork_server=ForkServer({}),
        post=lambda _raw, **_options: True,
        counters=NodeCounters(),
    )
    return WorkerSession(number, start, services)


def remembered(ended, monkeypatch, **limits):
    """Lets sessions end that had no ranks here; the names that a node still knows."""
    for name, value in limits.items():
        monkeypatch.setattr(inspector, name, value)
    posted = []
    node = inspector.NodeInspector("a", {}, posted.append)

    async def run():
        for number in range(1, ended + 1):
            await node.keep(ended_session(number))
        for number in range(1, ended + 1):
            asked = node_pb2.InspectNode(request=number, name=f"s{number}")
            await node.answer(asked.SerializeToString())

    asyncio.run(run())
    found = [
        node_pb2.NodeInspected.FromString(envelope_pb2.Envelope.FromString(raw).payload)
        for raw in posted
    ]
    return [each.session_name for each in found if each.known]


def test_only_so_many_sessions_are_remembered_and_for_so_long(monkeypatch):
    """The oldest is forgotten when one more than that has ended."""
    most = inspector.KEPT_SESSIONS
    assert remembered(most + 2, monkeypatch) == [f"s{n}" for n in range(3, most + 3)]
    assert remembered(3, monkeypatch, KEPT_S=-1.0) == []
    assert remembered(3, monkeypatch, KEPT_S=60.0, KEPT_BYTES=-1) == []


def test_no_copy_of_what_ranks_recorded_outlives_the_report():
    """Which has it compressed; only who looks at this moment still needs the copy."""

    async def run(others):
        node = inspector.NodeInspector("a", {}, lambda _raw: None)
        node._looked_at += [2, *others]
        session = ended_session(1)
        memory = RankMemory()
        exited = asyncio.get_running_loop().create_future()
        exited.set_result(0)
        session.driver.ranks[0] = SimpleNamespace(pid=0, memory=memory, exited=exited)
        await node.keep(session)
        (ended,) = node._ended
        return len(memory.read()[0]), len(zlib.decompress(ended.reports[0].flight))

    assert asyncio.run(run(others=[])) == (0, ring.RING_BYTES)
    assert asyncio.run(run(others=[1])) == (ring.RING_BYTES, ring.RING_BYTES)


def test_what_a_node_reports_of_a_session_has_no_secrets():
    """Its ranks are told of them, and a restarted controller is not."""

    async def run():
        session = ended_session(1, secrets={"HF_TOKEN": "hush-3b"}, transfer_key=b"known")
        assert b"hush-3b" in session.driver._assignments.framed(0)
        return session.describe().SerializeToString()

    told = asyncio.run(run())
    assert b"known" in told
    assert b"hush-3b" not in told
