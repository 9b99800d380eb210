"""What one rank is, and what the functions on it may ask of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_client import Device
from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.types import MismatchError, ReduceOp, UnavailableError
from disco_server.rank.worker import Worker, WorkerDevice, current_worker, set_current_worker


def never(worker, ccl):
    pytest.fail("no process group was needed")


def unavailable(worker, ccl):
    msg = f"no {ccl}"
    raise UnavailableError(msg)


def test_a_worker_knows_its_place():
    """Number, groups, node and device; printed for people."""
    place = WorkerDevice(Device("cpu", 0))
    worker = Worker(3, 6, 2, open_groups=never, node="n", place=place)
    assert (worker.worker_id, worker.num_workers, worker.num_groups) == (3, 6, 2)
    assert worker.group_size == 3
    assert repr(worker) == "<Worker 3 of 6 on n, cpu:0>"
    assert Worker(0, 1, 1, open_groups=never).device == Device("cpu", 0)


def test_only_a_workers_own_thread_finds_it():
    """Another thread, and one after the worker left, is told what to do."""
    worker = Worker(0, 1, 1, open_groups=never)
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
    worker = Worker(2, 4, 4, open_groups=never)
    array = np.arange(4.0)
    got = worker.allreduce(array)
    assert got is not array
    np.testing.assert_array_equal(got, array)
    into = np.zeros((2, 2))
    assert worker.allreduce(array, into) is into
    np.testing.assert_array_equal(into.reshape(-1), array)
    assert worker.allreduce(array, array) is array
    worker.guard.position = 5
    worker.cannot_enter(5)
    assert not worker.poll()
    worker.close()


def test_a_library_that_did_not_start_is_tried_again():
    """The rank has no half of one."""
    worker = Worker(0, 2, 1, open_groups=unavailable, ccl="mpi")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="no mpi"):
            worker.barrier()
    with pytest.raises(UnavailableError, match="no local"):
        worker.init_ccl("local")
    # What it was asked for by name is not what others get.
    with pytest.raises(UnavailableError, match="no mpi"):
        worker.barrier()


def test_process_groups_do_all_collectives_and_transfers():
    """Among all workers or those of the group, of which each knows its rank."""
    shared = LocalWorld(4, 2)

    def act(rank):
        worker = Worker(rank, 4, 2, open_groups=lambda *_: LocalGroups(rank, shared))
        worker.guard.position = 1
        total, part = np.full(2, rank), np.full(2, rank)
        worker.world.allreduce(total, total, ReduceOp.SUM)
        worker.group.allreduce(part, part, ReduceOp.SUM)
        came = np.empty(1, int)
        if worker.group.rank:
            worker.group.send(np.array([rank]), 0)
            worker.world.recv(came, rank - 1)
        else:
            worker.group.recv(came, 1)
            worker.world.send(np.array([rank]), rank + 1)
        return total[0], part[0], came[0], worker.group.members, worker.world.rank

    with ThreadPoolExecutor(4) as threads:
        seen = list(threads.map(act, range(4)))
    assert [each[:3] for each in seen] == [(6, 1, 1), (6, 1, 0), (6, 5, 3), (6, 5, 2)]
    assert [each[3:] for each in seen] == [((0, 1), 0), ((0, 1), 1), ((2, 3), 2), ((2, 3), 3)]


def test_the_name_of_the_former_communicator_says_what_to_write():
    """A program that uses it learns the names that replace it."""
    worker = Worker(0, 1, 1, open_groups=never)
    with pytest.raises(AttributeError, match=r"worker\.world, for all .* worker\.group"):
        worker.comm.broadcast(np.ones(1), np.ones(1))


def test_teams_know_which_command_runs():
    """A function that has one need not ask for the process groups in its own command."""
    world = LocalWorld(2)

    def act(rank):
        worker = Worker(rank, 2, 1, open_groups=lambda *_: LocalGroups(rank, world))
        assert worker.received_bytes == 0
        worker.guard.position = 1
        team = worker.make_teams([[1, 0]])
        assert team is worker.make_teams([[1, 0]])
        worker.guard.position = 5
        try:
            team.barrier() if rank else team.broadcast(np.ones(3), np.ones(3), 1)
        except MismatchError as error:
            said = str(error)
        worker.guard.position = 6
        team.allgather(np.full(2, rank), np.zeros(4, int), [2, 2])
        return said, worker.received_bytes

    with ThreadPoolExecutor(2) as threads:
        (first, count), (second, _) = threads.map(act, range(2))
    assert first == second
    assert first.count("(command #5)") == 2
    assert count == 16
