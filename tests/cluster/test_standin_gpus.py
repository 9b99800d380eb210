"""Slots that are GPUs, of a real cluster with the stand-in as every worker's library.

Its own hub carries the collectives, and then oneCCL does, where that is installed.
"""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from disco_client import connect, errors

TESTS = Path(__file__).parents[1]
GPUS = "disco_test_gpus"


@pytest.fixture(scope="module")
def nodes(carrier):
    """The nodes that were started, for their metrics."""
    return []


@pytest.fixture(scope="module")
def address(shared_daemons, nodes, carrier):
    """A controller and two nodes with two GPUs each."""
    controller = shared_daemons.controller()
    path = os.pathsep.join(str(TESTS / part) for part in ("standin", "worker_modules"))
    for name, devices in (("one", "cuda:0,1"), ("two", "cuda:2,3")):
        options = ("--name", name, "--devices", devices, "--allow-module", GPUS)
        # The check asks the driver, which has no stand-in.
        environ = {"PYTHONPATH": path, "DISCO_DEVICE_CHECK": "off", "DISCO_HTTP": "127.0.0.1:0"}
        environ |= carrier
        nodes.append(shared_daemons.worker(controller.address, *options, **environ))
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


def test_the_collectives_of_the_standin_are_carried_as_asked(gpus, carrier):
    """Where oneCCL shall carry them, it is in every worker's process; otherwise in none."""
    session = gpus(4)
    session.allreduce(session.empty((3,), "float32"))
    loaded = each(session, call(session, "carriers"))
    expected = ["libccl.so.1", "libccl.so.2", "libccl_legacy_cpu.so"] if carrier else []
    assert loaded == [expected] * 4


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


# How the ranks get the unique id of each communicator -----------------------------------------


OLD = "21703"
"""A version of NCCL that cannot split a communicator: each group and team has an id of its own."""


def keys(nodes):
    """How many keys of the rendezvous the ranks of each node have written or read."""
    counts = []
    for node in nodes:
        port = re.search(r"metrics at http://127.0.0.1:(\d+)", node.stderr)[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = re.search(
                r"^disco_node_keys_total (\S+)$", answer.read().decode(), re.MULTILINE
            )
        counts.append(int(float(found[1])))
    return counts


@pytest.mark.parametrize("old", [False, True])
def test_unique_ids_of_the_standin_come_through_the_rendezvous(gpus, nodes, old):
    """Each rank writes or reads one key for a communicator that has an id."""
    session = gpus(4, num_groups=2)
    if old:
        for worker in range(4):
            call(session, "set_on", worker, "STANDIN_NCCL_VERSION", OLD)
    before = keys(nodes)
    array = call(session, "rank_plus", session.broadcast(np.zeros(3, "float32")))
    groups = session.allreduce(array)
    teams = call(session, "teams_of_two", array)
    for worker, expected in enumerate((1, 1, 5, 5)):
        assert groups.numpy(worker).tolist() == [expected] * 3
        assert teams.numpy(worker).tolist() == [expected] * 3
    # Of all workers; where the library cannot split, of the group and of the team as well.
    used = [3 if old else 1] * 2
    assert [after - at for after, at in zip(keys(nodes), before, strict=True)] == [
        2 * each for each in used
    ]


@pytest.mark.parametrize("how", ["dies", "fails", "stops"])
def test_a_worker_that_gives_no_unique_id_ends_the_session_of_the_standin(gpus, how):
    """Its peers wait for the key by then, and are not left there; the error names it."""
    session = gpus(4)
    for worker in range(4):
        call(session, "set_on", worker, "STANDIN_NCCL_VERSION", OLD)
        call(session, "set_on", worker, "DISCO_INIT_TIMEOUT_S", "2" if how == "stops" else "60")
    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    call(session, "die_in_id", 2, how)
    call(session, "teams_of_two", array)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    if how == "dies":
        assert lost.value.worker == 2
    elif how == "stops":
        assert lost.value.worker == 3
        assert "the unique id of worker 2 did not come" in str(lost.value)
        assert "within 2 s" in str(lost.value)
    else:
        assert "worker 2 could not make a unique id" in str(lost.value)
