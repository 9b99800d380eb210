"""The end of a rank's records, read alone, says what all of them say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.tracing.ring import (
    COLLECTIVES,
    FORMS,
    RING_BYTES,
    SLOTS,
    FlightRecord,
    read_flight,
)
from disco_client.tracing.ring_end import FlightNow, read_now
from disco_client.wire.codec import Action
from disco_server.observe.flight import SLOT_MASK, FlightRecorder

BATCHES = st.lists(
    st.tuples(st.integers(1, SLOTS // 4), st.booleans()),
    min_size=1,
    max_size=8,
)


def run(recorder, first, last, *, finish=True):
    """Records a batch of calls as the executor does; an unfinished one was broken off."""
    due = recorder.begin(first)
    for seq in range(first, last + 1):
        recorder.kinds[seq & SLOT_MASK] = recorder.label_of(Action.CALL_PACKED, f"f{seq % 3}")
        if seq >= due and (finish or seq < last):
            due = recorder.stamp(seq)
    if finish:
        recorder.finish(last)


@settings(max_examples=15)
@given(BATCHES)
def test_what_runs_and_what_has_ended_are_those_of_all_records(batches):
    """Whatever was recorded before, in whatever strides, and whether it came to its end."""
    recorder, seq = FlightRecorder(), 0
    for size, finish in batches:
        run(recorder, seq + 1, seq + size, finish=finish)
        seq += size
        raw, emptied = recorder.copy()
        whole, now = read_flight(raw, emptied), read_now(raw, emptied).record
        assert now.current == whole.current
        assert (now.finished and now.finished.seq) == (whole.finished and whole.finished.seq)
        assert (now.finished and now.finished.end_ns) == (whole.finished and whole.finished.end_ns)
        assert len(now.commands) <= len(whole.commands)


def test_the_last_collective_is_there_and_all_are_counted():
    """With the bytes of all of them, each as often as it was entered."""
    recorder = FlightRecorder()
    recorder.begin(1)
    recorder.kinds[1] = recorder.label_of(Action.CALL_PACKED, "step")
    small = recorder.describe("allreduce(sum)", "float32", 4, (0, 1), (8,))
    large = recorder.describe("allgather", "float64", 8, (0, 1), (16, 2))
    for number, form in enumerate((small, small, large), 1):
        recorder.enter(form, number, 1, number - 1)
        recorder.meet()
        if form is small:
            recorder.leave()
    raw, emptied = recorder.copy()
    now = read_now(raw, emptied)
    assert (now.collectives, now.collective_bytes) == (3, 2 * 32 + 256)
    assert now.record.collectives == read_flight(raw, emptied).collectives[-1:]
    assert now.record.collective is not None
    assert now.record.collective.name == "allgather"


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["0,1", "0,2", "0,1,2,3"]), max_size=3 * COLLECTIVES // 2))
def test_the_last_collective_of_each_circle_is_there(groups):
    """The last of all comes last; the ring is as long as it is, and may have been round."""
    recorder, last = FlightRecorder(), {}
    recorder.begin(1)
    for number, group in enumerate(groups * 2, 1):
        members = tuple(map(int, group.split(",")))
        form = recorder.describe("allreduce(sum)", "float32", 4, members, (number,))
        recorder.enter(form, number, 1, number - 1)
        recorder.leave()
        last.pop(members, None)
        last[members] = number
    found = read_now(*recorder.copy()).record.collectives
    kept = {m: n for m, n in last.items() if n > 2 * len(groups) - FORMS}
    assert {each.members: each.number for each in found if each.members} == kept
    assert [each.number for each in found if each.members] == sorted(kept.values())


def test_memory_that_nobody_has_written_into_says_nothing():
    """A rank that has not begun; and what is no such memory is refused."""
    assert read_now(bytes(RING_BYTES)) == read_now(b"") == FlightNow(FlightRecord())
    with pytest.raises(ValueError, match="flight recorder of this version"):
        read_now(b"x" * RING_BYTES)
