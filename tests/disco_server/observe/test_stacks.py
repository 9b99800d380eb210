"""Stacks of processes that cannot be asked for them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys

import pytest

from disco_client.wire.flight import RING_BYTES
from disco_client.wire.inspection import RankState
from disco_server.observe.stacks import MEMORY_VARIABLE, RankMemory, open_flight, process_state

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


def test_a_process_that_holds_the_interpreter_writes_its_stack(memory, eventually):
    """Again and again; what was written before is gone."""
    with running(STUCK, memory) as process:

        def asked():
            memory.ask_for_stack(process.pid)
            eventually(lambda: memory.read_stack()[0].endswith("in <module>\n"), what="a stack")
            return memory.read_stack()[0]

        eventually(lambda: "in stuck" in asked(), what="the stack of the function")
        assert asked().count("in stuck") == 1


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
        faulthandler.unregister(signal.SIGURG)
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
