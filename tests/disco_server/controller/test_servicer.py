"""The controller's edge, met over real gRPC by peers that speak the protocol byte by byte."""

from __future__ import annotations

import logging
import re

import grpc
import pytest

from disco_client.pb import controller_pb2, node_pb2
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope
from disco_client.wire.limits import MAX_WORKERS
from disco_server.controller.edge import MAX_NAME
from disco_server.ipc.shares import workers_of
from disco_server.observe.logs import is_farewell

Code = grpc.StatusCode
Reason = controller_pb2.EndReason


# Sessions -----------------------------------------------------------------------------


def test_a_session_is_created_waited_for_and_closed(serve):
    """From CREATE to ENDED: queued until there is room, ready when every node is."""

    async def scenario(rig):
        client = await rig.client(num_workers=3, name="mine")
        session, queued = await client.next(EnvelopeKind.QUEUED, controller_pb2.Queued)
        assert (queued.ahead, queued.total_slots, queued.free_slots) == (0, 0, 0)
        one = await rig.node("one", array_address="10.0.0.1:5", host_id="h1")
        rig.hub.beat()
        _, queued = await client.next(EnvelopeKind.QUEUED, controller_pb2.Queued)
        assert (queued.ahead, queued.total_slots, queued.free_slots) == (0, 2, 2)
        two = await rig.node("two")
        number, start = await one.start_ranks()
        assert number == session
        assert [list(workers_of(each)) for each in start.nodes] == [[0, 1], [2]]
        assert [each.host_id for each in start.nodes] == ["h1", "two"]
        assert (start.session_name, start.num_workers, start.num_groups) == ("mine", 3, 1)
        assert (await two.start_ranks())[1].node_index == 1
        _, ready = await client.next(EnvelopeKind.READY, controller_pb2.SessionReady)
        assert [(r.worker, r.node, r.pid, r.array_address) for r in ready.ranks] == [
            (0, "one", 100, "10.0.0.1:5"),
            (1, "one", 101, "10.0.0.1:5"),
            (2, "two", 102, ""),
        ]
        assert ready.transfer_key == start.transfer_key
        assert len(ready.transfer_key) == 16
        await client.send(EnvelopeKind.CLOSE)
        assert (await client.ended()).reason == Reason.END_REASON_CLOSED
        for node in (one, two):
            await node.end_session(session)
        await rig.until(lambda: not rig.hub.cluster.sessions)
        assert rig.hub.cluster.members.free_slots == 4
        assert not rig.hub.routes
        assert not rig.hub.clients

    serve(scenario)


def test_a_session_that_waits_is_told_its_place_and_how_many_slots_there_are(serve):
    """And gets them, in its turn, when the holder's last process is gone, not before."""

    async def scenario(rig):
        node = await rig.node("one")
        holder, session, _ = await rig.session(node, name="holder", owner="someone@else:5")
        waiting = await rig.client()
        _, queued = await waiting.next(EnvelopeKind.QUEUED, controller_pb2.Queued)
        assert (queued.ahead, queued.total_slots, queued.free_slots) == (0, 2, 0)
        await holder.send(EnvelopeKind.CLOSE)
        assert (await holder.ended()).reason == Reason.END_REASON_CLOSED
        await node.end_session(session)
        assert (await node.start_ranks())[0] != session
        await waiting.next(EnvelopeKind.READY, controller_pb2.SessionReady)

    serve(scenario)


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"num_workers": 0}, f"num_workers from 1 to {MAX_WORKERS}, got 0"),
        ({"num_workers": MAX_WORKERS + 1}, f"num_workers from 1 to {MAX_WORKERS}"),
        ({"num_groups": 0}, "num_groups to divide the 2 workers evenly, got 0"),
        ({"num_workers": 4, "num_groups": 3}, "divide the 4 workers evenly, got 3"),
        ({"name": "x" * (MAX_NAME + 1)}, f"at most {MAX_NAME} characters"),
        ({"timeout_s": 0.0}, "timeout from 0"),
        ({"timeout_s": float("nan")}, "timeout from 0"),
        ({"timeout_s": float("inf")}, "timeout from 0"),
    ],
)
def test_a_wish_that_cannot_be_served_ends_refused(serve, wish, text):
    """With what was expected and what came; nothing of it is kept."""

    async def scenario(rig):
        ended = await (await rig.client(**wish)).ended()
        assert ended.reason == Reason.END_REASON_REFUSED
        assert text in ended.message
        assert not rig.hub.cluster.sessions
        assert not rig.hub.clients

    serve(scenario)


