"""What ranks do is known from outside, for sessions of every kind and whatever they do."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

import disco_client as di
from disco_client.wire.reports import RankState


@pytest.fixture
def workers_of_their_own(kind):
    """Only for kinds whose workers can be killed and stopped without this program."""
    assert kind.processes


FOUR = pytest.mark.layouts((4, 1))


def in_background(call):
    """Starts a call that waits in a thread of its own; returns how to wait for its end."""
    raised = []

    def run():
        try:
            call()
        except di.DiscoError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end():
        thread.join(30)
        assert not thread.is_alive()
        return raised

    return end


@FOUR
def test_an_idle_session_says_so(session, eventually):
    """With every rank's place, process and last command; no rank is in anything."""
    session.sync_all()

    def idle():
        # What was released since the last command may be on its way.
        found = session.diagnose()
        return found if "all ranks are idle: nothing is under way" in str(found) else None

    found = eventually(idle, what="an idle session")
    assert found.session == session.name
    assert [(r.worker, r.node, r.pid) for r in found.ranks] == [
        (place.worker, place.node, place.pid) for place in session.workers
    ]
    assert {report.current for report in found.ranks} == {None}
    assert {report.finished.seq for report in found.ranks} <= {found.issued, found.issued - 1}
    assert {report.state for report in found.ranks} == {RankState.RUNNING}


@FOUR
def test_a_rank_that_never_entered_a_collective_is_named_with_what_it_does(
    session, tools, waiter, eventually
):
    """While another thread waits; with the collective, its number and what it moves."""
    array = session.empty((3, 2), "float32")
    session.allreduce(array, array)
    session.sync_all()
    tools.call("wait_on", 2, str(waiter))
    session.allreduce(array, array)
    end = in_background(session.sync_all)

    def found():
        diagnosis = session.diagnose()
        there = diagnosis.verdict.startswith("rank 2 has not entered allreduce(sum) #")
        there = there and "ranks 0, 1 and 3 wait there" in diagnosis.verdict
        return diagnosis if there and "in wait_for_file" in diagnosis.ranks[2].stack else None

    diagnosis = eventually(found, what="three ranks in the collective")
    verdict = diagnosis.verdict
    assert "float32[3, 2]" in verdict
    assert "it has been in user function conformance.wait_on (command #" in verdict
    waiting, busy = diagnosis.ranks[0], diagnosis.ranks[2]
    assert waiting.collective.members == (0, 1, 2, 3)
    assert waiting.collective.shape == (3, 2)
    assert waiting.collective.dtype == "float32"
    assert waiting.collective.nbytes == 24
    assert waiting.collective.seq == waiting.current.seq
    assert busy.collective is None
    assert "in wait_for_file" in str(diagnosis)
    assert "wait_for_file" in diagnosis._repr_html_()
    assert json.loads(json.dumps(diagnosis.as_dict()))["ranks"][2]["current"]["what"] == (
        "conformance.wait_on"
    )
    waiter.touch()
    assert end() == []


@FOUR
def test_the_records_show_what_ran_and_which_collectives_in_it(session, tools, tmp_path):
    """On one axis of time, in order, with failures; and as a trace with a part for each rank."""
    array = session.empty((5,), "float64")
    session.allreduce(array, array, op="max")
    tools.call("fail_on", [1], "told to")
    with pytest.raises(di.RemoteException):
        session.sync_all()
    flight = session.flight()
    assert [rank.worker for rank in flight.ranks] == [0, 1, 2, 3]
    for rank in flight.ranks:
        last = [command for command in rank.commands if command.name == "conformance.fail_on"][-1]
        assert last.failed == (rank.worker == 1)
        assert 0 < last.start_ns <= last.end_ns
        seqs = [command.seq for command in rank.commands]
        assert seqs == list(range(seqs[0], seqs[-1] + 1))
        collective = rank.collectives[-1]
        assert (collective.name, collective.dtype) == ("allreduce(max)", "float64")
        assert (collective.shape, collective.nbytes) == ((5,), 40)
        around = next(c for c in rank.commands if c.seq == collective.seq)
        assert around.start_ns <= collective.entered_ns <= collective.left_ns <= around.end_ns
    flight.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.partition(" on ")[0] for name in names] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    moved = [event for event in events if event["name"] == "allreduce(max)"]
    assert {event["args"]["bytes"] for event in moved} >= {40}


def test_a_long_wait_is_reported_once_and_goes_on(
    open_session, tools_of, waiter, eventually, monkeypatch, printed
):
    """On standard error, with the verdict; the call returns as if nothing had happened."""
    monkeypatch.setenv("DISCO_HANG_REPORT_S", "0.5")
    session = open_session(2)
    tools_of(session).call("wait_on", 1, str(waiter))
    # A machine that is busy may take longer to get there than the report is waited for.
    verdict = "rank 1 has been in user function conformance.wait_on (command #"
    eventually(lambda: verdict in str(session.diagnose()), what="that rank 1 waits")
    end = in_background(session.sync_all)

    def reported():
        said = printed()
        return "goes on waiting" in said and "stack of rank 1:" in said

    eventually(reported, what="the report of the wait")
    assert verdict in printed()
    waiter.touch()
    assert end() == []
    assert printed().count("goes on waiting") == 1


