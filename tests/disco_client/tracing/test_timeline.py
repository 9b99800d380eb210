"""What a program does while it is traced."""

from __future__ import annotations

import sys
import threading

import pytest

from disco_client.command_log import CommandLog
from disco_client.tracing import timeline as module
from disco_client.tracing.clocks import Clock, ClockSample
from disco_client.tracing.timeline import TimedArrays, TimedInbox, Timeline
from disco_client.wire.codec import Action

SITE = sys._getframe().f_code, 0


def test_commands_that_leave_together_are_noted_with_their_lines():
    """From the first one that woke the sender to where they left."""
    log, timeline = CommandLog(1), Timeline()
    log.watch(timeline)
    for _ in range(3):
        log.issue(Action.SYNC_WORKER, reg=0)
    log.take_batch()
    log.left(3)
    log.issue(Action.SYNC_WORKER, reg=0)
    log.take_batch()
    first, second = timeline.flight(Clock()).sent
    assert (first.first, len(first.sites), second.first) == (1, 3, 4)
    assert first.began_ns <= first.ended_ns <= second.began_ns <= second.ended_ns
    assert {code.co_filename for code, _, _ in first.sites} == {__file__}


class Waiting:
    """Stands for an inbox and a transport: says what it was asked."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def call(*args):
            self.asked.append((name, args))
            if args and args[0] == 13:
                raise OSError("told to fail")

        return call


def test_waits_are_noted_also_those_that_fail():
    """With the command, and on the row of their thread; all else is passed on."""
    inbox, timeline = Waiting(), Timeline()
    timed = TimedInbox(inbox, timeline)
    timed.wait(5, None)
    timed.reach([0], None, None)
    with pytest.raises(OSError, match="told to fail"):
        timed.look(13, None)
    timed.forget(5)
    assert [name for name, _ in inbox.asked] == ["wait", "reach", "look", "forget"]
    spans = timeline.flight(Clock()).spans
    assert [(s.category, s.seq, s.thread) for s in spans] == [
        ("wait", seq, threading.current_thread().name) for seq in (5, 0, 13)
    ]


def test_copies_are_noted_with_their_bytes():
    """Up and down; all else is passed on."""
    transport, timeline = Waiting(), Timeline()
    timed = TimedArrays(transport, timeline)
    timed.upload(1, 2, memoryview(bytes(30)))
    timed.download(3, 4, memoryview(bytearray(50)))
    timed.give_up([])
    assert [name for name, _ in transport.asked] == ["upload", "download", "give_up"]
    spans = timeline.flight(Clock()).spans
    assert [(s.name, s.nbytes, s.worker) for s in spans] == [("upload", 30, 2), ("download", 50, 4)]


def test_times_are_brought_to_the_clock_of_the_ranks():
    """And what was too much to keep is counted."""
    timeline = Timeline()
    timeline.leave(1, [SITE])
    timeline.note("sync", "wait", 5)
    plain, moved = (timeline.flight(Clock(s)) for s in ([], [ClockSample(1, 10**6, 3)]))
    assert moved.sent[0].ended_ns - plain.sent[0].ended_ns == 10**6
    assert moved.spans[0].began_ns == 10**6 + 5
    assert (moved.clock_offset_ns, moved.clock_error_ns) == (10**6, 3)
    assert plain.missing == ()


def test_what_is_too_much_to_keep_is_counted(monkeypatch):
    """The first notes stay."""
    monkeypatch.setattr(module, "MOST", 2)
    timeline = Timeline()
    for number in range(1, 5):
        timeline.leave(number, [SITE])
    flight = timeline.flight(Clock(), ["something else"])
    assert [sent.first for sent in flight.sent] == [1, 2]
    assert flight.missing == ("something else", "2 batches, waits and copies of the client")
