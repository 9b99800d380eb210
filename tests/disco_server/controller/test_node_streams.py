"""Worker daemons that come back, to this controller or to one that was started again."""

from __future__ import annotations

import asyncio
import time

import pytest

from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.core.session_state import SessionState
from disco_server.ipc.shares import workers_of

Reason = controller_pb2.EndReason
Ready = controller_pb2.SessionReady


def running(session, start, name):
    """A session as a node tells of it."""
    (mine,) = (each for each in start.nodes if each.node == name)
    ranks = [controller_pb2.RankInfo(worker=w, pid=100 + w, device="cpu") for w in workers_of(mine)]
    return node_pb2.RunningSession(session=session, start=start, ranks=ranks)


async def started(rig, *nodes, **fields):
    """A client whose session runs on these nodes, its id, READY, and what nodes were told."""
    client = await rig.client(**fields)
    starts = [(await node.start_ranks())[1] for node in nodes]
    session, ready = await client.next(EnvelopeKind.READY, Ready)
    return client, session, ready, starts


def test_a_node_comes_back_and_its_session_goes_on(serve):
    """Commands and replies take the new connection, and the client notices nothing."""

    async def scenario(rig):
        node = await rig.node("one", incarnation=5)
        client, session, _, (start,) = await started(rig, node)
        node.call.cancel()
        await rig.until(lambda: "one" not in rig.hub.links)
        again = await rig.node("one", incarnation=5, sessions=[running(session, start, "one")])
        raw = envelope(EnvelopeKind.BATCH, b"x", session=session, first_seq=1, last_seq=1)
        await client.call.write(raw)
        assert await again.raw() == raw
        reply = envelope(EnvelopeKind.REPLY, b"y", session=session)
        await again.call.write(reply)
        assert await client.raw() == reply
        rig.hub.tick()
        assert rig.hub.cluster.members.free_slots == 0

    serve(scenario)


def test_a_node_may_notice_first_that_its_connection_broke(serve):
    """The new connection takes the place of the old one; another daemon would be refused."""

    async def scenario(rig):
        node = await rig.node("one", incarnation=5)
        client, session, _, (start,) = await started(rig, node)
        run = running(session, start, "one")
        other = await rig.newcomer(name="one", incarnation=6, sessions=[run])
        assert "connected already" in await other.refused()
        again = await rig.node("one", incarnation=5, sessions=[run])
        assert await node.raw() is None
        await client.call.write(envelope(EnvelopeKind.BATCH, session=session))
        await again.next(EnvelopeKind.BATCH)
        assert list(rig.hub.links) == ["one"]

    serve(scenario)


def test_a_node_that_stays_away_ends_its_session(serve):
    """After the time in which it might have come back; what it runs then, it is told to end."""

    async def scenario(rig):
        node = await rig.node("one", incarnation=5)
        client, session, _, (start,) = await started(rig, node)
        node.call.cancel()
        await rig.until(lambda: "one" not in rig.hub.links)
        rig.hub.tick()
        assert rig.hub.cluster.sessions[session].alive
        rig.hub.cluster.members.nodes["one"].away_since -= 2.0  # as if the time had passed
        rig.hub.tick()
        ended = await client.ended()
        assert (ended.reason, ended.node) == (Reason.END_REASON_NODE_LOST, "one")
        again = await rig.node("one", incarnation=5, sessions=[running(session, start, "one")])
        assert (await again.next(EnvelopeKind.END_SESSION))[0] == session

    serve(scenario)


def test_a_new_controller_learns_what_runs_and_clients_wait_for_it(serve):
    """Who attaches before the last node is back is answered when it is."""
    names = ("one", "two")
    told = []

    async def before(rig):
        nodes = [await rig.node(name, 1, incarnation=1) for name in names]
        told[:] = await started(rig, *nodes, name="mine")

    async def after(second):
        session, ready, starts = told[1:]
        runs = [running(session, start, name) for start, name in zip(starts, names, strict=True)]
        await second.node("one", 1, incarnation=1, sessions=runs[:1])
        client = await second.attacher(session=session, transfer_key=ready.transfer_key)
        by_name = await second.attacher(name="mine")
        reading = asyncio.ensure_future(client.next(EnvelopeKind.READY, Ready))
        await asyncio.sleep(0.1)
        assert not reading.done()
        (table,) = second.hub.cluster.sessions.values()
        assert table.state is SessionState.RETURNING
        two = await second.node("two", 1, incarnation=1, sessions=runs[1:])
        _, again = await reading
        assert again.transfer_key == ready.transfer_key
        assert [(r.worker, r.node, r.pid) for r in again.ranks] == [
            (0, "one", 100),
            (1, "two", 101),
        ]
        # The one who knows the secret may have come second: then it takes over.
        assert EnvelopeKind((second.envelope(await by_name.raw())).kind) in (
            EnvelopeKind.ENDED,
            EnvelopeKind.READY,
        )
        assert table.state is SessionState.RUNNING
        await client.call.write(envelope(EnvelopeKind.BATCH, session=session))
        await two.next(EnvelopeKind.BATCH)
        put = node_pb2.PutRequest(items={"k": b"v"})
        await two.send(EnvelopeKind.PUT_KEY, put, session=session, worker=1)
        _, answer = await two.next(EnvelopeKind.KEY, node_pb2.KeyAnswer)
        assert not answer.error

    serve(before)
    serve(after)


def test_a_name_that_is_too_long_is_refused_with_the_limit(serve):
    """What is wrong is said of a daemon that took a longer one."""

    async def scenario(rig):
        await rig.node("x" * 128)
        peer = await rig.newcomer(name="x" * 129)
        assert "expected a node's name of at most 128 characters, got 129" in await peer.refused()

    serve(scenario)


@pytest.mark.parametrize("wrong", ["none of its own", "a rank too few", "no id"])
def test_a_node_cannot_tell_of_sessions_that_are_not_its_own(serve, wrong):
    """It is refused with what was expected, and nothing of it is kept."""

    async def scenario(rig):
        start = node_pb2.StartRanks(
            session_name="s",
            num_workers=2,
            nodes=[node_pb2.NodeRanks(node="one", num_workers=2, devices=["cpu"], slots=[0])],
        )
        run = running(7, start, "one")
        if wrong == "none of its own":
            start.nodes[0].node = "two"
            run.start.CopyFrom(start)
        elif wrong == "a rank too few":
            del run.ranks[1]
        else:
            run.session = 0
        peer = await rig.newcomer(name="one", sessions=[run])
        assert "expected a session that node 'one' runs" in await peer.refused()
        assert not rig.hub.cluster.sessions
        assert not rig.hub.cluster.members.nodes

    serve(scenario)


def test_time_is_given_to_nodes_after_a_start_before_a_client_is_refused(serve):
    """A controller that has just been started cannot know what runs."""

    async def scenario(rig):
        asking = asyncio.ensure_future((await rig.attacher(session=7, transfer_key=b"k")).ended())
        await asyncio.sleep(0.1)
        assert not asking.done()
        rig.hub.settled_at = time.monotonic()
        rig.hub.apply([])
        assert "no session" in (await asking).message

    serve(scenario)
