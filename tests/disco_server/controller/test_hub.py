"""The controller's centre: what it keeps of sessions and nodes, and how it takes its leave."""

from __future__ import annotations

import asyncio

import pytest

from disco_client.pb import controller_pb2, envelope_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.controller.hub import Hub, NodeLink
from disco_server.core.cluster import Rejoined
from disco_server.core.nodes import Node
from disco_server.ipc.outbox import Outbox

Reason = controller_pb2.EndReason


@pytest.fixture
def hub():
    return Hub(session_lease=10.0, node_lease=5.0, heartbeat=2.0)


def joined(hub, name, slots=2):
    """A node whose stream nobody writes yet."""
    link = NodeLink(name, Outbox())
    hub.connect(link)
    node = Node(name, ("cpu",) * slots, incarnation=1, version="1", host="h", heard=0.0)
    hub.apply(hub.cluster.node_joined(node))
    return link


def asked(hub, **fields):
    """A session that was asked for, with its client's outbox."""
    wish = {"num_workers": 2, "num_groups": 1, "timeout_s": 60.0, **fields}
    session = hub.new_session(controller_pb2.CreateSession(**wish))
    hub.clients[session.session] = hub.outbox_of(session)
    hub.apply(hub.cluster.requested(session))
    return session, hub.clients[session.session]


def waiting(outbox):
    """What waits to be written, session by session, and the farewell behind it."""
    queues = outbox._queues.values()
    farewell = [outbox._farewell] * (outbox._farewell is not None)
    return [raw for queue in queues for raw in queue.waiting] + farewell


def posted(outbox):
    """The kinds of what waits to be written."""
    return [EnvelopeKind(envelope_pb2.Envelope.FromString(raw).kind) for raw in waiting(outbox)]


def test_sessions_have_ids_and_keys_that_nobody_guesses(hub):
    """And a name in any case; what a client says of itself is kept short."""
    sessions = [asked(hub, owner="x" * 1000)[0] for _ in range(50)]
    assert len({session.session for session in sessions}) == 50
    assert len({session.transfer_key for session in sessions}) == 50
    assert all(0 < session.session < 1 << 63 for session in sessions)
    assert all(session.name.startswith("session-") for session in sessions)
    assert len(sessions[0].owner) == 200
    assert asked(hub, name="mine")[0].name == "mine"


def test_a_session_s_streams_and_meeting_places_live_as_long_as_it_does(hub):
    """Opened before its nodes are told to start, closed with it, and no route leads on."""
    link, other = joined(hub, "one"), joined(hub, "two")
    session, outbox = asked(hub)
    number = session.session
    assert hub.routes == {number: {"one": link.outbox}}
    assert posted(link.outbox) == [EnvelopeKind.START_RANKS]
    put = envelope_pb2.Envelope(kind=EnvelopeKind.PUT_KEY, session=number)
    hub.exchanges.ask("one", put)
    assert posted(link.outbox) == [EnvelopeKind.START_RANKS, EnvelopeKind.KEY]
    hub.apply(hub.cluster.ready_on_node(number, "one", [(0, "one", 5, ""), (1, "one", 6, "")]))
    assert posted(outbox) == [EnvelopeKind.READY]
    hub.apply(hub.cluster.node_left("one", "it went"))
    assert posted(outbox) == [EnvelopeKind.READY, EnvelopeKind.ENDED]
    assert not outbox.post(b"more"), "the stream ends with the session"
    assert (hub.routes, hub.clients) == ({}, {})
    hub.exchanges.ask("two", put)
    (refused,) = waiting(other.outbox)
    assert b"the session is over" in refused


def test_what_is_for_one_rank_goes_to_its_node_alone(hub):
    """What is for all goes to all; nothing goes where a session has no such rank."""
    links = [joined(hub, "one", 1), joined(hub, "two", 1)]
    session, _ = asked(hub)
    for link in links:
        link.outbox._queues.clear()
    hub.relay(session, envelope(EnvelopeKind.BATCH), 1)
    hub.relay(session, envelope(EnvelopeKind.BATCH), 2)
    assert [posted(link.outbox) for link in links] == [[], [EnvelopeKind.BATCH]]
    hub.relay(session, envelope(EnvelopeKind.RECEIVED))
    both = [EnvelopeKind.BATCH, EnvelopeKind.RECEIVED]
    assert [posted(link.outbox) for link in links] == [[EnvelopeKind.RECEIVED], both]


