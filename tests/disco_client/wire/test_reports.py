"""What is found out about ranks survives its way over the wire."""

from __future__ import annotations

import pytest

from disco_client.pb import controller_pb2
from disco_client.tracing.clocks import ClockSample
from disco_client.tracing.ring import CollectiveRecord, CommandRecord, FlightRecord
from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    CollectiveReport,
    CommandReport,
    EnteredReport,
    FlightCopy,
    NodeSilence,
    RankReport,
    RankState,
    decode_inspection,
    decode_report,
    report_of,
    what_is_done,
)

EVERYTHING = controller_pb2.RankReport(
    worker=3,
    node="node-1",
    pid=1234,
    state="stopped",
    current=controller_pb2.CommandReport(seq=9, action=3, name="load_batch", seconds=41.5),
    finished=controller_pb2.CommandReport(seq=8, action=4, seconds=50.25, failed=True),
    collective=controller_pb2.CollectiveReport(
        number=7,
        seq=9,
        nth=1,
        name="allreduce(sum)",
        dtype="float32",
        shape=(2, 3),
        nbytes=24,
        members=(0, 2, 3),
        seconds=1.5,
        met=True,
    ),
    stack="the stack",
    note="the note",
    flight=b"memory",
    emptied=2048,
    clock_offset_ns=-17,
    memory_bytes=4096,
    collectives=5,
    collective_bytes=96,
    clock_error_ns=11,
    clock_at_ns=12,
    entered=(
        controller_pb2.EnteredReport(members=(0, 1), seq=7, nth=2, name="broadcast"),
        controller_pb2.EnteredReport(members=(3,), name="barrier"),
    ),
)
PLACE = controller_pb2.RankReport(worker=0, node="node-0", pid=1)


def test_what_a_controller_says_of_a_session_is_read_whole():
    """Ranks with everything, and with nothing but the place, in their order; silent nodes."""
    result = controller_pb2.InspectResult(
        session=5, name="training", num_workers=6, ranks=(EVERYTHING, PLACE)
    )
    result.silent.add(node="node-2", workers=(4, 5), seconds=9.5)
    found = decode_inspection(result)
    assert (found.session, found.name, found.num_workers) == (5, "training", 6)
    assert found.silent == (NodeSilence("node-2", (4, 5), 9.5),)
    assert found.ranks == (
        RankReport(0, "node-0", 1),
        RankReport(
            3,
            "node-1",
            1234,
            RankState.STOPPED,
            CommandReport(9, 3, "load_batch", 41.5),
            CommandReport(8, 4, "", 50.25, failed=True),
            CollectiveReport(
                *(7, 9, 1, "allreduce(sum)", "float32", (2, 3), 24, (0, 2, 3), 1.5), met=True
            ),
            "the stack",
            "the note",
            FlightCopy(b"memory", 2048, ClockSample(12, -17, 11)),
            memory_bytes=4096,
            collectives=5,
            collective_bytes=96,
            entered=(
                EnteredReport((0, 1), 7, 2, "broadcast"),
                EnteredReport((3,), 0, 0, "barrier"),
            ),
        ),
    )


def test_a_state_of_a_later_version_is_taken_for_running():
    """Nothing wrong is claimed of such a rank."""
    result = controller_pb2.InspectResult(ranks=[controller_pb2.RankReport(state="dreaming")])
    assert decode_inspection(result).ranks[0].state is RankState.RUNNING


def test_a_record_says_what_runs_what_ended_and_for_how_long():
    """The collective is the one of the command that runs."""
    ended = CommandRecord(1, 3, "a", 10, 2_000_000_000)
    runs = CommandRecord(2, 3, "b", 3_000_000_000, 0)
    inside = CollectiveRecord(
        4, 2, 0, "barrier", "", (), 0, (0, 1), 4_000_000_000, met_ns=0, left_ns=0
    )
    before = CollectiveRecord(
        9, 1, 2, "allgather", "int8", (), 1, (1, 2), 11, met_ns=12, left_ns=13
    )
    record = FlightRecord((ended, runs), (before, inside))
    found = decode_report(report_of(record, 5_000_000_000))
    assert found.entered == (EnteredReport((1, 2), 1, 2, "allgather"),)
    assert (found.current.seq, found.current.seconds) == (2, 2.0)
    assert (found.finished.seq, found.finished.seconds) == (1, 3.0)
    collective = found.collective
    assert (collective.number, collective.seconds, collective.met) == (4, 1.0, False)
    assert collective.text == "barrier #4"
    assert decode_report(report_of(FlightRecord(), 0)) == RankReport(0, "", 0)


@pytest.mark.parametrize(
    ("action", "name", "words"),
    [
        (Action.CALL_PACKED, "load_batch", "load_batch"),
        (Action.CALL_PACKED, "", "call"),
        (Action.GET_GLOBAL_FUNC, "numpy.dot", "get_global_func('numpy.dot')"),
        (Action.RUN_PROGRAM, "decode", "program 'decode'"),
        (Action.COPY_TO_WORKER0, "", "copy_to_worker_0"),
        (99, "", "action 99"),
        (-1, "", "action -1"),
    ],
)
def test_commands_are_named_as_users_issue_them(action, name, words):
    """Whatever number a peer sends."""
    assert what_is_done(action, name) == words
