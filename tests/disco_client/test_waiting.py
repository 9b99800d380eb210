"""Long waits speak up once, and never fail for it."""

from __future__ import annotations

import math
import threading

import pytest

from disco_client.command_log import CommandLog
from disco_client.errors import ConfigError, SessionError
from disco_client.waiting import AUTO, LongWaits, read_hang_report


@pytest.mark.parametrize(
    ("value", "environ", "expected"),
    [
        (AUTO, {}, 30.0),
        (AUTO, {"DISCO_HANG_REPORT_S": "5"}, 5.0),
        (AUTO, {"DISCO_HANG_REPORT_S": "0"}, math.inf),
        (AUTO, {"DISCO_HANG_REPORT_S": ""}, 30.0),
        (2, {"DISCO_HANG_REPORT_S": "5"}, 2.0),
        (0, {}, math.inf),
        (None, {"DISCO_HANG_REPORT_S": "5"}, math.inf),
    ],
)
def test_what_is_said_in_the_program_counts_before_the_environment(value, environ, expected):
    """Zero and None mean never; what nobody says is 30 seconds."""
    assert read_hang_report(value, environ) == expected


@pytest.mark.parametrize("value", ["soon", -2, True, math.nan, []])
def test_what_is_no_time_is_refused(value):
    """With what was expected and what came."""
    with pytest.raises(ConfigError, match="hang_report: expected a number of seconds"):
        read_hang_report(value, {})
    with pytest.raises(ConfigError, match="DISCO_HANG_REPORT_S"):
        read_hang_report(AUTO, {"DISCO_HANG_REPORT_S": "soon"})


def waited(wait, seconds):
    """The same wait, so much later."""
    return wait._replace(began=wait.began - seconds, quiet=wait.quiet - seconds)


def reports_of(capfd, found):
    """What is printed at each look of a wait."""
    left = [(verdict, verdict, goes_on) for verdict, goes_on in found]
    waits = LongWaits(1.5, lambda: left.pop(0))
    wait, printed = waits.look(None), []
    for _ in found:
        wait = waits.look(waited(wait, 2))
        printed.append(capfd.readouterr().err)
    return printed


def standing(verdict):
    return lambda: (verdict, verdict, False)


def test_a_wait_is_reported_when_it_is_long_and_once(capfd):
    """Other waits are told apart; the report is what the description says."""
    waits = LongWaits(1.5, standing("rank 2 sleeps"))
    fresh = waits.look(None)
    assert capfd.readouterr().err == ""
    long = waits.look(waited(fresh, 1))
    printed = capfd.readouterr().err
    assert "rank 2 sleeps" in printed
    assert "and goes on waiting" in printed
    waits.look(waited(long, 1000))
    assert capfd.readouterr().err == ""
    waits.look(waited(fresh, 1))
    assert "rank 2 sleeps" in capfd.readouterr().err


def test_a_wait_for_what_goes_on_is_reported_again_when_it_stands(capfd):
    """That it goes on is said once; what then stands once too."""
    stands = [(f"rank 2 sleeps for {seconds} s", False) for seconds in (0.5, 3, 70)]
    printed = reports_of(capfd, [("slow", True), ("slow", True), *stands])
    assert ["slow" in text for text in printed] == [True] + 4 * [False]
    assert ["sleeps for 0.5 s" in text for text in printed] == [False, False, True, False, False]
    assert printed[3:] == ["", ""]


def test_a_wait_that_stands_for_another_reason_is_reported_again(capfd):
    """What was first seen may not be the reason: a rank was on its way, or a node silent."""
    verdicts = ["rank 1 sleeps", "rank 1 sleeps", "node 'a' is silent", "rank 1 sleeps"]
    printed = reports_of(capfd, [(verdict, False) for verdict in verdicts])
    assert [text.rpartition("\n")[0].rpartition("\n")[2] for text in printed] == [
        "rank 1 sleeps",
        "",
        "node 'a' is silent",
        "rank 1 sleeps",
    ]


def test_a_description_that_fails_does_not_end_the_wait(capfd):
    """It is said why there is none."""

    def fail():
        raise SessionError("nobody answers")

    assert LongWaits(0.5, fail).look(None).told
    assert "cannot be found out: nobody answers" in capfd.readouterr().err


def test_a_call_that_waits_for_room_is_reported_too(printed, eventually):
    """Acknowledgements come in meanwhile, and the call goes on when there is room."""
    log = CommandLog(1, window=1)
    log.window.long_waits = LongWaits(
        0.5, lambda: (f"acked {log.statistics()['acked']}", "", False)
    )
    log.issue_call(1, [], int)
    thread = threading.Thread(target=log.issue_call, args=(1, [], int))
    thread.start()
    eventually(lambda: "acked 0" in printed(), what="the report")
    log.acknowledge(0, 1)
    thread.join(20)
    assert not thread.is_alive()
    assert log.last_seq == 2
