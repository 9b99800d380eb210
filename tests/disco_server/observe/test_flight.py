"""What a rank writes down, and that it always can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from disco_client.tracing.ring import (
    COLLECTIVES,
    FORMS,
    LABEL_MASK,
    NAMES_BYTES,
    RING_BYTES,
    SLOTS,
    Flag,
    read_flight,
)
from disco_client.wire.codec import Action
from disco_server.observe.flight import SLOT_MASK, FlightRecorder, make_memory

CALL = Action.CALL_PACKED


@pytest.fixture
def recorder():
    """One of this process's own."""
    return FlightRecorder()


def execute(recorder, seq, name, seconds=0.0):
    """Records one command that takes a while."""
    recorder.begin(seq)
    recorder.kinds[seq & SLOT_MASK] = recorder.label_of(CALL, name)
    time.sleep(seconds)
    recorder.finish(seq)


def test_times_are_those_of_the_monotonic_clock(recorder):
    """A command that sleeps takes at least as long."""
    before = time.monotonic_ns()
    execute(recorder, 1, "sleep", 0.02)
    (command,) = read_flight(*recorder.copy()).commands
    assert before <= command.start_ns
    assert command.end_ns - command.start_ns >= 20_000_000


def test_a_slow_command_ends_the_timing_in_groups(recorder):
    """After many that take microseconds; from then on each has its own times again."""
    due = recorder.begin(1)
    seq = 0
    while due <= seq + 1:  # as long as each is timed by itself
        seq += 1
        assert seq < SLOTS, "commands without content take microseconds"
        recorder.kinds[seq & SLOT_MASK] = recorder.label_of(CALL, "fast")
        due = recorder.stamp(seq)
    while seq < due:
        seq += 1
        recorder.kinds[seq & SLOT_MASK] = recorder.label_of(CALL, "last of the group")
    time.sleep(0.02)
    assert recorder.stamp(seq) == seq + 1
    groups = {c.seq: c.group for c in read_flight(*recorder.copy()).commands}
    assert groups[1] == 1
    assert groups[seq] > 1


def test_marks_say_more_of_a_command(recorder):
    """It failed, was skipped, or concerned another worker."""
    recorder.begin(1)
    for seq, flag in enumerate((Flag.FAILED, Flag.SKIPPED, Flag.ELSEWHERE), 1):
        recorder.kinds[seq] = recorder.label_of(CALL, "f")
        recorder.mark(seq, flag)
    recorder.finish(3)
    found = read_flight(*recorder.copy()).commands
    assert [(c.failed, c.skipped, c.elsewhere) for c in found] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_names_are_kept_once_and_cut(recorder):
    """In any language; where there is no more room they are empty."""
    assert recorder.label("") == 0
    assert recorder.label("größe") == recorder.label("größe") != 0
    execute(recorder, 1, "größe")
    execute(recorder, 2, "x" * 1000)
    for number in range(NAMES_BYTES // 100):
        recorder.label(f"{number:0150}")
    assert recorder.label("one more" * 100) == 0
    assert recorder.label_of(CALL, "another") & LABEL_MASK in (0, recorder.label("another"))
    names = [command.name for command in read_flight(*recorder.copy()).commands]
    assert names[0] == "größe"
    assert set(names[1]) == {"x"}


def test_commands_that_were_left_out_leave_a_gap(recorder):
    """As when a rank takes part from a later command on."""
    execute(recorder, 1, "a")
    execute(recorder, 10 * SLOTS + 7, "b")
    execute(recorder, 10 * SLOTS + 8, "c")
    commands = read_flight(*recorder.copy()).commands
    assert [c.name for c in commands] == ["b", "c"]


def test_shapes_of_many_dimensions_keep_their_size(recorder):
    """The last extents are multiplied into one."""
    shape = (2, 3, 4, 5, 6, 7, 8)
    recorder.enter(recorder.describe("gather", "int16", 2, (0, 1), shape), 1, 1, 0)
    (found,) = read_flight(*recorder.copy()).collectives
    assert found.shape == (2, 3, 4, 5, 6 * 7 * 8)
    assert found.nbytes == 2 * 2 * 3 * 4 * 5 * 6 * 7 * 8


def test_the_last_collectives_are_kept(recorder):
    """Thousands of them, in order."""
    barrier = recorder.describe("barrier", "", 0, (0, 1), ())
    for number in range(1, COLLECTIVES + 101):
        recorder.enter(barrier, number, number, 0)
        recorder.leave()
    recorder.leave()  # in none
    numbers = [each.number for each in read_flight(*recorder.copy()).collectives]
    assert numbers == list(range(102, COLLECTIVES + 101))


def test_a_form_is_known_until_as_many_others_came(recorder):
    """What a record says of itself stays; what was overwritten is empty, never another's."""
    first = recorder.describe("broadcast", "int8", 1, (0, 3), (7,))
    recorder.enter(first, 1, 1, 0)
    for extent in range(FORMS):
        record = read_flight(*recorder.copy()).collectives[0]
        assert (record.name, record.shape, record.members) == ("broadcast", (7,), (0, 3))
        recorder.enter(recorder.describe("reduce", "int8", 1, (0, 1), (extent,)), 1, 1, 0)
    found = read_flight(*recorder.copy()).collectives
    assert (found[0].number, found[0].name, found[0].nbytes) == (1, "", 0)
    assert [record.shape for record in found[1:]] == [(extent,) for extent in range(FORMS)]


def test_the_records_outlive_a_killed_writer():
    """Another process reads them, at any moment and after a SIGKILL."""
    fd = make_memory()
    program = f"""
import os, signal
from disco_server.observe.flight import FlightRecorder, SLOT_MASK
recorder = FlightRecorder({fd.fileno()})
recorder.begin(1)
recorder.kinds[1] = recorder.label_of(3, "first")
recorder.stamp(1)
recorder.kinds[2] = recorder.label_of(3, "second")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], pass_fds=(fd.fileno(),), check=False)
    assert done.returncode == -signal.SIGKILL
    record = read_flight(os.pread(fd.fileno(), RING_BYTES, 0))
    fd.close()
    assert (record.finished.name, record.current.name) == ("first", "second")