def test_ranks_that_open_their_communicator_cost_each_node_two_messages(hub):
    """That the first one does, and that all do; a node that was away is told both again."""
    links = [joined(hub, "one", 2), joined(hub, "two", 2)]
    session, _ = asked(hub, num_workers=4)
    for link in links:
        link.outbox._queues.clear()
    said = []
    for worker in (2, 0, 1, 1, 3):
        raw = envelope(EnvelopeKind.OPEN_CCL, session=session.session, worker=worker, first_seq=1)
        hub.open_communicator(session, worker, 1, raw)
        said.append(raw)
    everybody = envelope(EnvelopeKind.OPEN_CCL, session=session.session, first_seq=1)
    for link in links:
        assert waiting(link.outbox) == [said[0], everybody]
        link.outbox._queues.clear()
    hub.apply([Rejoined(session, "two")])
    again = envelope(EnvelopeKind.OPEN_CCL, session=session.session, worker=0, first_seq=1)
    assert [waiting(link.outbox) for link in links] == [[], [again, everybody]]


def test_secrets_open_what_they_belong_to_and_nothing_else(hub):
    """A session's key names its arrays."""
    joined(hub, "one", 1)
    joined(hub, "two", 1)
    session, _ = asked(hub)
    right = {"session": session.session, "transfer_key": session.transfer_key}
    assert hub.session_of(controller_pb2.Transfer(**right)) is session
    for wrong in ({"transfer_key": b""}, {"transfer_key": b"x" * 16}, {"session": 1}):
        assert hub.session_of(controller_pb2.Transfer(**{**right, **wrong})) is None
    assert [hub.node_of_worker(session, worker) for worker in range(3)] == ["one", "two", None]
    hub.apply(hub.cluster.client_left(session.session, 0.0))
    assert hub.session_of(controller_pb2.Transfer(**right)) is None


def test_a_beat_reaches_everyone_whose_stream_is_not_stuck(hub):
    """It counts on, it tells those who wait what there is, and it piles up before nobody."""
    link = joined(hub, "one", 1)
    _, outbox = asked(hub)
    hub.beat()
    hub.beat()
    assert posted(link.outbox) == [EnvelopeKind.HEARTBEAT] * 2
    assert posted(outbox) == [
        EnvelopeKind.QUEUED,
        *[EnvelopeKind.QUEUED, EnvelopeKind.HEARTBEAT] * 2,
    ]
    counts = [
        controller_pb2.Heartbeat.FromString(envelope_pb2.Envelope.FromString(raw).payload).count
        for raw in waiting(link.outbox)
    ]
    assert counts == [1, 2]
    link.outbox.post(envelope(EnvelopeKind.BATCH, bytes(8 << 20)))
    hub.beat()
    assert posted(link.outbox)[-1] is EnvelopeKind.BATCH


def test_a_drain_with_nothing_to_end_is_over_at_once(hub):
    """Nodes are told all the same."""

    async def scenario():
        link = joined(hub, "one")
        async with asyncio.timeout(20):
            await hub.drain()
        assert posted(link.outbox) == [EnvelopeKind.DRAIN]

    asyncio.run(scenario())


