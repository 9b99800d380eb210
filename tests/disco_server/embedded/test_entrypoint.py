"""Programs of TVM's form as workers of process sessions, and as nodes of socket sessions."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest

import disco_client as di
from disco_client import errors

RUNNER = "disco_server.embedded.entrypoint"
ENTRYPOINT = "disco_tvm_entrypoint"
REMOTE = "tvm.exec.disco_remote_socket_session"


def test_an_entrypoint_of_tvms_form_is_a_worker(modules, gone):
    """It gets the original's arguments, and what it registers with TVM can be called."""
    with di.ProcessSession(4, 2, entrypoint=ENTRYPOINT) as session:
        pids = [place.pid for place in session.workers]
        described = session.get_global_func("disco_tests.describe")("worker")
        for worker in range(4):
            assert described.debug_get_from_remote(worker) == f"worker {worker} 4 2"
        array = session.broadcast(np.arange(3.0), in_group=False)
        session.get_global_func("disco_tests.double")(array)
        session.allreduce(array, array, in_group=True)
        np.testing.assert_array_equal(array.numpy(3), [0, 4, 8])
        session.get_global_func("disco_tests.fail")()
        with pytest.raises(errors.RemoteException, match="told to fail"):
            session.sync_all()
        assert described.debug_get_from_remote(1) == "worker 1 4 2"
    assert gone(pids)


def test_the_originals_own_entrypoint_is_a_worker():
    """TVM's, unmodified, with the functions that TVM's tests call."""
    with di.ProcessSession(2, entrypoint="tvm.exec.disco_worker") as session:
        added = session.get_global_func("tests.disco.add_one")(1)
        assert [added.debug_get_from_remote(worker) for worker in range(2)] == [2, 2]
        array = session.copy_to_worker_0(np.arange(3, dtype="float32"))
        more = session.get_global_func("tests.disco.str")("hello")
        assert more.debug_get_from_remote(1) == "hello_suffix"
        assert array.numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('not for sessions')", "has ended without becoming a worker: it has to call"),
        ("import sys; sys.exit('usage: elsewhere')", "usage: elsewhere"),
        (
            "import tvm_ffi as f; f.get_global_func('runtime.disco.WorkerProcess')(0, 1, 1, -7, 7)",
            "negative file descriptor",
        ),
    ],
    ids=["returns", "leaves", "other descriptors"],
)
def test_a_program_that_is_no_worker_says_why(tmp_path, monkeypatch, text, said):
    """The error that the session ends with has its last words."""
    (tmp_path / "no_worker.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.WorkerLost, match="could not be started") as lost:
        di.ProcessSession(1, entrypoint="no_worker", logs=False)
    assert said in str(lost.value)


def test_a_program_of_tvms_joins_a_socket_session_and_leaves_with_it(eventually):
    """The original's module, unmodified, is the other node; it exits with status 0."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    joining = subprocess.Popen([sys.executable, "-m", RUNNER, REMOTE, "localhost", str(port), "1"])
    try:
        with di.SocketSession(2, 1, 1, "localhost", port) as session:
            parts = session.scatter(np.arange(4.0).reshape(2, 2))
            session.allreduce(parts, parts)
            np.testing.assert_array_equal(parts.numpy(1), [2, 4])
            pid = session.workers[1].pid
        assert joining.wait(20) == 0
        eventually(lambda: not psutil.pid_exists(pid), what="the end of its worker")
    finally:
        joining.kill()
        joining.wait()