def test_peers_of_another_protocol_are_refused_with_both_versions(serve):
    """Clients and nodes alike, so that a person knows which side to upgrade."""

    async def scenario(rig):
        wrong = {"protocol": PROTOCOL + 1, "version": "9.9"}
        for peer, what in (
            (await rig.client(**wrong), "client 9.9"),
            (await rig.newcomer(name="n", **wrong), "worker 9.9"),
        ):
            message = await peer.refused()
            assert f"controller {__version__} speaks protocol {PROTOCOL}," in message
            assert f"{what} speaks protocol {PROTOCOL + 1}" in message
            assert "upgrade the controller" in message
        assert not rig.hub.cluster.members.nodes

    serve(scenario)


def test_batches_and_replies_pass_byte_for_byte_to_their_session_alone(serve):
    """All its nodes get its commands, no other does; nobody speaks for a session not theirs."""

    async def scenario(rig):
        one, two, other = [await rig.node(name, 1) for name in ("one", "two", "other")]
        client, session, _ = await rig.session(one, two)
        stranger, foreign, _ = await rig.session(other, num_workers=1)
        # An unknown field, as a newer peer may send, shows that nothing is encoded anew.
        batch = envelope(EnvelopeKind.BATCH, b"\xff\x00no protobuf", session=session, first_seq=1)
        batch += b"\xa0\x06\x05"
        await client.call.write(batch)
        theirs = envelope(EnvelopeKind.BATCH, b"theirs", session=foreign, first_seq=1, last_seq=1)
        await stranger.call.write(theirs)
        assert [await node.raw() for node in (one, two, other)] == [batch, batch, theirs]
        await other.send(EnvelopeKind.REPLY, session=session, worker=0)
        await other.send(EnvelopeKind.OPEN_CCL, session=session, worker=0)
        await other.send(EnvelopeKind.RANK_EXITED, node_pb2.RankExited(worker=0), session=session)
        lines = controller_pb2.LogLines(worker=1, lines=["said"]).SerializeToString()
        for kind, said in ((EnvelopeKind.REPLY, b"\xff said"), (EnvelopeKind.LOG, lines)):
            raw = envelope(kind, said, session=session, worker=1) + b"\xa0\x06\x05"
            await two.call.write(raw)
            assert await client.raw() == raw
        await two.send(EnvelopeKind.LOG, node_pb2.Refused(message="\xff no lines"), session=session)
        opening = envelope(EnvelopeKind.OPEN_CCL, session=session, worker=1, first_seq=1)
        await two.call.write(opening)
        assert [await node.raw() for node in (one, two)] == [opening, opening]
        answer = envelope(EnvelopeKind.REPLY, b"mine", session=foreign, worker=0)
        await other.call.write(answer)
        assert await stranger.raw() == answer

    serve(scenario)


def test_a_batch_for_another_session_breaks_its_own_stream(serve):
    """It reaches nobody, and the session that it was meant for does not notice."""

    async def scenario(rig):
        one, two = await rig.node("one"), await rig.node("two")
        victim, session, _ = await rig.session(one)
        culprit, own, _ = await rig.session(two)
        await culprit.send(EnvelopeKind.BATCH, session=session, first_seq=1, last_seq=1)
        code, text = await rig.status(culprit.raw())
        assert (code, text) == (Code.ABORTED, "expected commands of this stream's session")
        await two.end_session(own)
        await victim.send(EnvelopeKind.BATCH, session=session, first_seq=7, last_seq=7)
        _, batch = await one.next(EnvelopeKind.BATCH)
        assert batch is not None

    serve(scenario, lease=0.0)