def test_a_drain_ends_every_session_and_begins_none(serve):
    """It lasts until the nodes say that nothing is left; newcomers hear why they are refused."""

    async def scenario(rig):
        node = await rig.node("one")
        running, session, _ = await rig.session(node)
        waiting = await rig.client(num_workers=5)
        small = await rig.client(num_workers=1)
        for peer in (waiting, small):
            await peer.next(EnvelopeKind.QUEUED)
        draining = asyncio.ensure_future(rig.hub.drain())
        for peer in (running, waiting, small, await rig.client()):
            raw = await peer.raw()
            while envelope_pb2.Envelope.FromString(raw).kind == EnvelopeKind.QUEUED:
                raw = await peer.raw()  # those ahead of it went first
            ended = controller_pb2.SessionEnded.FromString(
                envelope_pb2.Envelope.FromString(raw).payload
            )
            assert ended.reason == Reason.END_REASON_DRAINED
            assert "shutting down" in ended.message
        assert "shutting down" in await (await rig.newcomer(name="two")).refused()
        assert (await node.next(EnvelopeKind.END_SESSION))[0] == session
        await node.next(EnvelopeKind.DRAIN)
        assert not draining.done()
        await node.send(EnvelopeKind.SESSION_GONE, session=session)
        await draining
        assert not rig.hub.cluster.sessions

    serve(scenario)


def test_whoever_waits_for_nodes_is_told_when_enough_are_there(hub):
    """Also where one that came has left again."""

    async def scenario():
        waiting = asyncio.ensure_future(hub.wait_for_nodes(2))
        joined(hub, "one")
        hub.apply(hub.cluster.node_left("one", "gone"))
        joined(hub, "two")
        await asyncio.sleep(0)
        assert not waiting.done()
        joined(hub, "three")
        await waiting

    asyncio.run(scenario())


def test_nodes_are_told_goodbye(hub):
    """With the reason, as the last thing that is written to them."""
    link = joined(hub, "one")
    hub.dismiss("it is over")
    assert posted(link.outbox) == [EnvelopeKind.REFUSED]
    assert b"it is over" in waiting(link.outbox)[-1]
    assert not link.outbox.post(b"more")


def printed(hub, session, *lines, first=0, worker=0):
    """A rank prints; its message as it came."""
    said = controller_pb2.LogLines(worker=worker, node="one", lines=lines, first=first)
    raw = envelope(EnvelopeKind.LOG, said.SerializeToString(), session=session.session)
    hub.printed(session.session, "one", said, raw)


def lines_posted(outbox):
    """The messages of lines that wait for a client: how many came before, and which they are."""
    found = [envelope_pb2.Envelope.FromString(raw) for raw in waiting(outbox)]
    said = [
        controller_pb2.LogLines.FromString(e.payload) for e in found if e.kind == EnvelopeKind.LOG
    ]
    return [(each.first, list(each.lines)) for each in said]


def kept_lines(hub, session):
    """What `disco logs` shows of a session."""

    async def read():
        parts = [part async for part in hub.logs.of(session.session).read()]
        return [line for part in parts for each in part.printed for line in each.lines.lines]

    return asyncio.run(read())


def test_what_a_slow_client_misses_is_counted_and_said_to_it(hub):
    """The rest is for `disco logs` all the same; the count comes when there is room again."""
    session, outbox = asked(hub)
    printed(hub, session, "one", "two")
    outbox.post(bytes(8 << 20))
    printed(hub, session, "three", first=2)
    outbox._queues.clear()  # the client has read
    hub.beat()
    assert lines_posted(outbox) == [(3, [])]
    hub.beat()
    assert lines_posted(outbox) == [(3, [])], "it is said once"
    printed(hub, session, "four", first=3)
    assert lines_posted(outbox)[1:] == [(3, ["four"])]
    assert kept_lines(hub, session) == ["one", "two", "three", "four"]


def test_a_session_that_prints_on_all_its_nodes_has_a_budget_here_too(hub):
    """Beyond it nothing is kept or passed on but the number of lines; others have their own."""
    session, outbox = asked(hub)
    other, others = asked(hub, name="other")
    line, passed = "x" * 100_000, 0
    for number in range(400):
        printed(hub, session, line, first=number)
        passed += len(lines_posted(outbox))
        outbox._queues.clear()  # the client reads at once
    assert 100 < passed < 300
    printed(hub, other, "heard")
    assert lines_posted(others) == [(0, ["heard"])]
    hub.beat()
    assert lines_posted(outbox) == [(400, [])]
    assert kept_lines(hub, session)[-1].endswith("lines dropped")
