"""Following the records of ranks; conformance/test_tracing has what comes of it."""

from __future__ import annotations

import zlib

import pytest

import disco_client as di
from disco_client.tracing import trace as tracing
from disco_client.tracing.clocks import Clock, ClockSample
from disco_client.tracing.ring import COLLECTIVES, SLOTS
from disco_client.tracing.ring_cuts import Since, cut_memory
from disco_client.tracing.trace import Samples, Track
from disco_client.wire.codec import Action
from disco_client.wire.reports import FlightCopy, RankReport
from disco_server.observe.flight import SLOT_MASK, FlightRecorder


class Rank:
    """A rank that records and is followed."""

    def __init__(self, since=0):
        self.recorder = FlightRecorder()
        self.track = Track(Since(0, 7, since), "a")
        self.last = 0

    def run(self, count):
        """Executes so many calls, each with a collective."""
        recorder, first = self.recorder, self.last + 1
        what = recorder.label_of(Action.CALL_PACKED, "f")
        form = recorder.describe("barrier", "", 0, (0, 1), ())
        self.last += count
        due = recorder.begin(first)
        for seq in range(first, self.last + 1):
            recorder.kinds[seq & SLOT_MASK] = what
            recorder.enter(form, seq, seq, 0)
            recorder.leave()
            if seq >= due:
                due = recorder.stamp(seq)
        recorder.finish(self.last)

    def fetch(self):
        """One look, as a trace does it."""
        since = self.track.since
        cut = cut_memory(self.recorder.read, since.seq, since.collectives)
        return self.track.add(RankReport(0, "a", 7, flight=FlightCopy(cut)))

    def seqs(self):
        """The commands and collectives that a trace has."""
        flight = self.track.flight(Clock())
        return [c.seq for c in flight.commands], [c.seq for c in flight.collectives]


def test_a_track_has_everything_since_its_beginning():
    """Each command and collective once; nothing of before."""
    rank = Rank(since=5)
    for count in (3, 10, 0, 1, 500):
        rank.run(count) if count else None
        rank.fetch()
    assert rank.seqs() == (list(range(6, 515)),) * 2
    assert rank.track.flight(Clock()).missing == ()


def test_how_much_has_come_says_when_to_fetch_again():
    """As a part of what may come in between; nothing new is nothing to keep."""
    rank = Rank()
    rank.run(2000)
    filled, nbytes = rank.fetch()
    assert filled == 2000 / (COLLECTIVES // 2)
    assert nbytes > 0
    assert rank.fetch() == (0.0, 0)


def test_what_was_overwritten_is_named():
    """Which commands, exactly, and how many collectives."""
    rank = Rank()
    rank.run(10)
    rank.fetch()
    rank.run(SLOTS + 3000)
    rank.fetch()
    commands, collectives = rank.seqs()
    flight = rank.track.flight(Clock())
    lost_collectives, lost_commands = flight.missing
    gap = commands.index(10) + 1
    assert commands[:gap] == list(range(1, 11))
    assert lost_commands == f"commands #11 to #{commands[gap] - 1}"
    assert commands[gap:] == list(range(commands[gap], rank.last + 1))
    assert lost_collectives.startswith(f"{rank.last - len(collectives)} collectives before")


def test_the_whole_records_of_a_session_that_has_ended_complete_a_track():
    """As a daemon keeps them; what was there already is not there twice."""
    rank = Rank()
    rank.run(40)
    rank.fetch()
    rank.run(40)
    raw, emptied = rank.recorder.copy()
    rank.track.add(RankReport(0, "a", 7, flight=FlightCopy(zlib.compress(raw), emptied)))
    assert rank.seqs() == (list(range(1, 81)),) * 2


def test_the_best_comparison_of_each_second_is_kept():
    """There are many in a second, and a long trace has many seconds."""
    samples = Samples()
    for at, offset, error in ((0, 100, 50), (5, 130, 5), (9, 90, 30), (10**9, 128, 6)):
        samples.add(ClockSample(at, offset, error))
    clock = samples.clock()
    assert clock.samples == 2
    assert (clock.offset_ns, clock.error_ns) == (129, 5)


def test_a_trace_that_grows_too_large_ends_and_says_so(tmp_path, monkeypatch, eventually):
    """What came before is in the file."""
    monkeypatch.setattr(tracing, "KEPT_BYTES", 1)
    with di.ThreadedSession(1) as session:
        with session.trace(tmp_path / "out.json") as trace:
            session.empty((2,), "float32")
            session.sync_all()
            eventually(lambda: not trace._thread.is_alive(), what="the trace to end")
        flight = trace.flight()
    assert any("MiB of records" in text for text in flight.client.missing)
    assert flight.ranks[0].commands


def test_copies_are_carried_as_before_once_a_trace_is_over(tmp_path):
    """Nothing of it stays in the session."""
    with di.ThreadedSession(1) as session:
        inbox = session._core.inbox
        with pytest.raises(KeyError), session.trace(tmp_path / "out.json"):
            raise KeyError
        assert session._core.inbox is inbox
        assert session._core.array_transport is session._core.transport
        assert session._core.log.timeline is None
