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

MODULES = Path(__file__).parents[2] / "worker_modules"

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


# In the background ------------------------------------------------------------------------


def hold_saves(session, gate, workers=None):
    """Keeps saves of these workers, of which no file is durable, until there is a file."""
    session.import_python_module("disco_saving_functions")
    session.get_global_func("saving.hold")(str(gate), workers)


@pytest.mark.parametrize("held", [[0], [1], [0, 1]], ids=["leader", "other", "both"])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_dies_in_the_middle_of_a_background_save_leaves_the_old_checkpoint(
    tmp_path, monkeypatch, killed, held
):
    """Whether its file is durable by then or not; the wait for it raises what has happened."""
    path = tmp_path / "c"
    save_value(path, 1.0)
    monkeypatch.syspath_prepend(MODULES)
    with ProcessSession(2) as session:
        hold_saves(session, tmp_path / "gate", held)
        new = session.distribute(np.full(LARGE, 2.0), None, "S[0]")
        saving = session.save(path, {"x": new}, wait=False)
        os.kill(session.workers[killed].pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            saving.wait()
        assert saving.done
        with pytest.raises(WorkerLost):
            session.sync_all()
    assert value_at(path) == 1
    assert can_go_on(path)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_rank_that_is_killed_in_a_background_save_leaves_a_whole_checkpoint(
    tmp_path, worker, moment
):
    """The old one, or, where the save was faster than the signal, the new one."""
    path = tmp_path / "c"
    save_value(path, 1.0)
    with contextlib.suppress(WorkerLost), ProcessSession(4) as session:
        new = session.distribute(np.full(LARGE, 2.0), None, "S[0]")
        session.sync_all()
        with killed_when(lambda: MOMENTS[moment](path), session.workers[worker].pid):
            session.save(path, {"x": new}, wait=False).wait()
            assert value_at(path) == 2
    assert value_at(path) in (1, 2)
    assert can_go_on(path)


HELD = """
import sys
import numpy as np
import disco_client
session = disco_client.{opened}
session.import_python_module("disco_saving_functions")
session.get_global_func("saving.hold")(sys.argv[2])
x = session.distribute(np.full(int(sys.argv[3]), 2.0), None, "S[0]")
saving = session.save(sys.argv[1], {{"x": x}}, wait=False)
print("saving", flush=True)
{then}
"""


def begin(opened, path, gate, then):
    """A program whose save in the background is held; it does something else then."""
    command = [sys.executable, "-c", HELD.format(opened=opened, then=then), path, gate, str(LARGE)]
    paths = os.pathsep.join((str(MODULES), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize("released", [True, False], ids=["completed", "discarded"])
def test_a_client_that_is_killed_in_a_background_save_leaves_a_whole_checkpoint(
    cluster, tmp_path, released, eventually
):
    """The workers complete it without the client, or it is discarded with them."""
    path, gate = tmp_path / "c", tmp_path / "gate"
    save_value(path, 1.0)
    opened = f"connect({cluster.address!r}, num_workers=4)"
    with begin(opened, path, gate, "input()") as client:
        assert client.stdout.readline() == "saving\n"
        client.kill()
        client.wait()
    assert value_at(path) == 1
    if released:
        gate.touch()
        eventually(lambda: value_soon(path) == 2)
    assert can_go_on(path)


@pytest.mark.parametrize("then", ["input()", "input(); session.shutdown()", "del session; input()"])
def test_a_program_that_ends_waits_for_its_save(tmp_path, then):
    """Also without a word about its session."""
    path, gate = tmp_path / "c", tmp_path / "gate"
    save_value(path, 1.0)
    with begin("ProcessSession(2)", path, gate, then) as client:
        assert client.stdout.readline() == "saving\n"
        gate.touch()
        _, errors = client.communicate("\n", timeout=60)
    assert (client.returncode, errors) == (0, "")
    assert value_at(path) == 2


def test_a_child_leaves_the_save_to_its_parent(tmp_path):
    """Which was forked meanwhile, and ends before."""
    path, gate = tmp_path / "c", tmp_path / "gate"
    save_value(path, 1.0)
    then = "import os\npid = os.fork()\nif pid:\n    print(os.waitpid(pid, 0)[1], flush=True)"
    with begin("ProcessSession(2)", path, gate, then) as client:
        assert [client.stdout.readline() for _ in range(2)] == ["saving\n", "0\n"]
        assert value_at(path) == 1
        gate.touch()
        _, errors = client.communicate(timeout=60)
    assert (client.returncode, errors) == (0, "")
    assert value_at(path) == 2


def test_ctrl_c_while_a_session_waits_for_its_save_says_what_is_lost(tmp_path):
    """And ends the program; the checkpoint before stays."""
    path, gate = tmp_path / "c", tmp_path / "gate"
    save_value(path, 1.0)
    then = "import disco_client.saving as s\nreal = s.progress\n"
    then += "s.progress = lambda *a: print('waiting', flush=True) or real(*a)\nsession.shutdown()"
    with begin("ProcessSession(2)", path, gate, then) as client:
        assert [client.stdout.readline() for _ in range(2)] == ["saving\n", "waiting\n"]
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=60)
    assert f"disco: the save to {path} is lost, at " in errors
    assert "because the wait for it was interrupted; the checkpoint before it stays" in errors
    assert "KeyboardInterrupt" in errors
    assert value_at(path) == 1
    assert can_go_on(path)


def test_a_disk_that_is_full_is_an_error_of_a_background_save(cluster, tmp_path):
    """On one worker, in the middle of its file; nothing of it stays."""
    with connect(cluster.address, num_workers=4) as session:
        session.import_python_module("disco_test_shards")
        old = numbers((1 << 10, 1 << 10))
        session.save(tmp_path, {"x": session.distribute(old, None, "S[0]")})
        before = sorted(tmp_path.rglob("*"))
        new = session.distribute(old + 1, None, "S[0]")
        limit = session.get_global_func("tests.limit_files")
        for worker in (0, 2):
            limit(worker, 1 << 19)
            saving = session.save(tmp_path, {"x": new}, wait=False)
            text = rf"worker-0000{worker}.safetensors: cannot be written: File too"
            with pytest.raises(BadFile, match=text):
                saving.wait()
            assert sorted(tmp_path.rglob("*")) == before
            limit(worker, -1)
        same(session.load(tmp_path)["x"], old)
        session.save(tmp_path, {"x": new}, wait=False).wait()
        same(session.load(tmp_path)["x"], old + 1)
