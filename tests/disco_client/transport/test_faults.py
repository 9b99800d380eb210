"""Faults on purpose: what the environment may ask for, and what then happens to messages."""

from __future__ import annotations

import logging
import time

import pytest

from disco_client.errors import ConfigError
from disco_client.transport import fault_injection
from disco_client.transport.fault_injection import VARIABLE, InjectedCut, passage, through
from disco_client.wire.codec import Kind, envelope

BATCHES = [envelope(Kind.BATCH, b"", first_seq=number) for number in range(1, 6)]


@pytest.fixture
def ask(monkeypatch):
    """Asks for faults as a user would; the count begins anew."""

    def ask_for(text):
        monkeypatch.setattr(fault_injection, "_current", fault_injection._Faults("", ()))
        monkeypatch.setenv(VARIABLE, text)

    return ask_for


def numbers(messages):
    """Which of the five came, in order."""
    return [BATCHES.index(raw) + 1 for raw in messages]


def test_without_the_variable_a_stream_is_left_as_it_is(monkeypatch):
    """The very same iterator comes back, so faults cost nothing where they are off."""
    monkeypatch.delenv(VARIABLE, raising=False)
    stream = iter(BATCHES)
    assert through("client.send", stream) is stream
    assert passage("node.send") is None


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
    ],
)
def test_messages_are_lost_doubled_and_swapped_as_asked(ask, what, came):
    """Exactly the messages that are named, counted from one; the others pass in order."""
    ask(f"client.send:{what}")
    assert numbers(through("client.send", iter(BATCHES))) == came
    assert numbers(through("client.receive", iter(BATCHES))) == [1, 2, 3, 4, 5]


def test_a_cut_breaks_the_stream_and_the_next_one_is_whole(ask):
    """The message is lost; the count goes on over the streams, so it happens once."""
    ask("client.send:cut=3")
    came = []
    with pytest.raises(InjectedCut, match=r"breaks the stream at client\.send"):
        came.extend(through("client.send", iter(BATCHES)))
    came = list(through("client.send", iter(BATCHES)))
    assert numbers(came) == [1, 2, 3, 4, 5]


def test_only_envelopes_of_the_named_kind_are_counted(ask):
    """A heartbeat between them is not one of three batches."""
    ask("node.send[BATCH]:drop=2")
    beat = envelope(Kind.HEARTBEAT)
    messages = [BATCHES[0], beat, BATCHES[1], beat, BATCHES[2]]
    assert list(through("node.send", messages)) == [BATCHES[0], beat, beat, BATCHES[2]]


def test_a_delay_holds_up_what_follows_too(ask):
    """The stream's order stays, only later."""
    ask("client.receive:delay=1/0.2")
    began = time.monotonic()
    assert numbers(through("client.receive", iter(BATCHES))) == [1, 2, 3, 4, 5]
    assert time.monotonic() - began >= 0.2


def test_odds_meet_the_same_messages_for_the_same_seed(ask):
    """About as many as the odds say, and another seed meets others."""

    def survivors(text):
        ask(text)
        stream = [envelope(Kind.BATCH, first_seq=number) for number in range(1, 401)]
        return list(through("client.send", stream))

    first = survivors("client.send:drop=25%;seed=1")
    assert 200 < len(first) < 390
    assert survivors("client.send:drop=25%;seed=1") == first
    assert survivors("client.send:drop=25%;seed=2") != first


def test_the_first_entry_that_meets_a_message_counts(ask):
    """Each entry still counts every message, so both mean the same third one."""
    ask("client.send:duplicate=3; client.send:drop=3")
    assert numbers(through("client.send", iter(BATCHES))) == [1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client.send", "POINT[KIND]:ACTION=WHICH such as"),
        ("client.middle:drop=1", "one of the points client.send, client.receive"),
        ("client.send:explode=1", "one of the actions drop, cut, duplicate, delay, swap"),
        ("client.send[NOISE]:drop=1", "one of the kinds BATCH, REPLY"),
        ("client.send:drop=0", "messages such as 3, 3-5 or 2.5%"),
        ("client.send:drop=5-3", "messages such as"),
        ("client.send:drop=100%", "messages such as"),
        ("client.send:drop=1.2.3%", "messages such as"),
        ("client.send:delay=1", "seconds behind a delay"),
        ("client.send:drop=1/2", "seconds behind a delay"),
        ("seed=x", "seed=NUMBER"),
        ("client.send:drop=1 client.send:drop=2", "POINT[KIND]"),
    ],
)
def test_a_malformed_wish_is_refused_with_what_was_expected(ask, text, expected):
    """Nobody tests without faults because of a slip in the variable."""
    ask(text)
    with pytest.raises(ConfigError) as raised:
        fault_injection.check()
    assert expected in str(raised.value)
    assert VARIABLE in str(raised.value)


def test_that_faults_are_on_is_said_once(ask, caplog):
    """A warning with the wish, however many streams there are."""
    ask("client.send:drop=7")
    with caplog.at_level(logging.WARNING, logger="disco.faults"):
        fault_injection.check()
        through("client.send", iter(BATCHES))
    assert [record.getMessage() for record in caplog.records] == [
        "faults on purpose, because DISCO_TEST_FAULTS is set: client.send:drop=7"
    ]
