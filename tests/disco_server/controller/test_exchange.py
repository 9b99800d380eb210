"""The rendezvous with waiting: every wait ends by a value, a time or the session's end."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disco_client.pb import node_pb2
from disco_server.controller.relay import Exchanges
from fakes import begun

ONE, OTHER = 7, 8
LONG = 20.0


@pytest.fixture
def play():
    """Runs a scenario with the exchanges of two sessions, within a limit."""

    def run(scenario):
        async def limited():
            exchanges = Exchanges()
            exchanges.open(ONE)
            exchanges.open(OTHER)
            async with asyncio.timeout(LONG):
                await scenario(exchanges)

        asyncio.run(limited())

    return run


def arrival(participant, timeout=LONG, participants=2, session=ONE, **items):
    return node_pb2.FenceRequest(
        session=session,
        name="cards",
        participant=participant,
        participants=participants,
        items={key: value.encode() for key, value in items.items()},
        timeout_s=timeout,
    )


def test_a_get_waits_for_the_put_of_its_own_session(play):
    """The same key of another session is another key."""

    async def scenario(exchanges):
        early = await begun(exchanges.get(ONE, "id", LONG))
        exchanges.put(OTHER, {"id": b"theirs"})
        for _ in range(5):
            await asyncio.sleep(0)
        assert not early.done()
        exchanges.put(ONE, {"id": b"ours", "more": b"x"})
        assert await early == b"ours"
        assert await exchanges.get(ONE, "id", 0.0) == b"ours"
        assert await exchanges.get(OTHER, "id", 0.0) == b"theirs"

    play(scenario)


def test_a_key_is_written_once(play):
    """The same value again is no harm; another one is refused by the key's name."""

    async def scenario(exchanges):
        exchanges.put(ONE, {"id": b"first"})
        exchanges.put(ONE, {"id": b"first"})
        with pytest.raises(ConnectionError, match="'id' was written before"):
            exchanges.put(ONE, {"id": b"second"})
        assert await exchanges.get(ONE, "id", LONG) == b"first"

    play(scenario)


def test_a_get_that_nobody_answers_ends_in_time_and_leaves_nothing(play):
    """It says which key; and a getter that went away is not waited for either."""

    async def scenario(exchanges):
        with pytest.raises(ConnectionError, match=r"nobody wrote 'id' within 0\.01 s"):
            await exchanges.get(ONE, "id", 0.01)
        gone = await begun(exchanges.get(ONE, "id", LONG))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        rendezvous = exchanges._open[ONE]
        assert (rendezvous._waiting, rendezvous._getters) == (0, {})
        exchanges.put(ONE, {"id": b"late"})
        assert await exchanges.get(ONE, "id", LONG) == b"late"

    play(scenario)


def test_all_leave_a_fence_with_what_all_brought(play):
    """Nobody before the last has come; the items are keys from then on."""

    async def scenario(exchanges):
        getter = await begun(exchanges.get(ONE, "b", LONG))
        first = await begun(exchanges.fence(arrival(1, b="two")))
        assert not first.done()
        assert not getter.done()
        both = {"a": b"one", "b": b"two"}
        answer = await exchanges.fence(arrival(0, a="one"))
        assert dict(node_pb2.FenceResult.FromString(answer).items) == both
        assert await first is answer, "it is encoded once"
        assert await getter == b"two"

    play(scenario)


def test_contradicting_arrivals_are_refused_and_the_others_wait_on(play):
    """One confused node's call ends; the fence completes when the right one comes."""

    async def scenario(exchanges):
        first = await begun(exchanges.fence(arrival(0)))
        for wrong, text in (
            (arrival(0), "came twice"),
            (arrival(1, participants=3), "says 3"),
            (arrival(2), "not one of 2"),
        ):
            with pytest.raises(ConnectionError, match=text):
                await exchanges.fence(wrong)
        assert not first.done()
        await exchanges.fence(arrival(1))
        await first

    play(scenario)


