"""What one rank is, and what the functions on it may ask of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_client import Device
from disco_server.collectives.local import LocalCommunicator, LocalWorld
from disco_server.collectives.types import MismatchError, UnavailableError
from disco_server.rank.worker import Worker, WorkerDevice, current_worker, set_current_worker


def never(worker, ccl):
    pytest.fail("no communicator was needed")


def unavailable(worker, ccl):
    msg = f"no {ccl}"
    raise UnavailableError(msg)


def test_a_worker_knows_its_place():
    """Number, groups, node and device; printed for people."""
    place = WorkerDevice(Device("cpu", 0))
    worker = Worker(3, 6, 2, open_communicator=never, node="n", place=place)
    assert (worker.worker_id, worker.num_workers, worker.num_groups) == (3, 6, 2)
    assert worker.group_size == 3
    assert repr(worker) == "<Worker 3 of 6 on n, cpu:0>"
    assert Worker(0, 1, 1, open_communicator=never).device == Device("cpu", 0)


def test_only_a_workers_own_thread_finds_it():
    """Another thread, and one after the worker left, is told what to do."""
    worker = Worker(0, 1, 1, open_communicator=never)
    set_current_worker(worker)
    try:
        assert current_worker() is worker
        found = []

        def look():
            try:
                found.append(current_worker())
            except ValueError as error:
                found.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert isinstance(found[0], ValueError)
    finally:
        set_current_worker(None)
    with pytest.raises(ValueError, match="not a worker's"):
        current_worker()


def test_without_peers_no_library_is_started():
    """An allreduce of one is a copy; closing and polling need nothing either."""
    worker = Worker(2, 4, 4, open_communicator=never)
    array = np.arange(4.0)
    got = worker.allreduce(array)
    assert got is not array
    np.testing.assert_array_equal(got, array)
    into = np.zeros((2, 2))
    assert worker.allreduce(array, into) is into
    np.testing.assert_array_equal(into.reshape(-1), array)
    assert worker.allreduce(array, array) is array
    worker.position = 5
    worker.cannot_enter(5)
    assert not worker.poll()
    worker.close()


def test_a_library_that_did_not_start_is_tried_again():
    """The rank has no half of one."""
    worker = Worker(0, 2, 1, open_communicator=unavailable, ccl="mpi")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="no mpi"):
            worker.barrier()
    with pytest.raises(UnavailableError, match="no local"):
        worker.init_ccl("local")
    # What it was asked for by name is not what others get.
    with pytest.raises(UnavailableError, match="no mpi"):
        worker.barrier()


def test_teams_know_which_command_runs():
    """A function that has one need not ask for the communicator in its own command."""
    world = LocalWorld(2)

    def act(rank):
        worker = Worker(rank, 2, 1, open_communicator=lambda *_: LocalCommunicator(rank, world))
        assert worker.received_bytes == 0
        worker.position = 1
        team = worker.make_teams([[1, 0]])
        assert team is worker.make_teams([[1, 0]])
        worker.position = 5
        try:
            team.barrier() if rank else team.broadcast(np.ones(3), np.ones(3), 1)
        except MismatchError as error:
            said = str(error)
        worker.position = 6
        team.allgather(np.full(2, rank), np.zeros(4, int), [2, 2])
        return said, worker.received_bytes

    with ThreadPoolExecutor(2) as threads:
        (first, count), (second, _) = threads.map(act, range(2))
    assert first == second
    assert first.count("(command #5)") == 2
    assert count == 16