@FOUR
def test_nobody_is_accused_in_a_loop_of_small_collectives(session, eventually):
    """At every moment some rank waits for one that comes at once; all go on, and this is said."""
    array = session.empty((8,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    stop = threading.Event()

    def work():
        while not stop.is_set():
            for _ in range(500):
                session.allreduce(array, array)
            session.sync_all()

    end = in_background(work)
    found = []

    def looked_often():
        found.append(session.diagnose().verdict)
        return sum("slow, still progressing: #" in verdict for verdict in found) >= 8

    try:
        eventually(looked_often, what="verdicts on a session that goes on")
    finally:
        stop.set()
    assert end() == []
    assert [v for v in found if "never entered" in v or "not entered" in v] == []


def test_the_report_on_a_slow_program_accuses_nobody(
    open_session, eventually, monkeypatch, printed
):
    """It says how many of the commands all ranks have executed."""
    monkeypatch.setenv("DISCO_HANG_REPORT_S", "0.1")
    session = open_session(3)
    array = session.empty((8,), "float32")
    nap = session.get_global_func("conformance.nap")
    session.allreduce(array, array)
    session.sync_all()
    before = len(printed())

    def reported():
        for _ in range(100):  # which take longer than the second after which it is looked
            nap(0.015)
            session.allreduce(array, array)
        session.sync_all()
        return "slow, still progressing: #" in printed()[before:]

    eventually(reported, what="the report of a wait")
    said = printed()[before:]
    assert "goes on waiting" in said
    assert "never entered" not in said
    assert "not entered" not in said


def test_the_report_on_a_missing_rank_names_it(
    open_session, tools_of, waiter, eventually, monkeypatch, printed
):
    """The first report does, unless the ranks go on at that time; then the next one."""
    monkeypatch.setenv("DISCO_HANG_REPORT_S", "0.1")
    session = open_session(3)
    tools = tools_of(session)
    array = session.empty((8,), "float32")
    session.allreduce(array, array)
    # Once the library has begun: a wait for that would be reported, and no other one afterwards.
    session.sync_all()
    before = len(printed())
    for number in range(200):
        if number == 100:
            tools.call("wait_on", 1, str(waiter))
        session.allreduce(array, array)
    end = in_background(session.sync_all)
    eventually(
        lambda: "ranks 0 and 2 wait there" in printed()[before:], what="the report of the wait"
    )
    said = printed()[before:]
    assert "verdict: rank 1 has not entered allreduce(sum) #" in said
    assert "it has been in user function conformance.wait_on (command #" in said
    waiter.touch()
    assert end() == []


def test_a_stopped_process_is_named_and_not_waited_for(open_session, workers_of_their_own):
    """The system says that it is stopped; its records are read all the same."""
    session = open_session(2)
    session.sync_all()
    pid = session.workers[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        found = session.diagnose()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"rank 1's process {pid} is stopped" in found.verdict
    assert f"kill -CONT {pid}" in found.verdict
    assert found.ranks[1].state is RankState.STOPPED
    assert found.ranks[1].finished is not None
    session.sync_all()


def test_the_stack_of_a_rank_that_holds_the_interpreter_is_shown(
    open_session, tools_of, workers_of_their_own, eventually
):
    """It is in C code and answers nothing, and still says where it is."""
    session = open_session(2)
    session.sync_all()
    tools_of(session).call("hold_interpreter_on", 1)
    end = in_background(session.sync_all)
    eventually(
        lambda: "in hold_interpreter_on" in session.diagnose().ranks[1].stack,
        what="the stack of rank 1",
    )
    assert "rank 1 has been in user function conformance.hold" in session.diagnose().verdict
    session.shutdown()
    assert end()


def test_what_a_killed_rank_did_is_read_afterwards(
    open_session, tools_of, workers_of_their_own, waiter, eventually
):
    """From memory that outlives it: its last command has begun, and not ended."""
    session = open_session(2)
    tools = tools_of(session)
    tools.call("echo", 7)
    session.sync_all()
    tools.call("wait_for_file", str(waiter))
    eventually(
        lambda: all(report.current for report in session.diagnose().ranks), what="busy ranks"
    )
    os.kill(session.workers[1].pid, signal.SIGKILL)
    with pytest.raises(di.SessionError):
        session.sync_all()
    flight = session.flight()
    names = [command.name for command in flight.ranks[1].commands]
    assert names[-1] == "conformance.wait_for_file"
    assert "conformance.echo" in names
    assert flight.ranks[1].commands[-1].end_ns == 0
    assert session.diagnose().ranks[1].state is RankState.ENDED


def test_a_step_of_a_program_is_shown(open_session, tools_of, waiter, eventually):
    """Which program runs, and which of its steps."""
    session = open_session(2)
    wait = session.get_global_func("conformance.wait_on")
    echo = session.get_global_func("conformance.echo")
    with session.capture("decode") as program:
        echo(1)
        wait(1, str(waiter))
    program()
    end = in_background(session.sync_all)

    def shown():
        return "step 2 of program 'decode'" in session.diagnose().verdict

    eventually(shown, what="the step in the verdict")
    waiter.touch()
    assert end() == []