def test_a_fence_that_not_all_reach_ends_for_everyone_with_the_same_reason(play):
    """Also for whoever comes or asks later: the exchange cannot go on without it."""

    async def scenario(exchanges):
        patient = await begun(exchanges.fence(arrival(0, participants=3)))
        getter = await begun(exchanges.get(ONE, "id", LONG))
        why = r"not every node came to 'cards' within 0\.01 s"
        with pytest.raises(ConnectionError, match=why):
            await exchanges.fence(arrival(1, timeout=0.01, participants=3))
        for waiting in (
            patient,
            getter,
            exchanges.fence(arrival(2, participants=3)),
            exchanges.get(ONE, "id", LONG),
        ):
            with pytest.raises(ConnectionError, match=why):
                await waiting
        with pytest.raises(ConnectionError, match=why):
            exchanges.put(ONE, {"id": b"x"})
        exchanges.put(OTHER, {"id": b"x"})

    play(scenario)


def test_the_end_of_a_session_ends_its_waits_with_the_reason(play):
    """Those of other sessions wait on, and later calls hear that it is over."""

    async def scenario(exchanges):
        waiting = [
            await begun(exchanges.get(ONE, "id", LONG)),
            await begun(exchanges.fence(arrival(0))),
        ]
        other = await begun(exchanges.get(OTHER, "id", LONG))
        exchanges.close(ONE, "worker 3 was killed")
        exchanges.close(ONE, "again")
        for wait in waiting:
            with pytest.raises(ConnectionError, match="worker 3 was killed"):
                await wait
        for call in (exchanges.get(ONE, "id", LONG), exchanges.fence(arrival(0))):
            with pytest.raises(ConnectionError, match="the session is over"):
                await call
        with pytest.raises(ConnectionError, match="the session is over"):
            exchanges.put(ONE, {"id": b"x"})
        exchanges.put(OTHER, {"id": b"here"})
        assert await other == b"here"

    play(scenario)


# Through gRPC -------------------------------------------------------------------------


def test_nodes_of_a_session_meet_through_its_exchange(serve):
    """By put and get, and by a fence that leaves when all have come."""

    async def scenario(rig):
        one, two = await rig.node("one", 1), await rig.node("two", 1)
        _, session, _ = await rig.session(one, two)
        mine = {"session": session, "node_key": one.key}
        get = node_pb2.GetRequest(**mine, key="id", timeout_s=30)
        getting = asyncio.ensure_future(rig.ask("RendezvousService/Get", get, node_pb2.GetResult))
        put = node_pb2.PutRequest(session=session, node_key=two.key, items={"id": b"unique"})
        await rig.ask("RendezvousService/Put", put, node_pb2.PutResult)
        assert (await getting).value == b"unique"
        fence = {"name": "cards", "participants": 2, "timeout_s": 30}
        fences = [
            node_pb2.FenceRequest(
                session=session,
                node_key=node.key,
                participant=number,
                items={f"card{number}": node.name.encode()},
                **fence,
            )
            for number, node in enumerate((one, two))
        ]
        asked = [rig.ask("RendezvousService/Fence", each, node_pb2.FenceResult) for each in fences]
        for result in await asyncio.gather(*asked):
            assert dict(result.items) == {"card0": b"one", "card1": b"two"}
        late = node_pb2.GetRequest(**mine, key="never", timeout_s=0.01)
        code, text = await rig.status(rig.ask("RendezvousService/Get", late, node_pb2.GetResult))
        assert (code, text) == (grpc.StatusCode.ABORTED, "nobody wrote 'never' within 0.01 s")

    serve(scenario)


def test_the_exchange_is_closed_to_nodes_that_do_not_run_the_session(serve):
    """Also to registered ones, and to whoever only guesses a key."""

    async def scenario(rig):
        inside, outside = await rig.node("in"), await rig.node("out")
        _, session, _ = await rig.session(inside)
        for key in (outside.key, b"", b"x" * 16):
            put = node_pb2.PutRequest(session=session, node_key=key, items={"id": b"forged"})
            call = rig.ask("RendezvousService/Put", put, node_pb2.PutResult)
            assert (await rig.status(call))[0] is grpc.StatusCode.PERMISSION_DENIED

    serve(scenario)
