"""What is found out about ranks survives its way over the wire."""

from __future__ import annotations

import pytest

from disco_client.pb import controller_pb2
from disco_client.tracing.ring import CollectiveRecord, CommandRecord, FlightRecord
from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    CollectiveReport,
    CommandReport,
    EnteredReport,
    NodeSilence,
    RankReport,
    RankState,
    decode_inspection,
    encode_report,
    encode_silence,
    report_of,
    what_is_done,
)

FULL = RankReport(
    3,
    "node-1",
    1234,
    RankState.STOPPED,
    CommandReport(9, 3, "load_batch", 41.5),
    CommandReport(8, 4, "", 50.25, failed=True),
    CollectiveReport(7, 9, 1, "allreduce(sum)", "float32", (2, 3), 24, (0, 2, 3), 1.5, met=True),
    "the stack",
    "the note",
    b"memory",
    2048,
    -17,
    entered=(EnteredReport((0, 1), 7, 2, "broadcast"), EnteredReport((3,), 0, 0, "barrier")),
)
EMPTY = RankReport(0, "node-0", 1)


def test_reports_and_silences_come_back_as_they_were():
    """With everything, and with nothing but the place; ranks in their order."""
    silence = NodeSilence("node-2", (4, 5), 9.5)
    result = controller_pb2.InspectResult(
        session=5,
        name="training",
        num_workers=6,
        ranks=map(encode_report, (FULL, EMPTY)),
        silent=[encode_silence(silence)],
    )
    found = decode_inspection(controller_pb2.InspectResult.FromString(result.SerializeToString()))
    assert (found.session, found.name, found.num_workers) == (5, "training", 6)
    assert found.ranks == (EMPTY, FULL)
    assert found.silent == (silence,)


def test_a_state_of_a_later_version_is_taken_for_running():
    """Nothing wrong is claimed of such a rank."""
    raw = encode_report(EMPTY)
    raw.state = "dreaming"
    result = controller_pb2.InspectResult(ranks=[raw])
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
    current, finished, collective, entered = report_of(record, 5_000_000_000)
    assert entered == (EnteredReport((1, 2), 1, 2, "allgather"),)
    assert (current.seq, current.seconds) == (2, 2.0)
    assert (finished.seq, finished.seconds) == (1, 3.0)
    assert (collective.number, collective.seconds, collective.met) == (4, 1.0, False)
    assert collective.text == "barrier #4"
    assert report_of(FlightRecord(), 0) == (None, None, None, ())


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
