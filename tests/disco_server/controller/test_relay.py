"""The rendezvous with answers: every wait ends by a value, a time or the session's end."""

from __future__ import annotations

import asyncio

import pytest

from disco_client.pb import node_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_server.controller.relay import Exchanges

ONE, OTHER = 7, 8
LONG = 20.0
FENCED, KEY = EnvelopeKind.FENCED, EnvelopeKind.KEY


class Meeting:
    """The exchanges of two sessions, and what nodes are told by them.

    Attributes:
        told: The envelopes, with the node of each.
    """

    def __init__(self):
        self.told = []
        self.exchanges = Exchanges(lambda node, raw, session: self.told.append((node, raw)))
        self.exchanges.open(ONE)
        self.exchanges.open(OTHER)

    def ask(self, node, raw):
        self.exchanges.ask(node, EncodedEnvelope.FromString(raw))

    def answers(self):
        """What was told since this was last called: node, rank, number, and value or error."""
        told, self.told = self.told, []
        return [(node, *read(EncodedEnvelope.FromString(raw))) for node, raw in told]


def read(received):
    if received.kind == FENCED:
        result = node_pb2.FenceResult.FromString(received.payload)
        return result.name, result.error or dict(result.items)
    assert received.kind == KEY
    answer = node_pb2.KeyAnswer.FromString(received.payload)
    worker = received.worker_plus_one - 1
    return worker, received.first_seq, answer.error or answer.value


@pytest.fixture
def play():
    """Runs a scenario with a meeting of two sessions, within a limit."""

    def run(scenario):
        async def limited():
            async with asyncio.timeout(LONG):
                await scenario(Meeting())

        asyncio.run(limited())

    return run


def put(session, worker=0, number=1, **items):
    request = node_pb2.PutRequest(items={key: value.encode() for key, value in items.items()})
    return question(EnvelopeKind.PUT_KEY, request, session, worker, number)


def get(session, key, worker=0, number=1, seconds=LONG):
    request = node_pb2.GetRequest(key=key, timeout_s=seconds)
    return question(EnvelopeKind.GET_KEY, request, session, worker, number)


def question(kind, request, session, worker, number):
    payload = request.SerializeToString()
    return envelope(kind, payload, session=session, worker=worker, first_seq=number)


def arrival(participant, participants=2, session=ONE, **items):
    request = node_pb2.FenceRequest(
        name="cards",
        participant=participant,
        participants=participants,
        items={key: value.encode() for key, value in items.items()},
    )
    return envelope(EnvelopeKind.FENCE, request.SerializeToString(), session=session)


def test_a_get_waits_for_the_put_of_its_own_session(play):
    """The same key of another session is another key; each answer has its question's number."""

    async def scenario(meeting):
        meeting.ask("a", get(ONE, "id", worker=3, number=5))
        meeting.ask("b", put(OTHER, worker=1, number=2, id="theirs"))
        assert meeting.answers() == [("b", 1, 2, b"")]
        meeting.ask("b", put(ONE, worker=4, id="ours"))
        assert sorted(meeting.answers()) == [("a", 3, 5, b"ours"), ("b", 4, 1, b"")]
        meeting.ask("a", get(ONE, "id", seconds=0.0))
        meeting.ask("a", get(OTHER, "id", seconds=0.0))
        assert [said for *_, said in meeting.answers()] == [b"ours", b"theirs"]

    play(scenario)


def test_a_key_is_written_once(play):
    """The same value again is no harm; another one is refused by the key's name."""

    async def scenario(meeting):
        for value in ("first", "first", "second"):
            meeting.ask("a", put(ONE, id=value))
        *_, refused = (said for *_, said in meeting.answers())
        assert "id' was written before with another value" in refused
        meeting.ask("a", get(ONE, "id"))
        assert meeting.answers() == [("a", 0, 1, b"first")]

    play(scenario)


def test_a_get_that_nobody_answers_ends_in_time_and_leaves_nothing(play):
    """It says which key, and who comes later is answered."""

    async def scenario(meeting):
        meeting.ask("a", get(ONE, "id", seconds=0.01))
        while not meeting.told:  # noqa: ASYNC110  (the exchange sets no events for tests)
            await asyncio.sleep(0.001)
        assert meeting.answers() == [("a", 0, 1, "nobody wrote 'id' within 0.01 s")]
        rendezvous = meeting.exchanges._open[ONE]
        assert (rendezvous._waiting, rendezvous._getters) == (0, {})
        assert meeting.exchanges._limits == {}
        meeting.ask("b", put(ONE, id="late"))
        meeting.ask("a", get(ONE, "id", number=2))
        assert meeting.answers() == [("b", 0, 1, b""), ("a", 0, 2, b"late")]

    play(scenario)


def test_all_leave_a_fence_with_what_all_brought(play):
    """Nobody before the last has come; all get the same bytes, which are encoded once."""

    async def scenario(meeting):
        meeting.ask("b", arrival(1, b="two"))
        assert meeting.answers() == []
        meeting.ask("a", arrival(0, a="one"))
        (_, first), (_, second) = meeting.told
        assert first is second
        both = {"a": b"one", "b": b"two"}
        assert meeting.answers() == [("b", "cards", both), ("a", "cards", both)]

    play(scenario)


