"""What is found out about processes that run, hang, are stopped, or have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib

import pytest

from disco_client.tracing.ring import read_flight
from disco_client.wire.reports import RankState
from disco_server.observe.flight import FlightRecorder
from disco_server.observe.rank_memory import RankMemory
from disco_server.observe.rank_reports import Subject, inspect_ranks, report_memory
from disco_server.observe.stacks import MEMORY_VARIABLE

PROGRAM = """
import itertools, os, sys
from disco_server.observe.stacks import open_flight
flight = open_flight(os.environ)
flight.begin(1)
flight.kinds[1] = flight.label_of(3, "load_batch")
print(flush=True)
def load_batch():
    sum(itertools.repeat(0))
load_batch()
"""
DEAF = (
    "import signal; signal.signal(signal.SIGURG, signal.SIG_IGN); print(flush=True); signal.pause()"
)


@pytest.fixture
def start():
    """Starts a program with memory of its own; what to look at."""
    processes = []

    def start_one(program, worker=0):
        memory = RankMemory()
        environ = {**os.environ, MEMORY_VARIABLE: str(memory.fd)}
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environ,
            pass_fds=(memory.fd,),
            stdout=subprocess.PIPE,
        )
        process.stdout.readline()
        processes.append((process, memory))
        return Subject(worker, "here", process.pid, memory)

    yield start_one
    for process, memory in processes:
        process.kill()
        process.stdout.close()
        process.wait()
        memory.close()


def test_a_busy_process_is_reported_with_its_command_and_stack(start, eventually):
    """For how long, and where it is."""
    subject = start(PROGRAM, 3)

    def inside():
        (found,) = inspect_ranks([subject], stacks=True, flights=True)
        return found if "in load_batch" in found.stack else None

    report = eventually(inside, what="the function on the stack")
    assert (report.worker, report.node, report.state) == (3, "here", RankState.RUNNING)
    assert (report.current.seq, report.current.name) == (1, "load_batch")
    assert report.current.seconds > 0
    assert report.note == ""
    record = read_flight(zlib.decompress(report.flight), report.emptied)
    assert record.current.name == "load_batch"


def test_what_was_not_asked_for_is_not_fetched(start):
    """Neither the stack nor the memory."""
    (report,) = inspect_ranks([start(PROGRAM)], stacks=False, flights=False)
    assert (report.stack, report.note, report.flight) == ("", "", b"")
    assert report.current.name == "load_batch"


def test_a_stopped_process_is_not_waited_for(start, eventually):
    """One that runs beside it is reported as ever."""
    stopped, busy = start(PROGRAM, 0), start(PROGRAM, 1)
    os.kill(stopped.pid, signal.SIGSTOP)

    def reports():
        found = inspect_ranks([stopped, busy], stacks=True, flights=False)
        stopped_now = found[0].state == RankState.STOPPED
        return found if stopped_now and "in load_batch" in found[1].stack else None

    first, _ = eventually(reports, what="the stop, and the other one's stack")
    assert first.note == f"the process is stopped; kill -CONT {stopped.pid} lets it go on"
    assert first.current.name == "load_batch"


def test_a_process_that_does_not_answer_says_so(start):
    """After a second, and with what is known otherwise."""
    (report,) = inspect_ranks([start(DEAF)], stacks=True, flights=False)
    assert (report.stack, report.HasField("current")) == ("", False)
    assert "did not write its stack" in report.note


def test_what_has_ended_is_read_and_not_signalled(start):
    """Its number may be another process's by now."""
    subject = start(PROGRAM)
    os.kill(subject.pid, signal.SIGKILL)
    os.waitpid(subject.pid, 0)
    for known in (False, True):
        subject.ended = known
        (report,) = inspect_ranks([subject], stacks=True, flights=False)
        assert report.state == RankState.ENDED
        assert report.note == "the process has ended"
        assert report.current.name == "load_batch"


def test_numbers_that_no_rank_writes_are_not_reported():
    """Of an array larger than any, which user code wrote there; the rank is reported still."""
    recorder = FlightRecorder()
    recorder.begin(1)
    recorder.kinds[1] = recorder.label_of(3, "step")
    recorder.enter(recorder.describe("allreduce", "int8", 1, (0, 1), (1 << 32,) * 3), 1, 1, 0)
    report = report_memory(4, "here", 5, *recorder.copy(), flights=False)
    assert (report.worker, report.pid, report.state) == (4, 5, RankState.RUNNING)
    assert not report.HasField("collective")