@pytest.mark.parametrize("how", ["breaks off", "falls silent"])
def test_a_running_session_outlives_its_client_by_the_lease(serve, how):
    """One that only waits does not; without its client the slots are of no use to it.

    Only CLOSE is a goodbye: the end of what a client sends may be its connection's end.
    """

    async def scenario(rig):
        node = await rig.node("one")
        client, session, _ = await rig.session(node)
        waiting = await rig.client()
        await waiting.next(EnvelopeKind.QUEUED)
        for peer in (waiting, client):
            if how == "breaks off":
                peer.call.cancel()
            else:
                await peer.call.done_writing()
        table = rig.hub.cluster.sessions[session]
        await rig.until(lambda: table.state.value == "detached")
        await rig.until(lambda: list(rig.hub.cluster.sessions) == [session])
        rig.hub.tick()
        assert table.alive
        table.deadline -= 10.0  # as if the lease had passed
        rig.hub.tick()
        await node.end_session(session)
        await rig.until(lambda: not rig.hub.cluster.sessions)

    serve(scenario)


def test_sessions_are_listed_and_closed_by_whoever_knows_their_key(serve):
    """A list tells no secrets; a wrong key closes nothing."""

    async def scenario(rig):
        node = await rig.node("one", 3, array_address="10.0.0.1:5")
        client, session, ready = await rig.session(node, name="mine")
        request, result = controller_pb2.ListRequest(), controller_pb2.ListResult
        raw = await rig.ask("SessionService/List", request, result)
        assert [(n.name, n.slots, n.free_slots) for n in raw.nodes] == [("one", 3, 1)]
        assert [(s.session, s.name, s.state) for s in raw.sessions] == [
            (session, "mine", "running")
        ]
        assert ready.transfer_key not in raw.SerializeToString()
        assert b"10.0.0.1" not in raw.SerializeToString()

        def close(key):
            request = controller_pb2.CloseRequest(session=session, transfer_key=key)
            return rig.ask("SessionService/Close", request, controller_pb2.CloseResult)

        assert (await rig.status(close(b"x" * 16)))[0] is Code.NOT_FOUND
        await close(ready.transfer_key)
        ended = await client.ended()
        assert ended.reason == Reason.END_REASON_STOPPED
        assert "'mine' was closed on request" in ended.message
        assert (await rig.status(close(ready.transfer_key)))[0] is Code.NOT_FOUND

    serve(scenario)


# Nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "the node's name first"),
        ({"name": "x" * (MAX_NAME + 1)}, "a node's name of at most 128 characters, got 129"),
        ({"name": "new", "devices": []}, "at least 1 slot"),
        (
            {"name": "known", "host": "cellar", "incarnation": 2},
            "'known' is connected already (from attic)",
        ),
    ],
)
def test_a_node_that_cannot_join_is_told_why(serve, fields, text):
    """And whoever is there already keeps its place and its sessions."""

    async def scenario(rig):
        known = await rig.node("known")
        client, session, _ = await rig.session(known)
        assert text in await (await rig.newcomer(**fields)).refused()
        assert list(rig.hub.cluster.members.nodes) == ["known"]
        raw = envelope(EnvelopeKind.REPLY, b"still here", session=session, worker=0)
        await known.call.write(raw)
        assert await client.raw() == raw

    serve(scenario)


def test_a_silent_node_is_lost_after_the_lease(serve):
    """Its sessions end with its name, its stream with the reason; one that beats stays."""

    async def scenario(rig):
        silent, beating = await rig.node("silent"), await rig.node("beating")
        client, _, _ = await rig.session(silent)
        nodes = rig.hub.cluster.members.nodes
        long_ago = nodes["beating"].heard - 100.0
        nodes["silent"].heard = nodes["beating"].heard = long_ago
        await beating.send(EnvelopeKind.HEARTBEAT)
        await rig.until(lambda: nodes["beating"].heard != long_ago)
        rig.hub.tick()
        assert "silent for more than 5 s" in await silent.refused()
        ended = await client.ended()
        assert (ended.reason, ended.node) == (Reason.END_REASON_NODE_LOST, "silent")
        assert list(nodes) == list(rig.hub.links) == ["beating"]
        await rig.until(lambda: not rig.hub.cluster.sessions)

    serve(scenario)


