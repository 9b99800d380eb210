"""Checkpoints on a cluster: what is read and written there, and what a crash leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client import BadFile, ProcessSession, SessionLost, WorkerLost, connect
from disco_client.distributed import storage
from disco_client.errors import DiscoError
from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.files import FileError

LARGE = 1 << 20
"""Elements of eight bytes: four workers are busy for some tens of milliseconds."""


def numbers(shape):
    return np.random.default_rng(3).integers(0, 7, shape).astype("float32")


def same(tensor, array):
    assert tensor.numpy().tobytes() == array.tobytes()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize("placement", ["S[0]", "S[1]"])
def test_each_worker_reads_only_its_own_bytes(cluster, tmp_path, placement):
    """By the kernel's count of each worker process: a quarter of 32 MiB."""
    with connect(cluster.address, num_workers=4) as session:
        session.import_python_module("disco_test_shards")
        array = numbers((128, 1 << 16))
        session.save(tmp_path, {"x": session.distribute(array, session.mesh((2,)), "S[0]")})
        count = session.get_global_func("tests.bytes_read")
        before = count()
        x = session.load(tmp_path, session.mesh(), placement)["x"]
        after = count()
        same(x, array)
        for worker in range(4):
            read = after.debug_get_from_remote(worker) - before.debug_get_from_remote(worker)
            assert 8 << 20 <= read < (8 << 20) + (1 << 19)


def test_a_disk_that_is_full_is_an_error_of_the_save(cluster, tmp_path):
    """On one worker, in the middle of its file; nothing of it stays."""
    with connect(cluster.address, num_workers=4) as session:
        session.import_python_module("disco_test_shards")
        old = numbers((1 << 10, 1 << 10))
        session.save(tmp_path, {"x": session.distribute(old, None, "S[0]")})
        before = sorted(tmp_path.rglob("*"))
        new = session.distribute(old + 1, None, "S[0]")
        limit = session.get_global_func("tests.limit_files")
        limit(2, 1 << 19)
        with pytest.raises(BadFile, match=r"worker-00002.safetensors: cannot be written: File too"):
            session.save(tmp_path, {"x": new})
        assert sorted(tmp_path.rglob("*")) == before
        limit(2, -1)
        same(session.load(tmp_path)["x"], old)
        session.save(tmp_path, {"x": new})
        same(session.load(tmp_path)["x"], old + 1)


# Crashes ----------------------------------------------------------------------------------


def value_at(path):
    """The one value that all elements of the checkpoint have, which is whole then."""
    (x,) = StoredCheckpoint(str(path), ("*",)).read([(0, ((0, LARGE),))])
    (value,) = np.unique(x)
    return value


def save_value(path, value):
    with ProcessSession(2) as session:
        session.save(path, {"x": session.distribute(np.full(LARGE, value), None, "S[0]")})


def can_go_on(path):
    """The next save finds nobody in its way, and leaves nothing but a checkpoint."""
    save_value(path, 3.0)
    left = sorted(each.name.partition("-")[0] for each in path.iterdir())
    return value_at(path) == 3 and left == ["disco", "generation"]


@contextlib.contextmanager
def killed_when(condition, pid):
    """Kills a process as soon as a condition holds; a thread does it."""
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            with contextlib.suppress(OSError):  # of files that come and go
                if condition():
                    os.kill(pid, signal.SIGKILL)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def sizes(path, worker):
    return [file.stat().st_size for file in path.glob(f"generation-*/worker-{worker:05}.*")]


