"""The tests' own tool that injects faults does to messages what its entries say."""

from __future__ import annotations

import pytest

from disco_client import connect
from disco_client.wire.codec import EnvelopeKind, envelope
from fault_tools.streams import Faults, InjectedCut, Passage, injected

BATCHES = [envelope(EnvelopeKind.BATCH, b"", first_seq=number) for number in range(1, 6)]


def passed(faults, messages):
    """Which of the five pass, in order."""
    way = Passage(faults, "client.send").blocking(messages)
    return [BATCHES.index(raw) + 1 for raw in way]


@pytest.mark.parametrize(
    ("what", "came"),
    [
        ("drop=3", [1, 2, 4, 5]),
        ("drop=2-4", [1, 5]),
        ("duplicate=2", [1, 2, 2, 3, 4, 5]),
        ("swap=2", [1, 3, 2, 4, 5]),
        ("swap=5", [1, 2, 3, 4]),
        ("delay=1/0.01", [1, 2, 3, 4, 5]),
        ("drop=9", [1, 2, 3, 4, 5]),
        ("duplicate=3; client.send:drop=3", [1, 2, 3, 3, 4, 5]),
        ("drop=1-5; client.receive:drop=1", []),
    ],
)
def test_messages_are_lost_doubled_and_swapped_as_asked(what, came):
    """Exactly the messages that are named, counted from one; the others pass in order."""
    assert passed(Faults(f"client.send:{what}"), BATCHES) == came


def test_a_cut_breaks_the_stream_and_the_next_one_is_whole():
    """The message is lost; the count goes on over the streams, so it happens once."""
    faults = Faults("client.send:cut=3")
    with pytest.raises(InjectedCut, match=r"the stream at client\.send"):
        passed(faults, BATCHES)
    assert passed(faults, BATCHES) == [1, 2, 3, 4, 5]


def test_only_envelopes_of_the_named_kind_are_counted():
    """A heartbeat between them is not one of three batches."""
    beat = envelope(EnvelopeKind.HEARTBEAT)
    messages = [BATCHES[0], beat, BATCHES[1], beat, BATCHES[2]]
    way = Passage(Faults("node.send[BATCH]:drop=2"), "node.send").blocking(messages)
    assert list(way) == [BATCHES[0], beat, beat, BATCHES[2]]


def test_odds_meet_the_same_messages_for_the_same_seed():
    """About as many as the odds say, and another seed meets others."""

    def survivors(text):
        return passed(Faults(text), BATCHES * 80)

    first = survivors("client.send:drop=25%;seed=1")
    assert 200 < len(first) < 390
    assert survivors("client.send:drop=25%;seed=1") == first
    assert survivors("client.send:drop=25%;seed=2") != first


@pytest.mark.parametrize(
    "entry",
    ["client.send", "client.middle:drop=1", "client.send:lose=1", "client.send[NOISE]:drop=1"]
    + [f"client.send:{what}" for what in ("drop=3-", "drop=1/2", "delay=1", "drop=1 2")],
)
def test_a_malformed_entry_is_refused(entry):
    """No test runs without faults because of a slip."""
    with pytest.raises(ValueError, match="expected POINT"), injected(entry):
        pass


def test_every_point_of_both_daemons_and_the_client_is_met(daemons):
    """Delays at each of them leave a session whole, and each is written down."""
    at_controller = {
        "controller.from_client[BATCH]",
        "controller.to_client[REPLY]",
        "controller.from_node[REPLY]",
        "controller.to_node[BATCH]",
    }
    at_node = {"node.receive[BATCH]", "node.send[REPLY]"}
    at_client = {"client.send[BATCH]", "client.receive[REPLY]"}
    delays = {
        where: ";".join(f"{point}:delay=1/0.05" for point in points)
        for where, points in (("c", at_controller), ("n", at_node), ("p", at_client))
    }
    controller = daemons.controller(faults=delays["c"])
    worker = daemons.worker(controller.address, "--slots", "1", faults=delays["n"])
    with injected(delays["p"]), connect(controller.address, num_workers=1, logs=False) as session:
        session.sync_all()
    for daemon, points in ((controller, at_controller), (worker, at_node)):
        for point in points:
            assert f"{point.partition('[')[0]}: delay of message 1" in daemon.stderr
