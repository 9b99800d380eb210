"""Small programs of the kinds that are written for TVM's Disco, with TVM installed beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from own_ports import own_port

import disco_client as di

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
RUNNER = "disco_client.tvm"
REMOTE = "tvm.exec.disco_remote_socket_session"


@pytest.mark.timeout(180)
def test_the_originals_own_entrypoint_is_a_worker():
    """TVM's, unmodified, with the functions that TVM's tests call."""
    with di.ProcessSession(2, entrypoint="tvm.exec.disco_worker") as session:
        added = session.get_global_func("tests.disco.add_one")(1)
        assert [added.debug_get_from_remote(worker) for worker in range(2)] == [2, 2]
        array = session.copy_to_worker_0(np.arange(3, dtype="float32"))
        more = session.get_global_func("tests.disco.str")("hello")
        assert more.debug_get_from_remote(1) == "hello_suffix"
        assert array.numpy().tolist() == [0, 1, 2]


@pytest.mark.timeout(180)
def test_a_program_of_tvms_joins_a_socket_session_and_leaves_with_it(eventually):
    """The original's module, unmodified, is the other node; it exits with status 0."""
    port = own_port()
    joining = subprocess.Popen(
        [sys.executable, "-m", RUNNER, "-m", REMOTE, "localhost", str(port), "1"]
    )
    try:
        with di.SocketSession(2, 1, 1, "localhost", port) as session:
            parts = session.scatter(np.arange(4.0).reshape(2, 2))
            session.allreduce(parts, parts)
            np.testing.assert_array_equal(parts.numpy(1), [2, 4])
            pid = session.workers[1].pid
        assert joining.wait(120) == 0
        eventually(lambda: not psutil.pid_exists(pid), what="the end of its worker")
    finally:
        joining.kill()
        joining.wait()


@pytest.fixture(params=["threads", "processes", "cluster"])
def session(request, monkeypatch):
    """Two workers that may use all of TVM's registry."""
    monkeypatch.syspath_prepend(WORKER_MODULES)
    if request.param == "threads":
        opened = di.ThreadedSession(2)
    elif request.param == "processes":
        opened = di.ProcessSession(2)
    else:
        opened = di.connect(request.getfixturevalue("cluster").address, num_workers=2)
    with opened:
        yield opened


def test_tensors_are_made_in_storage_and_added_up(session):
    """As programs do that test the allreduce which TVM's passes write into modules."""
    allocate = session.get_global_func("runtime.disco.cuda_ipc.alloc_storage")
    tensor_in = session.get_global_func("vm.builtin.alloc_tensor")
    add_up = session.get_global_func("runtime.disco.cuda_ipc.custom_allreduce")
    shape, dtype = di.Shape((3, 5)), np.dtype("float32")
    storage = session.call_packed(allocate, shape, dtype)
    mine = session.call_packed(tensor_in, storage, 0, shape, dtype)
    for worker in range(2):
        mine.debug_copy_from(worker, np.full((3, 5), worker + 1, "float32"))
    total = session.empty((3, 5), "float32")
    for strategy in range(4):
        session.call_packed(add_up, mine, strategy, total)
        np.testing.assert_array_equal(total.debug_get_from_remote(1), np.full((3, 5), 3))
    session.get_global_func("runtime.disco.cuda_ipc.cuda_ipc_memory_allocator_clear")()
    np.testing.assert_array_equal(mine.debug_get_from_remote(0), np.ones((3, 5)))


def test_a_module_registers_functions_with_tvm(session):
    """What is imported on the workers is found by its name in TVM's registry."""
    session.import_python_module("disco_tvm_entrypoint")
    array = session.broadcast(np.arange(3.0))
    doubled = session.get_global_func("disco_tests.double")(array)
    np.testing.assert_array_equal(doubled.debug_get_from_remote(1), [0, 2, 4])
    session.get_global_func("disco_tests.fail")()
    with pytest.raises(di.RemoteException, match="told to fail"):
        session.sync_all()