MOMENTS = {
    "a generation is there": lambda path: len(list(path.glob("generation-*"))) > 1,
    "its file is there": lambda path: len(sizes(path, 1)) > 1,
    "some is written": lambda path: any(1 << 16 < size < LARGE * 2 for size in sizes(path, 1)),
    "all is written": lambda path: sum(size > LARGE * 2 for size in sizes(path, 1)) > 1,
    "the index is there": lambda path: any(path.glob("disco-checkpoint-*2.json")),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_rank_that_is_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path, worker, moment):
    """The old one, or, where the save was faster than the signal, the new one."""
    path = tmp_path / "c"
    save_value(path, 1.0)
    with contextlib.suppress(WorkerLost), ProcessSession(4) as session:
        new = session.distribute(np.full(LARGE, 2.0), None, "S[0]")
        session.sync_all()
        with killed_when(lambda: MOMENTS[moment](path), session.workers[worker].pid):
            session.save(path, {"x": new})
            assert value_at(path) == 2
    assert value_at(path) in (1, 2)
    assert can_go_on(path)


@pytest.mark.parametrize("step", ["begin", "describe", "start", "write", "finish", "commit"])
@pytest.mark.parametrize("worker", [0, 2])
def test_a_rank_that_dies_between_two_steps_leaves_the_old_checkpoint(
    tmp_path, monkeypatch, step, worker
):
    """As it was; the one that dies after the last step, the new one."""
    path = tmp_path / "c"
    real = storage._save

    def and_die(core, name, *args):
        result = real(core, name, *args)
        if name == step:
            with contextlib.suppress(DiscoError):
                session.sync_all()
            os.kill(session.workers[worker].pid, signal.SIGKILL)
        return result

    save_value(path, 1.0)
    with ProcessSession(4) as session:
        new = session.distribute(np.full(LARGE, 2.0), None, "S[0]")
        session.sync_all()
        with monkeypatch.context() as patch, contextlib.suppress(WorkerLost):
            patch.setattr(storage, "_save", and_die)
            session.save(path, {"x": new})
        with pytest.raises(SessionLost):
            session.sync_all()
    assert value_at(path) == (2 if step == "commit" else 1)
    assert can_go_on(path)


PROGRAM = """
import sys
import numpy as np
import disco_client
session = disco_client.{opened}
x = session.distribute(np.full(int(sys.argv[2]), 2.0), None, "S[0]")
session.sync_all()
print("saving", flush=True)
while True:
    session.save(sys.argv[1], {{"x": x}})
"""


@pytest.mark.parametrize("kind", ["process", "connect"])
@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.1])
def test_a_client_that_is_killed_leaves_a_whole_checkpoint(cluster, tmp_path, kind, delay):
    """Wherever it was."""
    path = tmp_path / "c"
    save_value(path, 1.0)
    opened = (
        "ProcessSession(3)" if kind == "process" else f"connect({cluster.address!r}, num_workers=4)"
    )
    command = [sys.executable, "-c", PROGRAM.format(opened=opened), path, str(LARGE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "saving\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(delay)
        client.kill()
    # Its workers end a moment later, and may replace the checkpoint once more until then.
    assert value_soon(path) in (1, 2)
    assert can_go_on(path)


def value_soon(path):
    try:
        return value_at(path)
    except FileError:  # it was replaced in this moment
        return value_at(path)


@pytest.mark.parametrize("moment", ["a generation is there", "all is written"])
def test_a_daemon_that_is_killed_leaves_a_whole_checkpoint(daemons, tmp_path, moment):
    """With the ranks that it had; the session knows of it."""
    path = tmp_path / "c"
    save_value(path, 1.0)
    controller = daemons.controller()
    options = ("--slots", "1", "--allow-read", "*", "--allow-save", "*")
    nodes = [daemons.worker(controller.address, *options, "--name", n) for n in ("one", "two")]
    with contextlib.suppress(SessionLost), connect(controller.address, num_workers=2) as session:
        new = session.distribute(np.full(LARGE, 2.0), None, "S[0]")
        session.sync_all()
        ranks = nodes[1].family()
        with killed_when(lambda: MOMENTS[moment](path), nodes[1].process.pid):
            session.save(path, {"x": new})
            assert value_at(path) == 2
    psutil.wait_procs(ranks, timeout=20)
    assert value_at(path) in (1, 2)
    assert can_go_on(path)
