"""The child processes of a session: how they end, and what they leave: nothing."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client
from disco_client import errors
from disco_client.transport import shared_reader
from disco_server.collectives.mpich_memory import _find_files, kvsname


@pytest.mark.parametrize(
    ("function", "arguments", "status"),
    [
        ("tests.kill_on", (1,), -signal.SIGKILL),
        ("tests.exit_on", (1, 7), 7),
        ("tests.crash_on", (1,), -signal.SIGSEGV),
    ],
)
def test_a_death_ends_the_session(processes, gone, function, arguments, status):
    """The error names the worker and how it ended; the others end with it."""
    session = processes(3)
    pids = [place.pid for place in session.workers]
    session.sync_all()
    session.get_global_func(function)(*arguments)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    assert (lost.value.worker, lost.value.exit_status) == (1, status)
    if status == 7:
        assert lost.value.output[-1] == "these are my last words"
        assert "these are my last words" in str(lost.value)
    with pytest.raises(errors.WorkerLost):
        session.get_global_func("tests.echo")
    session.shutdown()
    assert gone(pids)


def test_a_death_in_idleness_is_noticed(processes, eventually):
    """Without any call that waits."""
    session = processes(2)
    session.sync_all()
    os.kill(session.workers[1].pid, signal.SIGKILL)
    eventually(lambda: session._core.log.closed, what="the session to notice")
    with pytest.raises(errors.WorkerLost, match="worker 1"):
        session.sync_worker_0()


def test_a_death_ends_a_collective(processes, gone):
    """Ranks that wait inside MPI are not left spinning."""
    session = processes(2)
    array = session.empty((4,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    pids = [place.pid for place in session.workers]
    session.get_global_func("tests.kill_on")(1)
    session.allreduce(array, array)
    with pytest.raises(errors.WorkerLost):
        session.sync_all()
    session.shutdown()
    assert gone(pids)


def test_a_worker_that_cannot_start_says_why(tmp_path, monkeypatch):
    """The error holds the last lines of the entry point."""
    (tmp_path / "broken_entry.py").write_text("raise SystemExit('no such luck')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.WorkerLost, match="could not be started") as lost:
        disco_client.ProcessSession(2, entrypoint="broken_entry")
    assert "no such luck" in str(lost.value)


def test_a_worker_that_never_gets_ready_is_not_waited_for(tmp_path, monkeypatch):
    """After the timeout its processes are ended."""
    (tmp_path / "sleepy_entry.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.SessionLost, match=r"workers \[0, 1\] were not ready"):
        disco_client.ProcessSession(2, entrypoint="sleepy_entry", timeout=1.0)
    running = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not any("sleepy_entry" in line for line in running)


@pytest.mark.parametrize("seconds", [3e6, 1e12, math.inf])
def test_workers_may_have_any_time_to_get_ready(seconds):
    """Also more than the system's calls take."""
    with disco_client.ProcessSession(1, timeout=seconds) as session:
        session.sync_all()


def test_nothing_keeps_the_name_of_mpis_memory(processes):
    """Once MPI runs, its shared memory has no name that could be left behind."""
    session = processes(2)
    out = session.empty((3,), "float64")
    session.allreduce(out, out)
    session.sync_all()
    kvs = kvsname(session._core.transport.welcome.session)
    assert _find_files(kvs, Path("/dev/shm")) == []


def test_shutdown_ends_the_workers_however_often(processes, gone):
    """Also those that are busy; later calls say so."""
    session = processes(2)
    pids = [place.pid for place in session.workers]
    session.get_global_func("tests.loop_forever")()
    session.shutdown()
    session.shutdown()
    assert gone(pids)
    assert session.num_workers == 2
    with pytest.raises(errors.SessionClosed):
        session.sync_all()


KILLED = """
import disco_client, os, sys, time
from disco_server.collectives.mpich_memory import kvsname
session = disco_client.ProcessSession(3, logs=False)
session.import_python_module("disco_test_functions")
array = session.empty((4,), "float32")
if "collective" in MODE:
    session.allreduce(array, array)
session.sync_all()
print(kvsname(session._core.transport.welcome.session), flush=True)
print(*[place.pid for place in session.workers], flush=True)
if "starting" in MODE:
    session.allreduce(array, array)
if "busy" in MODE:
    session.get_global_func("tests.loop_forever")()
if "fork" in MODE and os.fork() == 0:
    time.sleep(3)
    os._exit(0)
session.sync_all()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "mode", ["idle", "busy", "collective", "collective busy", "starting", "fork"]
)
def test_a_killed_client_leaves_nothing(run_program, eventually, gone, mode):
    """Neither processes nor shared memory, whatever the workers were doing."""
    program = run_program(f"MODE = {mode!r}\n{KILLED}")
    kvs = program.line()
    pids = [int(pid) for pid in program.line().split()]
    assert len(pids) == 3
    program.process.kill()
    eventually(lambda: gone(pids), what="the workers to end")
    eventually(lambda: not _find_files(kvs, Path("/dev/shm")), what="the shared memory to go")


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(5)", "1/0"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_program_ends_with_its_own_exit_code(run_program, gone, ending, busy):
    """Without shutdown(), promptly, and with its workers."""
    call = "session.get_global_func('tests.loop_forever')()\n" if busy else ""
    program = run_program(
        "import disco_client\n"
        "session = disco_client.ProcessSession(2, logs=False)\n"
        "session.import_python_module('disco_test_functions')\n"
        f"session.sync_all()\n{call}"
        "print(*[place.pid for place in session.workers], flush=True)\n"
        f"{ending}\n"
    )
    pids = [int(pid) for pid in program.line().split()]
    started = time.monotonic()
    code, _, err = program.finish(20)
    assert time.monotonic() - started < 10
    assert code == {"": 0, "1/0": 1}.get(ending, 5), err
    assert gone(pids)
    if not ending:
        assert err == ""


def test_what_a_socket_did_not_take_leaves_though_nobody_waits(
    processes, monkeypatch, tmp_path, eventually
):
    """Also right after a wait, whose thread read the sockets itself until then."""
    monkeypatch.setattr(shared_reader, "_IDLE_S", 600.0)
    session = processes(2)
    copy, mkdir = map(session.get_global_func, ("numpy.copy", "os.makedirs"))
    for turn in ("first", "second"):
        session.sync_worker_0()
        for _ in range(40):
            copy(np.zeros(60_000, np.uint8))
        mkdir(str(tmp_path / turn), 0o777, True)
        eventually((tmp_path / turn).exists, what="the last command")
