"""Clients that come back, and clients that go on where another left."""

from __future__ import annotations

import asyncio
import time

import pytest

from disco_client.pb import controller_pb2, envelope_pb2
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope
from disco_server.core.session_state import SessionState

Reason = controller_pb2.EndReason
Ready = controller_pb2.SessionReady


def secret_of(session, ready):
    return {"session": session, "transfer_key": ready.transfer_key}


@pytest.mark.parametrize("broken", [True, False])
def test_a_client_comes_back_to_its_session(serve, broken):
    """Also where the controller has not noticed yet that the former connection broke."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, ready = await rig.session(node)
        if broken:
            client.call.cancel()
            await rig.until(lambda: session not in rig.hub.clients)
        again = await rig.attacher(**secret_of(session, ready))
        number, told = await again.next(EnvelopeKind.READY, Ready)
        assert (number, told) == (session, ready)
        assert told.lease_s == 10.0
        if not broken:
            assert await client.raw() is None
        batch = envelope(EnvelopeKind.BATCH, b"x", session=session, first_seq=1, last_seq=1)
        await again.call.write(batch)
        assert await node.raw() == batch
        reply = envelope(EnvelopeKind.REPLY, b"y", session=session, worker=0)
        await node.call.write(reply)
        assert await again.raw() == reply
        (table,) = rig.hub.cluster.sessions.values()
        assert (table.state, table.owner) == (SessionState.RUNNING, "you@there:2")

    serve(scenario)


def test_what_was_lost_is_asked_for_and_told_through_the_controller(serve):
    """It passes on what clients and nodes say of what they have, as it came."""

    async def scenario(rig):
        one, two = await rig.node("one", 1), await rig.node("two", 1)
        client, session, _ = await rig.session(one, two)
        for kind in (EnvelopeKind.RESUME, EnvelopeKind.RECEIVED):
            raw = envelope(kind, b"\xff not read", session=session)
            await client.call.write(raw)
            assert [await node.raw() for node in (one, two)] == [raw, raw]
        have = envelope(EnvelopeKind.HAVE, b"\xff nor this", session=session)
        await two.call.write(have)
        assert await client.raw() == have

    serve(scenario)


def test_nobody_attaches_without_the_secret_or_to_a_session_in_use(serve):
    """Each is told what it is, and the session goes on."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, ready = await rig.session(node, name="mine")
        for fields, text in (
            ({"session": session, "transfer_key": b"guess"}, "its key is another one"),
            ({"session": session}, "its key is another one"),
            ({"session": 5, "transfer_key": ready.transfer_key}, "no session '0000000000000005'"),
            ({"name": "other"}, "no session 'other' runs here"),
            ({"name": ""}, "no session"),
            ({"name": "mine"}, "in use by me@here:1"),
        ):
            rig.hub.settled_at = time.monotonic()
            ended = await (await rig.attacher(**fields)).ended()
            assert ended.reason == Reason.END_REASON_REFUSED
            assert text in ended.message
        refused = await (await rig.attacher(name="mine", protocol=PROTOCOL + 1)).refused()
        assert f"protocol {PROTOCOL + 1}" in refused
        await client.call.write(envelope(EnvelopeKind.BATCH, session=session))
        await node.next(EnvelopeKind.BATCH)
        waiting = await rig.client(name="queued")
        await waiting.next(EnvelopeKind.QUEUED)
        ended = await (await rig.attacher(name="queued")).ended()
        assert "is queued; attach to it once it runs" in ended.message

    serve(scenario)


