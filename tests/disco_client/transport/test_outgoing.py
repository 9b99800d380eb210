"""What leaves over one stream after another: everything, in order, and kept while needed."""

from __future__ import annotations

import threading

import pytest

from conversing import converse
from disco_client import SessionClosed
from disco_client.transport.outgoing import Outgoing
from disco_client.wire.codec import Action, EncodedEnvelope


@pytest.fixture
def client():
    return converse()


@pytest.fixture
def log(client):
    return client.log


@pytest.fixture
def out(client):
    """Started with the commands of a log; its streams end with the test."""
    made = Outgoing()
    made.client = client
    yield made
    made.end()


def call(log):
    log.issue(Action.CALL_PACKED, func=1, reg=int)


def seqs(raws):
    read = [EncodedEnvelope.FromString(raw) for raw in raws]
    return [(each.first_seq, each.last_seq) for each in read]


def take(stream, count):
    return [next(stream) for _ in range(count)]


def test_commands_wait_until_they_are_released(out, log):
    """What the transport says goes ahead of them, and a farewell comes last."""
    call(log)
    stream = iter(out.stream(b"first"))
    assert next(stream) == b"first"
    out.say(b"said")
    assert next(stream) == b"said"
    out.start(out.client, b"farewell")
    assert seqs(take(stream, 1)) == [(1, 1)]
    call(log)
    log.close(SessionClosed("done"), drop=False)
    assert seqs(take(stream, 1)) == [(2, 2)]
    assert list(stream) == [b"farewell"]


def test_the_next_stream_sends_again_what_is_missing(out, log):
    """From the command on that the peers have; what all have executed is not kept."""
    first = iter(out.stream(b"first"))
    out.start(out.client, b"")
    next(first)
    for _ in range(4):
        call(log)
        next(first)
    log.acknowledge(0, 2)
    call(log)
    second = iter(out.stream(b"second"))
    assert next(second) == b"second"
    out.rewind(0)
    out.release()
    assert seqs(take(second, 3)) == [(1, 1), (2, 2), (3, 3)]  # kept as long as nothing new leaves
    assert seqs(take(second, 2)) == [(4, 4), (5, 5)]
    out.rewind(0)
    assert seqs(take(second, 3)) == [(3, 3), (4, 4), (5, 5)]
    out.rewind(4)
    assert seqs(take(second, 1)) == [(5, 5)]


def test_what_one_node_lacks_goes_to_that_node_alone(out, log):
    """Once, however often it says so, and before what is new; the others get nothing again."""
    stream = iter(out.stream(b"first"))
    out.start(out.client, b"")
    next(stream)
    for _ in range(3):
        call(log)
        next(stream)
    call(log)
    for _ in range(2):
        out.rewind(1, 0)
    again = take(stream, 2)
    assert seqs(again) == [(2, 2), (3, 3)]
    assert [EncodedEnvelope.FromString(raw).worker_plus_one for raw in again] == [1, 1]
    (new,) = take(stream, 1)
    assert EncodedEnvelope.FromString(new).worker_plus_one == 0
    assert seqs([new]) == [(4, 4)]


def test_a_stream_that_is_out_of_date_takes_nothing(out, log):
    """Not even where its thread waits for commands when the next one begins."""
    first = iter(out.stream(b"first"))
    out.start(out.client, b"")
    next(first)
    left = []
    waiting = threading.Thread(target=lambda: left.extend(first))
    waiting.start()
    second = iter(out.stream(b"second"))
    next(second)
    out.release()
    call(log)
    waiting.join(20)
    assert not waiting.is_alive()
    assert left == []
    assert seqs(take(second, 1)) == [(1, 1)]


def test_ending_wakes_who_waits(out, log):
    """Held back, or waiting for commands."""
    for start in (False, True):
        stream = iter(out.stream(b"first"))
        if start:
            out.start(out.client, b"farewell")
        next(stream)
        waiting = threading.Thread(target=lambda stream=stream: list(stream))
        waiting.start()
        out.end()
        waiting.join(20)
        assert not waiting.is_alive()


def test_the_farewell_can_be_another(out, log):
    """As for a program that leaves its session to others."""
    stream = iter(out.stream(b"first"))
    out.start(out.client, b"close")
    out.part_with(b"detach")
    log.close(SessionClosed("left"), drop=False)
    assert list(stream) == [b"first", b"detach"]


def test_an_envelope_is_the_same_until_it_left(out, log):
    """An exception between taking it and sending it loses nothing, and repeats no other."""
    stream = out.stream(b"first")
    out.start(out.client, b"farewell")
    out.say(b"said")
    call(log)
    for expected in (b"first", b"said"):
        assert stream.take() == expected
        raw = stream.take()
        assert raw == expected
        stream.left(raw)
    assert seqs([stream.take(), stream.take()]) == [(1, 1), (1, 1)]
    call(log)
    out.rewind(0)
    assert seqs([stream.take(), stream.take()]) == [(1, 1), (1, 1)]
    stream.left(stream.take())
    assert seqs([stream.take()]) == [(2, 2)]
    stream.left(stream.take())
    assert stream.take() is None
