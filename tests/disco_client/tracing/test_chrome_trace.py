"""Flight records as a file in Chrome's trace format."""

from __future__ import annotations

import io
import json
import sys

import pytest
from traces import check_chrome_trace, rows, spans

from disco_client.call_sites import locate
from disco_client.scopes import NO_SCOPE
from disco_client.tracing.chrome_trace import ChromeTrace
from disco_client.tracing.rank_flights import RankFlight
from disco_client.tracing.ring import CollectiveRecord, CommandRecord
from disco_client.tracing.timeline import ClientFlight, Sent, TimelineSpan
from disco_client.tracing.trace import Flight
from disco_client.wire.codec import Action

SITE = sys._getframe().f_code, 0, NO_SCOPE


def call(seq, start, end, **more):
    """A call of a function; times are in microseconds."""
    return CommandRecord(seq, Action.CALL_PACKED, "step", start * 1000, end * 1000, **more)


def allreduce(seq, entered, left, met=0):
    """One of sixteen bytes between ranks 0 and 1."""
    times = (entered * 1000, met * 1000, left * 1000)
    return CollectiveRecord(1, seq, 0, "allreduce(sum)", "float32", (4,), 16, (0, 1), *times)


def copy(seq, start, end, action=Action.COPY_TO_WORKER0):
    """A copy to or from a rank."""
    return CommandRecord(seq, action, "", start * 1000, end * 1000)


def rank(worker, commands, collectives=(), **more):
    """What one rank did."""
    return RankFlight(worker, f"node-{worker}", 70 + worker, commands, collectives, **more)


RANKS = (
    rank(0, (call(1, 10, 40), copy(2, 40, 60), call(3, 60, 0)), (allreduce(1, 12, 38),)),
    rank(
        1,
        (call(1, 15, 41), copy(2, 41, 41)._replace(elsewhere=True)),
        (allreduce(1, 30, 39, met=31),),
        clock_offset_ns=5000,
        clock_error_ns=250,
        missing=("commands #3 to #9",),
    ),
)
CLIENT = ClientFlight(
    7,
    (Sent(1, (SITE, SITE), 2_000, 5_000), Sent(3, (SITE,), 6_000, 6_000)),
    (
        TimelineSpan("upload", "copy", "MainThread", 5_000, 9_000, nbytes=80, worker=1),
        TimelineSpan("sync", "wait", "MainThread", 9_000, 70_000, seq=2),
    ),
    missing=("node b did not answer for a while",),
)


@pytest.fixture
def trace():
    """All of the above as a trace."""
    return Flight("training", RANKS, CLIENT).chrome_trace()


def test_the_file_keeps_to_the_rules_of_the_format(trace):
    """And the same comes of writing it piece by piece."""
    check_chrome_trace(trace)
    out = io.StringIO()
    ChromeTrace("training", RANKS, CLIENT).write(out)
    assert json.loads(out.getvalue()) == trace
    empty = io.StringIO()
    ChromeTrace("nothing", (), None).write(empty)
    assert check_chrome_trace(json.loads(empty.getvalue())) == []


def test_there_is_a_process_for_each_rank_and_one_for_the_program(trace):
    """With rows for what there is of each."""
    assert rows(trace) == {
        "client": {"commands issued", "thread MainThread"},
        "rank 0 on node-0": {"commands", "collectives", "waits for other ranks", "copies"},
        "rank 1 on node-1": {"commands", "collectives", "waits for other ranks"},
    }


def test_commands_are_called_by_what_they_do(trace):
    """With their numbers and their marks; one that runs lasts until the end of the trace."""
    first, to_rank, running = spans(trace, "command", 0)
    assert (first["name"], first["ts"], first["dur"]) == ("step", 8.0, 30.0)
    assert to_rank["name"] == "copy_to_worker_0"
    assert running["args"] == {"command": 3, "running": True}
    assert running["ts"] + running["dur"] == 68.0
    _, elsewhere = spans(trace, "command", 1)
    assert elsewhere["args"] == {"command": 2, "for_another_worker": True}


def test_collectives_say_what_they_move(trace):
    """And for how long a rank waited until the last one came, or until they agreed."""
    (collective,) = spans(trace, "collective", 0)
    assert collective["args"] == {
        "command": 1,
        "number": 1,
        "dtype": "float32",
        "shape": [4],
        "bytes": 16,
        "workers": [0, 1],
    }
    (wait,) = spans(trace, "wait", 0)
    assert (wait["name"], wait["ts"], wait["dur"]) == ("wait in allreduce(sum)", 10.0, 18.0)
    (wait,) = spans(trace, "wait", 1)
    assert (wait["ts"], wait["dur"]) == (28.0, 1.0)


def test_a_rank_whose_peers_are_not_known_waits_until_it_goes_on():
    """As where one of them did not answer; nothing else can be told."""
    alone = Flight("x", (rank(0, (call(1, 10, 40),), (allreduce(1, 12, 38),)),)).chrome_trace()
    (wait,) = spans(alone, "wait")
    assert wait["dur"] == 26.0


def test_copies_have_a_row_of_their_own(trace):
    """With their direction; only on the rank that copies."""
    (to_rank,) = spans(trace, "copy", 0)
    assert to_rank["args"] == {"command": 2, "direction": "host to rank"}
    assert spans(trace, "copy", 1) == []
    (upload,) = spans(trace, "copy", -1)
    assert upload["args"] == {"bytes": 80, "worker": 1}


def test_arrows_lead_from_the_program_to_the_ranks(trace):
    """From where commands left to the first of them, on each rank that began it."""
    arrows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    assert [(event["id"], event["ph"], event["pid"], event["ts"]) for event in arrows] == [
        ("1.0", "s", 0, 3.0),
        ("1.0", "f", 1, 8.0),
        ("1.1", "s", 0, 3.0),
        ("1.1", "f", 2, 13.0),
        ("3.0", "s", 0, 4.0),
        ("3.0", "f", 1, 58.0),
    ]


def test_what_left_together_says_which_lines_issued_it(trace):
    """And a wait which command it was for."""
    issued, _ = spans(trace, "issue")
    line = f"{__file__}:{locate(SITE).line}"
    assert issued["name"] == "#1 to #2"
    assert issued["args"] == {"first": 1, "commands": 2, "issued_at": {line: 2}}
    (wait,) = spans(trace, "wait", -1)
    assert (wait["name"], wait["args"]) == ("wait for copy_to_worker_0", {"command": 2})


def test_the_file_says_how_good_it_is(trace):
    """How clocks were corrected, by how much that may be wrong, and what is missing."""
    said = trace["otherData"]
    assert said["clocks"] == [
        {"client": 7, "offset_us": 0.0, "error_us": 0.0},
        {"rank": 0, "node": "node-0", "offset_us": 0.0, "error_us": 0.0},
        {"rank": 1, "node": "node-1", "offset_us": 5.0, "error_us": 0.25},
    ]
    assert said["missing"] == [
        "rank 1: commands #3 to #9",
        "node b did not answer for a while",
    ]
