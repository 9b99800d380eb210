"""Stacks of processes that cannot be asked for them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys

import pytest

from disco_client.tracing.ring import RING_BYTES
from disco_client.wire.reports import RankState
from disco_server.observe.processes import process_state
from disco_server.observe.rank_memory import RankMemory
from disco_server.observe.rank_reports import Subject, inspect_ranks
from disco_server.observe.stacks import (
    FORCED_STACK_SIGNAL,
    MEMORY_VARIABLE,
    STACK_SIGNAL,
    _write_stack,
    open_flight,
)

STUCK = """
import itertools, os
from disco_server.observe.stacks import open_flight
open_flight(os.environ)
def stuck():
    sum(itertools.repeat(0))
print(flush=True)
stuck()
"""


@pytest.fixture
def memory():
    """Shared with the processes of a test."""
    memory = RankMemory()
    yield memory
    memory.close()


@contextlib.contextmanager
def running(program, memory):
    """A process with the memory, once it has printed a line."""
    environ = {**os.environ, MEMORY_VARIABLE: str(memory.fd)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environ,
        pass_fds=(memory.fd,),
        stdout=subprocess.PIPE,
    ) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def stack_of(process, memory):
    """The stack that a look at a process brings."""
    (report,) = inspect_ranks([Subject(0, "node", process.pid, memory)], stacks=True, flights=False)
    return report.stack


def test_a_process_that_holds_the_interpreter_writes_its_stack(memory, eventually):
    """Again and again; what was written before is gone."""
    with running(STUCK, memory) as process:
        eventually(lambda: "in stuck" in stack_of(process, memory), what="the function's stack")
        assert max(stack_of(process, memory).count("in stuck") for _ in range(5)) == 1


BUSY = """
import json, os, sys, threading, time
from disco_server.observe.stacks import open_flight
open_flight(os.environ)
sys.setswitchinterval(1e-5)
def dig(n):
    if not n:
        raise ValueError
    try:
        dig(n - 1)
    except ValueError:
        raise KeyError from None
def work():
    while True:
        try:
            dig(3)
        except Exception:
            json.dumps({"a": [1, {"b": 3}]}, indent=2)
def wait_in_turns():
    while True:
        time.sleep(0.0001)
        sum(i for i in range(20))
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print(flush=True)
work() if "work" in os.environ["PART"] else wait_in_turns()
"""


@pytest.mark.parametrize("part", ["work", "wait_in_turns"])
def test_nobody_dies_of_being_looked_at(memory, part, monkeypatch):
    """Frames that change while a stack is read are never followed: they may be gone already."""
    monkeypatch.setenv("PART", part)
    with running(BUSY, memory) as process:
        stacks = [stack_of(process, memory) for _ in range(800)]
        assert process.poll() is None
    # A process that stands still meanwhile, as on a busy machine, writes nothing.
    assert all("in <module>" in stack for stack in stacks if stack)
    assert sum(f"in {part}" in stack for stack in stacks) > 500


def test_who_asks_no_longer_gets_no_stack(memory):
    """An answer that comes late does not spoil what was written meanwhile."""
    _write_stack(memory.fd, sys._getframe())
    assert memory.read_stack()[0] == ""
    os.pwrite(memory.fd, b"?", RING_BYTES)
    _write_stack(memory.fd, sys._getframe())
    text, whole = memory.read_stack()
    assert whole
    assert f"in {sys._getframe().f_code.co_name}" in text.splitlines()[0]


def test_a_stack_that_ends_as_that_of_a_rank_is_whole(memory):
    """So nobody has to wait whether more comes."""
    os.pwrite(memory.fd, b'  File "<frozen runpy>", line 198 in _run_module_as_main\n', RING_BYTES)
    assert memory.read_stack()[1]
    os.pwrite(memory.fd, b"x" * 80, RING_BYTES)
    assert not memory.read_stack()[1]


def test_the_memory_is_forgotten_by_the_environment_and_no_child_has_it():
    """What a rank starts must not write there."""
    memory = RankMemory()
    os.set_inheritable(memory.fd, True)
    environ = {MEMORY_VARIABLE: str(memory.fd)}
    try:
        open_flight(environ)
        assert environ == {}
        assert not os.get_inheritable(memory.fd)
    finally:
        faulthandler.unregister(FORCED_STACK_SIGNAL)
        signal.signal(STACK_SIGNAL, signal.SIG_DFL)
        memory.close()


def test_without_memory_there_are_records_for_nobody():
    """A rank that somebody starts by hand works all the same."""
    recorder = open_flight({})
    recorder.begin(1)
    recorder.finish(1)


def test_states_of_processes_are_told_apart(memory, eventually):
    """Running, stopped, ended; one that nobody has collected has ended too."""
    with running(STUCK, memory) as process:
        assert process_state(process.pid) is RankState.RUNNING
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: process_state(process.pid) is RankState.STOPPED, what="the stop")
        process.kill()
        eventually(lambda: process_state(process.pid) is RankState.ENDED, what="the end")
    assert process_state(process.pid) is RankState.ENDED


def test_what_is_kept_can_be_read_after_the_memory_is_closed(memory):
    """Otherwise there is nothing any more."""
    before = memory.read()
    memory.close(keep=True)
    memory.close()
    assert memory.read() == before
    other = RankMemory()
    other.close()
    assert other.read() == (b"", 0)
    assert other.read_stack() == ("", True)