@pytest.mark.parametrize("how", ["breaks off", "says goodbye", "drains"])
def test_a_node_that_leaves_ends_its_sessions_everywhere(serve, caplog, how):
    """However it goes: the client hears its name, and the other nodes free their slots."""

    async def scenario(rig):
        going, staying = await rig.node("going", 1), await rig.node("staying", 1)
        client, session, _ = await rig.session(going, staying)
        if how == "breaks off":
            going.call.cancel()
        elif how == "says goodbye":
            await going.call.done_writing()
        else:
            await going.send(EnvelopeKind.DRAIN)
            await going.end_session(session)
        if how != "drains":
            members = rig.hub.cluster.members
            await rig.until(lambda: members.nodes["going"].away_since is not None)
            members.nodes["going"].away_since -= 2.0  # as if the time to come back had passed
            rig.hub.tick()
        ended = await client.ended()
        assert (ended.reason, ended.node) == (Reason.END_REASON_NODE_LOST, "going")
        await staying.end_session(session)
        await rig.until(lambda: not rig.hub.cluster.sessions)
        assert rig.hub.cluster.members.free_slots == 1

    serve(scenario)
    failed = [each for each in caplog.records if each.levelno >= logging.WARNING]
    said = [each.getMessage() for each in failed if not is_farewell(each)]
    assert not said, "nothing failed in the controller itself"


@pytest.mark.parametrize("at_start", [True, False])
def test_a_lost_rank_is_told_with_all_that_is_known_of_it(serve, at_start):
    """Which, where, how it ended and its last words; a rank that never began is told apart."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, _ = await rig.session(node)
        lost = node_pb2.RankExited(worker=1, exit_status=-9, output=["last"], at_start=at_start)
        await node.send(EnvelopeKind.RANK_EXITED, lost, session=session)
        ended = await client.ended()
        family = "START_FAILED" if at_start else "RANK_LOST"
        assert ended.reason == Reason.Value(f"END_REASON_{family}")
        assert (ended.worker, ended.node, ended.exit_status) == (1, "one", -9)
        assert list(ended.output) == ["last"]
        assert "SIGKILL" in ended.message

    serve(scenario)


# What arrives broken -----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize("who", ["client", "node"])
def test_bytes_that_are_no_message_break_the_stream_with_a_reason(serve, who, when):
    """Not an internal error: the peer is at fault, and is told."""

    async def scenario(rig):
        if when == "first":
            method = {"client": "SessionService/Open", "node": "NodeService/Register"}[who]
            peer = rig.stream(method)
        else:
            node = await rig.node("one")
            peer = node if who == "node" else (await rig.session(node))[0]
        await peer.call.write(b"\xff\xff no envelope")
        code, text = await rig.status(peer.raw())
        assert (code, text) == (Code.INVALID_ARGUMENT, "expected a disco.v1 message")

    serve(scenario)


def test_an_unforeseen_exception_leaves_only_its_id_to_the_peer(serve, caplog):
    """The log has the same id with the traceback; others' texts are not for strangers."""

    async def scenario(rig):
        rig.hub.cluster = "secret"  # what no code is prepared for
        request, result = controller_pb2.ListRequest(), controller_pb2.ListResult
        client, node = await rig.client(), await rig.newcomer(name="one")
        for call in (
            rig.ask("SessionService/List", request, result),
            client.raw(),
            node.raw(),
        ):
            code, text = await rig.status(call)
            assert code is Code.INTERNAL
            pattern = r"the controller failed; its log has error ([0-9a-f]{8})"
            error_id = re.fullmatch(pattern, text)[1]
            (record,) = [each for each in caplog.records if error_id in each.getMessage()]
            assert record.exc_info[0] is AttributeError

    with caplog.at_level(logging.ERROR, "disco.controller"):
        serve(scenario)
