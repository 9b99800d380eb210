"""What goes wrong beside GPUs and on them, and that it is told.

Each test runs on the stand-in for cupy, and on the machine's GPUs where it has some; those of
collectives also where oneCCL carries what the stand-in sends.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from disco_client import errors

GPUS = "disco_test_gpus"
with_oneccl = pytest.mark.parametrize(
    "gpus",
    ["standin", "oneccl", pytest.param("real_gpus", id="gpu", marks=pytest.mark.gpu)],
    indirect=True,
)


def ones(session):
    return session.broadcast(np.ones(1000, np.float32))


def total(session):
    """The sum of ones over the workers, as each of them has it."""
    array = ones(session)
    session.allreduce(array, array)
    return [array.numpy(worker)[-1] for worker in range(session.num_workers)]


@with_oneccl
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("fail_on", errors.RemoteException, "told to fail"),
        ("mixed", errors.CollectiveMismatch, "on a GPU"),
    ],
)
def test_a_worker_that_does_not_take_part_releases_its_peers(open_session, name, error, words):
    """It fails before the collective or brings a host array; the next collective is sound."""
    session = open_session(2)
    session.import_python_module(GPUS)
    session.get_global_func(f"gpus.{name}")(1, ones(session))
    with pytest.raises(error, match=words):
        session.sync_all()
    assert total(session) == [2, 2]


@with_oneccl
@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_that_is_killed_is_named(open_session, busy):
    """Between collectives, and where its peer's GPU waits in one until its own has computed."""
    session = open_session(2)
    assert total(session) == [2, 2]
    array = ones(session)
    if busy:
        session.get_global_func("tests.gpu.occupy")(1)
        session.allreduce(array, array)
    os.kill(session.workers[1].pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    assert lost.value.worker == 1


def test_what_has_no_room_on_a_gpu_fails_alone(open_session):
    """With what it should have been; what is there stays, and what is small still fits."""
    session = open_session(1)
    there = ones(session)
    session.empty((1 << 44,), "uint8")
    with pytest.raises(errors.RemoteException, match="cuda:0 has no room"):
        session.sync_all()
    assert there.numpy().sum() == 1000
    assert ones(session).numpy().sum() == 1000


def test_a_gpu_that_is_not_there_is_named(open_session, gpus):
    """And one that is there may be given afterwards."""
    session = open_session(1, devices=[0])
    with pytest.raises(errors.CclError, match=f"cuda:{gpus}"):
        session.init_ccl("nccl", gpus)
    session.init_ccl("nccl", 0)
    assert total(session) == [1]


def test_two_workers_on_one_gpu_are_refused(open_session):
    """Before the library sees them; it would end with an error that names neither."""
    session = open_session(2, devices=[0, 0])
    with pytest.raises(errors.CclError, match="workers 0 and 1 share the GPU"):
        session.init_ccl("nccl", 0, 0)
