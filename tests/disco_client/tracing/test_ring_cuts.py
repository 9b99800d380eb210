"""What is new in a rank's records, and that nothing is lost between two looks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.tracing.ring import COLLECTIVES, SLOTS, STEP, read_flight
from disco_client.tracing.ring_cuts import FlightDelta, Since, cut_memory
from disco_client.wire.codec import Action
from disco_server.observe.flight import SLOT_MASK, FlightRecorder

CALL = Action.CALL_PACKED


def run(recorder, first, last, *, finish=True):
    """Records a batch of calls as the executor does; each enters a collective."""
    due = recorder.begin(first)
    what = recorder.label_of(CALL, "f")
    form = recorder.describe("allreduce(sum)", "float32", 4, (0, 1), (2, 3))
    for seq in range(first, last + 1):
        recorder.kinds[seq & SLOT_MASK] = what
        recorder.enter(form, seq, seq, 0)
        if finish or seq < last:
            recorder.leave()
            if seq >= due:
                due = recorder.stamp(seq)
    if finish:
        recorder.finish(last)


def look(recorder, since):
    """Cuts and reads once: the cut, and how far the rank was followed with it."""
    cut = FlightDelta.of(cut_memory(recorder.read, since.seq, since.collectives))
    return cut, cut.follow(since)


@settings(max_examples=8)
@given(st.lists(st.integers(1, 2 * STEP), min_size=1, max_size=5))
def test_whoever_looks_often_enough_misses_nothing(sizes):
    """Each command and each collective comes once, as in the whole records."""
    recorder, last = FlightRecorder(), 0
    since, commands, collectives = Since(0, 1), [], []
    for size in sizes:
        run(recorder, last + 1, last + size)
        cut, since = look(recorder, before := since)
        record = cut.record()
        assert cut.oldest <= before.seq + 1
        assert cut.first_collective == before.collectives
        commands += [c for c in record.commands if c.seq > before.seq]
        collectives += record.collectives
        last += size
    assert [c.seq for c in commands] == list(range(1, last + 1))
    assert [c.seq for c in collectives] == list(range(1, last + 1))
    whole = read_flight(*recorder.copy(), most=last)
    assert commands[-len(whole.commands) :] == list(whole.commands)
    assert collectives[-len(whole.collectives) :] == list(whole.collectives)


def test_what_is_not_over_comes_again():
    """The command that runs and the collective that it is in."""
    recorder = FlightRecorder()
    run(recorder, 1, 3, finish=False)
    cut, since = look(recorder, Since(0, 1))
    assert since == Since(0, 1, 2, 2)
    assert cut.record().current.seq == cut.record().collective.seq == 3
    recorder.leave()
    recorder.stamp(3)
    cut, since = look(recorder, since)
    record = cut.record()
    assert [(c.seq, c.end_ns > 0) for c in record.commands if c.seq > 2] == [(3, True)]
    assert [c.seq for c in record.collectives] == [3]
    assert record.collectives[0].left_ns
    assert since == Since(0, 1, 3, 3)
    cut, after = look(recorder, since)
    assert after == since
    assert not cut.rows


def test_a_cut_says_what_was_overwritten():
    """Where nobody looked while the rings went round."""
    recorder = FlightRecorder()
    run(recorder, 1, SLOTS + 2 * STEP)
    cut, since = look(recorder, Since(0, 1, 10, 10))
    assert cut.oldest > 11
    assert [c.seq for c in cut.record().commands][-1] == since.seq == SLOTS + 2 * STEP
    assert min(c.seq for c in cut.record().commands) <= cut.oldest + 32  # timed together
    assert cut.first_collective == cut.collectives - COLLECTIVES + 1


def test_memory_that_nobody_has_written_into_gives_an_empty_cut():
    """A rank that has not begun has done nothing; other memory is refused."""
    assert cut_memory(lambda _at, size: bytes(size), 0, 0) == b""
    assert cut_memory(lambda _at, _size: b"", 0, 0) == b""
    with pytest.raises(ValueError, match="flight recorder of this version"):
        cut_memory(lambda _at, size: b"x" * size, 0, 0)


def test_what_is_no_whole_cut_is_refused():
    """Whatever is cut off of it, and whatever its numbers say."""
    recorder = FlightRecorder()
    run(recorder, 1, 5)
    raw = cut_memory(recorder.read, 0, 0)
    for damaged in (b"", raw[:40], raw[:-1], raw + b"x", raw.replace(b"DISCOFC1", b"DISCOFC0")):
        with pytest.raises(ValueError, match="cut of a flight recorder's memory"):
            FlightDelta.of(damaged)


@settings(max_examples=60)
@given(st.data())
def test_a_cut_with_any_numbers_is_read_or_refused(data):
    """Nothing but ValueError comes of it: a peer may send anything."""
    recorder = FlightRecorder()
    run(recorder, 1, 5)
    raw = bytearray(cut_memory(recorder.read, 0, 0))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        cut = FlightDelta.of(bytes(raw))
        cut.record()
        cut.follow(Since(0, 1))
    except ValueError:
        pass