def test_who_does_not_know_whether_it_was_heard_asks_again(play):
    """Before the answer it waits on, once; after it, it is answered again."""

    async def scenario(meeting):
        for _ in range(2):
            meeting.ask("a", get(ONE, "id"))
            meeting.ask("a", arrival(0, a="one"))
        assert meeting.answers() == []
        meeting.ask("b", put(ONE, id="x"))
        meeting.ask("b", arrival(1))
        items = {"a": b"one"}
        fenced = [("a", "cards", items), ("b", "cards", items)]
        assert meeting.answers() == [("a", 0, 1, b"x"), ("b", 0, 1, b""), *fenced]
        meeting.ask("a", get(ONE, "id"))
        meeting.ask("a", arrival(0, a="one"))
        assert meeting.answers() == [("a", 0, 1, b"x"), fenced[0]]

    play(scenario)


def test_contradicting_arrivals_are_refused_and_the_others_wait_on(play):
    """One confused node is told so; the fence completes when the right one comes."""

    async def scenario(meeting):
        meeting.ask("a", arrival(0))
        for wrong, text in (
            (arrival(0), "came twice"),
            (arrival(1, participants=3), "says 3"),
            (arrival(2), "not one of 2"),
        ):
            meeting.ask("odd", wrong)
            ((node, name, why),) = meeting.answers()
            assert (node, name) == ("odd", "cards")
            assert text in why
        meeting.ask("b", arrival(1))
        assert meeting.answers() == [("a", "cards", {}), ("b", "cards", {})]

    play(scenario)


def test_the_end_of_a_session_ends_its_waits_with_the_reason(play):
    """Those of other sessions wait on, and who asks later hears that it is over."""

    async def scenario(meeting):
        meeting.ask("a", get(ONE, "id"))
        meeting.ask("a", arrival(0))
        meeting.ask("b", get(OTHER, "id"))
        meeting.exchanges.close(ONE, "worker 3 was killed")
        meeting.exchanges.close(ONE, "again")
        assert meeting.answers() == [
            ("a", 0, 1, "worker 3 was killed"),
            ("a", "cards", "worker 3 was killed"),
        ]
        for asked in (get(ONE, "id"), arrival(0), put(ONE, id="x")):
            meeting.ask("a", asked)
        assert {said for *_, said in meeting.answers()} == {"the session is over"}
        meeting.ask("c", put(OTHER, id="here"))
        assert ("b", 0, 1, b"here") in meeting.answers()

    play(scenario)


# Through streams ----------------------------------------------------------------------


def test_nodes_of_a_session_meet_through_its_exchange(serve):
    """By put and get, and by a fence that leaves when all have come."""

    async def scenario(rig):
        one, two = await rig.node("one", 1), await rig.node("two", 1)
        _, session, _ = await rig.session(one, two)
        await one.call.write(get(session, "id"))
        await two.call.write(put(session, worker=1, id="unique"))
        assert (await one.next(KEY, node_pb2.KeyAnswer))[1].value == b"unique"
        assert (await two.next(KEY, node_pb2.KeyAnswer))[1] == node_pb2.KeyAnswer()
        for number, node in enumerate((one, two)):
            await node.call.write(arrival(number, session=session, **{f"card{number}": node.name}))
        for node in (one, two):
            number, result = await node.next(FENCED, node_pb2.FenceResult)
            assert (number, result.name) == (session, "cards")
            assert dict(result.items) == {"card0": b"one", "card1": b"two"}
        await one.call.write(get(session, "never", number=2, seconds=0.01))
        _, late = await one.next(KEY, node_pb2.KeyAnswer)
        assert late.error == "nobody wrote 'never' within 0.01 s"

    serve(scenario)


def test_a_node_that_comes_back_to_a_fence_is_answered_over_its_new_stream(serve):
    """Also where the others left it while the node had no connection."""

    async def scenario(rig):
        one, two = await rig.node("one", 1, incarnation=1), await rig.node("two", 1, incarnation=2)
        client = await rig.client()
        starts = [await node.start_ranks() for node in (one, two)]
        session = starts[0][0]
        await client.raw()
        await one.call.write(arrival(0, session=session, a="one"))
        await rig.until(lambda: rig.hub.exchanges._open[session]._fences)
        one.call.cancel()
        await rig.until(lambda: "one" not in rig.hub.links)
        await two.call.write(arrival(1, session=session))
        assert (await two.next(FENCED, node_pb2.FenceResult))[1].error == ""
        runs = node_pb2.RunningSession(session=session, start=starts[0][1])
        runs.ranks.add(worker=0, node="one", pid=100, device="cpu")
        again = await rig.node("one", 1, incarnation=1, sessions=[runs])
        await again.call.write(arrival(0, session=session, a="one"))
        _, result = await again.next(FENCED, node_pb2.FenceResult)
        assert dict(result.items) == {"a": b"one"}

    serve(scenario)


def test_the_exchange_is_closed_to_nodes_that_do_not_run_the_session(serve):
    """They are told so, in the words of each question, and nothing is written."""

    async def scenario(rig):
        inside, outside = await rig.node("in"), await rig.node("out")
        _, session, _ = await rig.session(inside)
        why = "expected a node that runs this session"
        for asked in (put(session, id="forged"), get(session, "id"), put(ONE, id="forged")):
            await outside.call.write(asked)
            assert (await outside.next(KEY, node_pb2.KeyAnswer))[1].error == why
        await outside.call.write(arrival(0, 1, session=session, id="forged"))
        assert (await outside.next(FENCED, node_pb2.FenceResult))[1].error == why
        await inside.call.write(put(session, id="right"))
        assert (await inside.next(KEY, node_pb2.KeyAnswer))[1].error == ""

    serve(scenario)
