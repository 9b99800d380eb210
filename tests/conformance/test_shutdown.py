"""The end of a session, by a call, by a block, by being forgotten, and by violence."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"


def gone(pids):
    return not any(psutil.pid_exists(pid) for pid in pids if pid != os.getpid())


def test_after_shutdown_every_call_is_one_error(open_session):
    """Where the original returns in silence, hangs or crashes; a second one is fine."""
    session = open_session(2)
    ref = session.empty((1,), "float32")
    func = session.get_global_func("conformance.echo")
    session.shutdown()
    session.shutdown()
    for use in (
        session.sync_worker_0,
        session.sync_all,
        lambda: session.sync_worker(1),
        lambda: func(1),
        lambda: session.get_global_func("conformance.echo"),
        lambda: session.import_python_module("numpy"),
        lambda: session.empty((1,), "float32"),
        lambda: session.copy_to_worker_0(np.zeros(1, "float32")),
        lambda: session.copy_from_worker_0(np.zeros(1, "float32"), ref),
        lambda: ref.debug_get_from_remote(0),
        lambda: ref.debug_get_from_remote(1),
        lambda: ref.debug_copy_from(0, [1.0]),
        lambda: session.broadcast([1.0]),
        lambda: session.allreduce(ref, ref),
        lambda: session.init_ccl("mpi"),
        session.__enter__,
        lambda: asyncio.run(session.__aenter__()),
    ):
        with pytest.raises(di.SessionClosed, match="was shut down"):
            use()
    assert (session.num_workers, session.num_groups) == (2, 1)


def test_what_a_block_has_issued_is_executed_before_it_is_left(program, tmp_path):
    """Leaving it waits for the workers, however busy they are."""
    with eval(program(1), {"di": di}) as session:
        save = session.get_global_func("numpy.save")
        for number in range(5):
            save(str(tmp_path / f"{number}.npy"), [number])
    assert len(list(tmp_path.glob("*.npy"))) == 5


def test_leaving_the_block_ends_the_session(program):
    """And raises what no call has raised yet."""
    with eval(program(2), {"di": di}) as session:
        session.import_python_module("disco_conformance_functions")
    with pytest.raises(di.SessionClosed):
        session.sync_all()

    def leave(with_error=None):
        with eval(program(1), {"di": di}) as session:
            session.import_python_module("disco_conformance_functions")
            session.get_global_func("conformance.fail_on")([0], "unseen")
            if with_error is not None:
                raise with_error

    with pytest.raises(di.RemoteException, match="unseen"):
        leave()
    with pytest.raises(KeyError):
        leave(KeyError("the program's own error comes first"))


def test_a_wait_ends_when_another_thread_shuts_down(open_session, tools_of, waiter):
    """Nobody waits for a session that is over."""
    session = open_session(1)
    session.sync_all()
    tools_of(session).call("wait_for_file", str(waiter))
    ended = []

    def wait():
        with pytest.raises(di.SessionClosed):
            session.sync_all()
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    assert not ended
    session.shutdown()
    waiting.join()
    assert ended


def test_a_forgotten_session_ends(program, eventually):
    """With its workers, when its last reference goes."""
    session = eval(program(2), {"di": di})
    ref = session.broadcast(np.zeros(3))
    session.sync_all()
    pids = [place.pid for place in session.workers]
    del session, ref
    gc.collect()
    eventually(lambda: gone(pids), what="the workers to end")


def test_the_workers_are_gone_after_a_shutdown(open_session, tools_of, eventually):
    """No process of theirs is left, and no thread beyond those that were there before."""
    open_session(1).shutdown()  # what starts once in a program has started
    before = threading.active_count()
    session = open_session(2)
    pids = tools_of(session).results("pid")
    session.shutdown()
    eventually(lambda: gone(pids), what="the workers to end")
    eventually(lambda: threading.active_count() <= before, what="the threads to end")


SHARED_MEMORY = Path("/dev/shm")

PROGRAM = """
import sys
import time
import disco_client as di

session = {expression}
session.import_python_module("disco_conformance_functions")
held = [session.get_global_func("conformance." + name)() for name in ("counted", "module")]
array = session.broadcast([1.0, 2.0])
session.allreduce(array, array)
pids = session.get_global_func("conformance.pid")()
print(*(pids.debug_get_from_remote(worker) for worker in range(2)), flush=True)
{then}
"""


def start(expression, then):
    path = os.pathsep.join((str(WORKER_MODULES), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(expression=expression, then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def pids_of(running):
    return [int(word) for word in running.stdout.readline().split()]


@pytest.mark.parametrize("then", ["", "session.shutdown()", "sys.exit(0)"])
def test_a_program_may_end_as_it_likes(program, eventually, own_words, then):
    """With objects in its registers, with and without a shutdown."""
    with start(program(2), then) as running:
        pids = pids_of(running)
        _, stderr = running.communicate(timeout=50)
    assert (running.returncode, own_words(stderr)) == (0, "")
    eventually(lambda: gone(pids), what="the workers to end")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_killing_the_program_ends_its_workers(program, eventually, busy):
    """Also where they are in the middle of a call; no shared memory keeps its name either."""
    before = set(SHARED_MEMORY.glob("*"))
    call = "session.get_global_func('conformance.wait_for_file')('/nowhere'); " if busy else ""
    with start(program(2), f"{call}time.sleep(600)") as running:
        pids = pids_of(running)
        assert len(pids) == 2
        running.kill()
    eventually(lambda: gone(pids), what="the workers to end")
    # Others than this program's go as well: sessions of other tests have names while they start.
    left = set(SHARED_MEMORY.glob("*")) - before
    eventually(lambda: not left & set(SHARED_MEMORY.glob("*")), what=f"the names of {left} to go")