def test_a_session_that_is_left_can_be_attached_to_by_name(serve):
    """With its id as well; whoever attaches gets its secret, and other programs the reason."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, ready = await rig.session(node, name="mine", ccl="mpi")
        wish = controller_pb2.DetachSession(lease_s=1000.0)
        await client.send(EnvelopeKind.DETACH, wish, session=session)
        assert await client.raw() is None
        (table,) = rig.hub.cluster.sessions.values()
        assert table.state is SessionState.DETACHED
        assert 900 < table.deadline - time.monotonic() <= 1000
        another = await rig.attacher(name="mine")
        _, told = await another.next(EnvelopeKind.READY, Ready)
        assert (told.transfer_key, told.ccl, told.num_groups) == (ready.transfer_key, "mpi", 1)
        another.call.cancel()
        await rig.until(lambda: table.state is SessionState.DETACHED)
        assert table.deadline - time.monotonic() <= 10.0  # without a wish, the usual lease
        await (await rig.attacher(name=f"{session:016x}")).next(EnvelopeKind.READY, Ready)

    serve(scenario)


def test_whoever_comes_back_too_late_hears_how_it_ended(serve):
    """Also when nothing is left of the session."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, ready = await rig.session(node)
        client.call.cancel()
        await rig.until(lambda: session not in rig.hub.clients)
        (table,) = rig.hub.cluster.sessions.values()
        table.deadline = 0.0
        rig.hub.tick()
        for _ in range(2):
            ended = await (await rig.attacher(**secret_of(session, ready))).ended()
            assert ended.reason == Reason.END_REASON_CLOSED
            assert "did not come back within 10 s" in ended.message
            if rig.hub.cluster.sessions:
                await node.end_session(session)
                await rig.until(lambda: not rig.hub.cluster.sessions)

    serve(scenario)


def test_a_lone_command_does_not_wait_behind_what_another_session_has_sent(serve):
    """Row 32: at a node that reads late, it comes before most of the other one's bulk."""

    async def scenario(rig):
        node = await rig.node("one", 2)
        tenant, bulk, _ = await rig.session(node, num_workers=1)
        client, lone, _ = await rig.session(node, num_workers=1)
        count, size = 192, 128 << 10
        for seq in range(1, count + 1):
            await tenant.send(
                EnvelopeKind.BATCH,
                controller_pb2.ArrayChunk(data=bytes(size)),
                session=bulk,
                first_seq=seq,
            )
        while rig.hub.counters.to_workers < count * size:  # noqa: ASYNC110  (the edge has no event)
            await asyncio.sleep(0.01)
        await client.send(EnvelopeKind.BATCH, session=lone, first_seq=1, last_seq=1)
        came = []
        while len(came) <= count:
            came.append(envelope_pb2.Envelope.FromString(await node.raw()))
        numbers = [each.first_seq for each in came if each.session == bulk]
        assert numbers == list(range(1, count + 1))
        first = next(at for at, each in enumerate(came) if each.session == lone)
        # What has left the queue for gRPC's window, of 8 MiB here, is ahead of it.
        assert first < count * 3 // 4, first

    serve(scenario)


def test_secrets_that_a_client_should_have_refused_are_refused(serve):
    """Without what they are: a peer may send what it likes."""

    async def scenario(rig):
        await rig.node("one")
        for name, value in (("LD_PRELOAD", "hush-5c"), ("A_TOKEN", "hush-5c\0")):
            ended = await (await rig.client(secrets={name: value})).ended()
            assert ended.reason == Reason.END_REASON_REFUSED
            assert name in ended.message
            assert "hush-5c" not in ended.message

    serve(scenario)


def test_a_controller_forgets_secrets_once_ranks_start(serve):
    """Until then it keeps them, for whoever waits for slots; an end is enough as well."""

    async def scenario(rig):
        given = {"HF_TOKEN": "hush-5c"}
        first = await rig.client(secrets=given)
        await first.next(EnvelopeKind.QUEUED)
        (table,) = rig.hub.cluster.sessions.values()
        assert table.passed_on.secrets == given
        assert "hush-5c" not in repr(table)
        node = await rig.node("one")
        _, start = await node.start_ranks()
        assert dict(start.secrets) == given
        assert table.passed_on.secrets == {}
        second = await rig.client(secrets=given)
        await second.next(EnvelopeKind.QUEUED)
        waiting = next(each for each in rig.hub.cluster.sessions.values() if each is not table)
        await second.send(EnvelopeKind.CLOSE)
        await rig.until(lambda: not waiting.alive)
        assert waiting.passed_on.secrets == {}

    serve(scenario)
