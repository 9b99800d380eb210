"""What TVM's C++ code finds out about the worker of a thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from disco_client import Device, Shape, ThreadedSession, cpu
from disco_server.modules import tvm, tvm_worker
from disco_server.modules.tvm import own_library, runtime
from disco_server.modules.tvm_worker import show_worker


@dataclass
class Facts:
    """A worker as far as TVM may ask of it."""

    worker_id: int = 3
    num_workers: int = 4
    num_groups: int = 2
    device: Device = cpu()  # noqa: RUF009  (it never changes)
    ccl: str = "mpi"


def in_a_thread(work):
    """What a function returns in a thread of its own, which is no worker's yet."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def asked(name):
    """What TVM's own code answers in this thread."""
    runtime()
    return own_library().functions[name]()


def test_tvm_s_code_knows_the_worker_of_its_thread():
    """After it was told, and what has changed since."""

    def work():
        facts = Facts()
        shown = show_worker(facts)
        first = asked("worker_rank"), asked("world_size"), str(asked("device"))
        facts.worker_id, facts.device, facts.ccl = 1, Device("cuda", 2), "nccl"
        again = show_worker(facts)
        return shown, first, again, asked("worker_rank"), str(asked("device"))

    assert in_a_thread(work) == (True, (3, 4, "cpu:0"), True, 1, "cuda:2")


def test_another_thread_is_no_worker_s():
    """TVM's error says so."""
    assert in_a_thread(lambda: show_worker(Facts()))

    def work():
        with pytest.raises(ValueError, match="not a DiscoWorker thread"):
            asked("worker_rank")
        return True

    assert in_a_thread(work)


def test_a_release_that_is_not_known_is_not_told(monkeypatch):
    """Its object of a worker may be another one; its code says that the thread is no worker's."""
    monkeypatch.setattr(tvm_worker, "_RELEASES", ("0.26.",))
    tvm_worker._finder.cache_clear()
    try:
        assert in_a_thread(lambda: show_worker(Facts())) is False
    finally:
        tvm_worker._finder.cache_clear()


def test_what_tvm_answers_otherwise_is_taken_back(monkeypatch):
    """Where its object has another layout, its own code does not see a worker either."""
    monkeypatch.setattr(
        tvm_worker._DiscoWorker, "num_workers", property(lambda _: 0, lambda *_: None)
    )

    def work():
        shown = show_worker(Facts())
        with pytest.raises(ValueError, match="not a DiscoWorker thread"):
            asked("worker_rank")
        return shown

    assert in_a_thread(work) is False


def test_functions_that_tvm_registers_run_as_on_its_own_workers():
    """They ask for their rank and use collectives, before any module of TVM's was loaded."""
    program = (
        "import disco_client, numpy as np, tvm_ffi\n"
        "from disco_server.modules.tvm import own_library, runtime\n"
        "runtime()\n"
        "asked = own_library().functions\n"
        "def describe():\n"
        "    return [asked['worker_rank'](), asked['world_size']()]\n"
        "tvm_ffi.register_global_func('tests.describe', describe)\n"
        "def add_up(array):\n"
        "    add = tvm_ffi.get_global_func('runtime.disco.allreduce')\n"
        "    add(array, tvm_ffi.Shape([0]), False, array)\n"
        "tvm_ffi.register_global_func('tests.add_up', add_up)\n"
        "with disco_client.ThreadedSession(3) as session:\n"
        "    print(session.get_global_func('tests.describe')().get_all())\n"
        "    array = session.broadcast(np.ones(2, 'float32'))\n"
        "    session.get_global_func('tests.add_up')(array)\n"
        "    print(array.numpy(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "[[0, 3], [1, 3], [2, 3]]\n[3. 3.]\n", done.stderr


def test_one_thread_at_a_time_uses_tvm_s_cache_of_tensors():
    """The cache has no lock of its own; where workers are threads, one loads after the other."""
    read, ended = runtime().get_global_func("vm.builtin.tensor_cache.get"), threading.Event()

    def work():
        read("tests.nothing")
        ended.set()

    thread = threading.Thread(target=work)
    with tvm._cache_lock:
        thread.start()
        assert not ended.wait(0.2)
    assert ended.wait(20)
    thread.join()


def test_negative_numbers_of_a_shape_reach_functions_of_tvm():
    """Such as the parents in a tree of tokens, where -1 is the root's."""
    with ThreadedSession(1) as session:
        runtime().register_global_func("tests.parents", lambda shape: shape, override=True)
        parents = session.get_global_func("tests.parents")(Shape((-1, 0, 0)))
        assert parents.get() == Shape((-1, 0, 0))
