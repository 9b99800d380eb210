"""Reading what a rank recorded, whatever state it is in."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.tracing.ring import (
    COLLECTIVE,
    COLLECTIVES,
    COLLECTIVES_AT,
    COMMANDS,
    FORM,
    FORMS,
    FORMS_AT,
    MAGIC,
    NAMES_AT,
    RING_BYTES,
    SLOTS,
    STEP,
    FlightRecord,
    read_flight,
)
from disco_client.wire.codec import Action
from disco_server.observe.flight import SLOT_MASK, FlightRecorder

CALL = Action.CALL_PACKED


def run(recorder, first, last, *, finish=True):
    """Records a batch of calls as the executor does."""
    due = recorder.begin(first)
    what = recorder.label_of(CALL, "f")
    for seq in range(first, last + 1):
        recorder.kinds[seq & SLOT_MASK] = what
        if seq >= due and (finish or seq < last):
            due = recorder.stamp(seq)
    if finish:
        recorder.finish(last)


def test_memory_that_nobody_has_written_into_is_empty():
    """A rank that has not begun has done nothing."""
    assert read_flight(bytes(RING_BYTES)) == FlightRecord()
    assert read_flight(b"") == FlightRecord()


def test_other_memory_is_refused():
    """So is that of another version."""
    with pytest.raises(ValueError, match="flight recorder of this version"):
        read_flight(b"x" * RING_BYTES)


@settings(max_examples=30)
@given(st.lists(st.integers(1, SLOTS // 4), min_size=1, max_size=12))
def test_every_command_of_the_last_ten_thousand_is_there_in_order(sizes):
    """However they came in batches; each began when or after the one before did."""
    recorder, last = FlightRecorder(), 0
    for size in sizes:
        run(recorder, last + 1, last + size)
        last += size
    commands = read_flight(*recorder.copy()).commands
    assert [c.seq for c in commands] == list(range(max(1, last - COMMANDS + 1), last + 1))
    assert all(c.name == "f" and c.action == CALL for c in commands)
    assert all(0 < c.start_ns <= c.end_ns for c in commands)
    assert all(a.start_ns <= b.start_ns for a, b in pairwise(commands))


def test_the_command_that_runs_has_no_end():
    """It is the last one, and the one before it has ended."""
    recorder = FlightRecorder()
    run(recorder, 1, 5, finish=False)
    record = read_flight(*recorder.copy())
    assert (record.current.seq, record.current.end_ns) == (5, 0)
    assert record.finished.seq == 4


def test_what_is_overwritten_while_it_is_copied_is_left_out():
    """The counter after the copy says what may have been."""
    recorder = FlightRecorder()
    run(recorder, 1, SLOTS)
    raw, emptied = recorder.copy()
    later = read_flight(raw, emptied + STEP, most=SLOTS).commands
    assert later[-1].seq == SLOTS
    assert later[0].seq >= emptied + STEP - SLOTS > 1


@pytest.mark.parametrize("most", [1, 31, 32, 33, 10_000])
def test_the_last_ones_are_those_that_a_whole_reading_ends_with(most):
    """Also where other ranks' commands leave gaps, and several are timed together."""
    recorder, seq = FlightRecorder(), 0
    for size in (700, 5, 20_000, 1, 40_000):
        run(recorder, seq + 1, seq + size)
        seq += size + 3 * size // 2
    whole = read_flight(*recorder.copy(), most=SLOTS).commands
    assert read_flight(*recorder.copy(), most=most).commands == whole[-most:]


def test_a_collective_is_current_until_it_is_left_or_its_command_ends():
    """One that raised was not left, and is over with its command."""
    recorder = FlightRecorder()
    form = recorder.describe("allreduce(sum)", "", 0, (0, 1), ())
    recorder.begin(1)
    recorder.kinds[1] = recorder.label_of(CALL, "f")
    recorder.enter(form, 1, 1, 0)
    current = read_flight(*recorder.copy()).collective
    assert (current.name, current.members, current.met_ns) == ("allreduce(sum)", (0, 1), 0)
    recorder.meet()
    assert read_flight(*recorder.copy()).collective.met_ns >= current.entered_ns
    recorder.finish(1)
    assert read_flight(*recorder.copy()).collective is None


def test_a_long_circle_that_every_record_names_costs_its_memory_once():
    """Whoever can write into the memory cannot make its reader take a thousand times as much."""
    group = b"1," * 16_000
    ring = bytearray(RING_BYTES)
    named = 2 + len(group)
    struct.pack_into("<8Q", ring, 0, MAGIC, SLOTS, COLLECTIVES, named, 0, 0, 0, 0)
    ring[NAMES_AT : NAMES_AT + named] = len(group).to_bytes(2, "little") + group
    for index in range(COLLECTIVES):
        at = COLLECTIVES_AT + index * COLLECTIVE.size
        COLLECTIVE.pack_into(ring, at, index, 1, 0, index % FORMS, 1, 1, 1, 0)
    for form in range(FORMS):
        FORM.pack_into(ring, FORMS_AT + form * FORM.size, form, 0, 0, 1, 0, 8, 0, 0, 0, 0, 0)
    records = read_flight(bytes(ring)).collectives
    assert len(records) == COLLECTIVES - 1
    assert len(records[0].members) == 16_000
    assert len({id(record.members) for record in records}) == 1
