"""On which device a worker computes, and what it makes of libraries for GPUs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_client.errors import ConfigError
from disco_client.wire.values import Device
from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.loss import Loss
from disco_server.collectives.types import CommunicatorLost, ReduceOp, UnavailableError
from disco_server.devices.base import DeviceUnavailable
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.worker import WorkerDevice

CPU, CUDA = Device("cpu", 0), Device("cuda", 1)


class Workers:
    """Some workers, each on a thread of its own."""

    def __init__(self, places):
        self.places = places
        self.world = LocalWorld(len(places))
        self.comms = [
            LocalGroups(rank, self.world, Loss(rank, place.lost))
            for rank, place in enumerate(places)
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in places]

    def each(self, act):
        def safely(rank):
            try:
                return act(self.places[rank], self.comms[rank])
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return error

        running = [each.submit(safely, rank) for rank, each in enumerate(self._threads)]
        return [each.result(30) for each in running]

    def close(self):
        self.world.close()
        for place in self.places:
            if place._watch is not None:
                place._watch.abort()
            place.close()
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)


@pytest.fixture
def workers(standin):
    """Opens workers on the stand-in's GPUs, which rank N has as number N."""
    opened = []

    def open_some(count, **hooks):
        places = [WorkerDevice(CPU, local_rank=rank, host="here", **hooks) for rank in range(count)]
        opened.append(Workers(places))
        numbers = range(count)
        assert opened[-1].each(lambda place, _: place.choose("nccl", numbers)) == [None] * count
        return opened[-1]

    yield open_some
    for each in opened:
        each.close()


def allreduce(place, groups):
    array = place.arrays.from_host(np.ones(5))
    groups.position += 1
    groups.world.allreduce(array, array, ReduceOp.SUM)
    return array


def test_a_worker_on_a_cpu_needs_nothing():
    """There is no library for its arrays, and nothing to wait for or to end."""
    place = WorkerDevice(CPU)

    assert (place.device, place.ccl, place.arrays.on_host) == (CPU, "", True)
    place.settle()
    place.close()


def test_a_worker_whose_slot_is_a_gpu_of_the_standin(standin):
    """Has its arrays there from the beginning, and a library for them."""
    place = WorkerDevice(CUDA)

    assert (place.device, place.ccl, place.arrays.on_host) == (CUDA, "nccl", False)
    with pytest.raises(DeviceUnavailable, match="cuda:9"):
        WorkerDevice(Device("cuda", 9))


@pytest.mark.parametrize(("local_rank", "device"), [(0, 3), (2, 1)])
def test_a_worker_finds_its_gpu_of_the_standin_by_its_place(standin, local_rank, device):
    """Among the workers of its machine; arrays lie there from then on, in its thread."""
    place = WorkerDevice(CPU, local_rank=local_rank)
    place.choose("nccl", [3, 2, 1])

    assert place.device == Device("cuda", device)
    assert standin.zeros(1).device.id == device
    assert standin.cuda.get_current_stream() == place.arrays.compute


@pytest.mark.parametrize(
    ("slot", "ccl", "ids", "words"),
    [
        (CPU, "nccl", (), r"expected the GPU of each worker on this machine, .* got 0 .* place 1"),
        (CPU, "nccl", (0,), r"as in init_ccl\('nccl', 0, 1\), got 1 for this one at place 1"),
        (CUDA, "nccl", (0,), "got 1 for this one at place 1"),
        (CUDA, "nccl", (0, 2), "names cuda:2 for this worker, which computes on cuda:1 already"),
        (CUDA, "rccl", (0, 1), "'rccl' moves arrays of rocm devices, this worker computes on cuda"),
    ],
)
def test_numbers_that_do_not_fit_the_worker_of_a_standin(standin, slot, ccl, ids, words):
    """Are refused with what was expected; the worker stays where it is."""
    place = WorkerDevice(slot, local_rank=1)
    with pytest.raises(ArgumentRefused, match=words):
        place.choose(ccl, ids)

    assert place.device == slot


