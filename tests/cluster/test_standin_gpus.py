"""Slots that are GPUs, of a real cluster with the stand-in as every worker's library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from disco_client import connect, errors

TESTS = Path(__file__).parents[1]
GPUS = "disco_test_gpus"


@pytest.fixture(scope="module")
def address(shared_daemons):
    """A controller and two nodes with two GPUs each."""
    controller = shared_daemons.controller()
    path = os.pathsep.join(str(TESTS / part) for part in ("standin", "worker_modules"))
    for name, devices in (("one", "cuda:0,1"), ("two", "cuda:2,3")):
        options = ("--name", name, "--devices", devices, "--allow-module", GPUS)
        # The check asks the driver, which has no stand-in.
        environ = {"PYTHONPATH": path, "DISCO_DEVICE_CHECK": "off"}
        shared_daemons.worker(controller.address, *options, **environ)
    return controller.address


@pytest.fixture
def gpus(address):
    """Opens sessions; they end with the test."""
    opened = []

    def open_one(num_workers=4, **options):
        opened.append(connect(address, num_workers=num_workers, **options))
        opened[-1].import_python_module(GPUS)
        return opened[-1]

    yield open_one
    for session in opened:
        session.shutdown()


def call(session, name, *args):
    return session.get_global_func(f"gpus.{name}")(*args)


def each(session, ref):
    return [ref.debug_get_from_remote(worker) for worker in range(session.num_workers)]


def test_a_session_on_slots_of_the_standin_needs_no_start(gpus):
    """Arrays lie on each worker's own GPU, and the library starts with the first collective."""
    session = gpus(4, num_groups=2)
    host = np.arange(100_000, dtype=np.float32)
    every = session.empty(host.shape, host.dtype)
    assert each(session, call(session, "where", every)) == [f"cupy {w}" for w in range(4)]
    session.broadcast_from_worker0(session.copy_to_worker_0(host), every, in_group=False)
    mine = call(session, "rank_plus", every)
    session.allreduce(mine, every)
    assert [got[1] for got in each(session, every)] == [3, 3, 7, 7]
    session.allreduce(mine, every, in_group=False)
    assert np.array_equal(every.numpy(), 4 * host + 6)

    session.allreduce(every, every)
    assert each(session, call(session, "under_way")) == [True] * 4
    session.sync_all()
    assert each(session, call(session, "under_way")) == [False] * 4
    session.init_ccl("nccl")  # which has happened
    assert (
        session.get_global_func("runtime.disco.compiled_ccl")().debug_get_from_remote(1) == "nccl"
    )


def test_a_session_for_mpi_refuses_arrays_of_the_standin(gpus):
    """With the call that helps, which then does; host arrays take their own way before."""
    session = gpus(2, ccl="mpi")
    array = session.empty((3,), "float32")
    host = session.empty((3,), "float32", "cpu")
    session.allreduce(host, host)
    session.sync_all()
    session.allreduce(array, array)
    words = r"no library for arrays on GPUs was started; session\.init_ccl\('nccl'\) does"
    with pytest.raises(errors.CollectiveMismatch, match=words):
        session.sync_all()

    session.init_ccl("nccl")
    session.allreduce(array, array)
    session.sync_all()


def test_a_sync_through_daemons_raises_what_failed_on_the_standin(gpus):
    """And the session goes on with the others."""
    session = gpus(2)
    array = session.empty((3,), "float32")
    session.sync_all()
    call(session, "break_on", 1)
    with pytest.raises(errors.RemoteException, match="IllegalAddress") as failed:
        session.sync_all()

    assert failed.value.worker == 1
    assert array.debug_get_from_remote(0).shape == (3,)
