"""Programs of TVM's form as workers of process sessions."""

from __future__ import annotations

import time

import numpy as np
import pytest

import disco_client as di
from disco_client import errors

ENTRYPOINT = "disco_tvm_entrypoint"


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


def test_an_entrypoint_may_set_a_default_timeout_of_sockets(tmp_path, monkeypatch):
    """The worker's own socket, which is made afterwards, waits for commands as long as it takes."""
    (tmp_path / "impatient.py").write_text(
        "import socket; socket.setdefaulttimeout(0.01)\n"
        "from disco_server.rank.process import main; main()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with di.ProcessSession(2, entrypoint="impatient") as session:
        nap = session.get_global_func("time.sleep")
        for _ in range(2):
            nap(0.05)
            session.sync_all()
            time.sleep(0.05)  # in which the workers wait
        assert session.allreduce(session.broadcast(np.ones(2))).numpy().tolist() == [2, 2]


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