@pytest.mark.parametrize("ids", [(), (0, 1)])
def test_a_slot_of_the_standin_need_not_be_named(standin, ids):
    """But may be."""
    place = WorkerDevice(CUDA, local_rank=1)
    arrays = place.arrays
    place.choose("nccl", ids)

    assert place.arrays is arrays


def test_a_gpu_that_the_standin_lacks_moves_nobody(standin):
    """The worker stays where it is."""
    place = WorkerDevice(CPU)
    for ccl, number in (("nccl", 8), ("rccl", 0)):
        with pytest.raises(DeviceUnavailable):
            place.choose(ccl, [number])

    assert place.arrays.on_host


def test_settling_waits_for_the_standin(workers):
    """Both streams of every worker are idle afterwards."""
    some = workers(2)
    assert some.each(lambda place, groups: place.start(groups, "nccl")) == [None, None]
    some.each(allreduce)  # whose work waits, unless the watch has asked for it by now
    some.each(lambda place, _: place.settle())
    assert some.each(lambda place, _: place.arrays.comm.done) == [True, True]


def test_a_library_of_the_standin_that_nobody_can_start(workers):
    """Is the same error on all, and nothing ends for it."""
    ended = []
    some = workers(2, end_process=lambda: ended.append(1), end_session=ended.append)
    some.places[1].arrays = WorkerDevice(CPU).arrays
    errors = some.each(lambda place, groups: place.start(groups, "nccl"))

    assert [type(error) for error in errors] == [UnavailableError] * 2
    assert str(errors[0]) == str(errors[1])
    assert ended == []


def test_limits_that_are_none_start_nothing_on_the_standin(workers, monkeypatch):
    """A person sees which variable is wrong."""
    monkeypatch.setenv("DISCO_NCCL_TIMEOUT_S", "soon")
    some = workers(1)
    (error,) = some.each(lambda place, groups: place.start(groups, "nccl"))

    assert isinstance(error, ConfigError)
    assert "DISCO_NCCL_TIMEOUT_S" in str(error)


@pytest.mark.parametrize("kind", ["process", "threads"])
def test_a_library_of_the_standin_that_fails_while_it_starts(workers, monkeypatch, capsys, kind):
    """Ends the process of the worker, or the session of threads: peers may be in it for ever."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "init:1")
    ended = []
    hooks = {
        "process": {"end_process": lambda: ended.append("")},
        "threads": {"end_session": ended.append},
    }
    some = workers(2, **hooks[kind])
    errors = some.each(lambda place, groups: place.start(groups, "nccl"))

    assert [type(error) for error in errors] == [CommunicatorLost] * 2
    said = [str(error) for error in errors]
    assert sorted(ended) == (["", ""] if kind == "process" else sorted(said))
    printed = capsys.readouterr().err.splitlines()
    assert {f"disco: {text}" for text in said} <= set(printed)


def test_a_loss_at_work_ends_the_process_on_the_standin(workers, monkeypatch, capsys, eventually):
    """After the last word of the library is printed, which the client will see."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "async:0:1")
    ended = threading.Event()
    some = workers(1, end_process=ended.set)
    some.each(lambda place, groups: place.start(groups, "nccl"))
    some.each(allreduce)

    assert ended.wait(10)
    words = "disco: worker 0: allreduce(sum) of command #0 failed in NCCL 2.32.3: NCCL_ERROR_REMOTE"
    assert words in capsys.readouterr().err


def test_a_loss_at_work_ends_the_waits_of_threads_on_the_standin(workers, monkeypatch, capsys):
    """The communicator is aborted, and whoever waits for the device hears why."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "async:0:1")
    some = workers(2)
    some.each(lambda place, groups: place.start(groups, "nccl"))
    some.each(allreduce)
    errors = some.each(lambda place, _: place.settle())

    assert [type(error) for error in errors] == [CommunicatorLost] * 2
    assert "worker 0: allreduce(sum) of command #0 failed" in str(errors[0])
