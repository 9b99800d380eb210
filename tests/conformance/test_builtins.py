"""The functions that every worker offers under the original's names."""

from __future__ import annotations

import os

import numpy as np
import pytest

import disco_client as di
from disco_server.rank.builtins import core as builtins

NAMES = [
    "empty",
    "allreduce",
    "allgather",
    "broadcast_from_worker0",
    "scatter_from_worker0",
    "gather_to_worker0",
    "recv_from_worker0",
    "send_to_next_group",
    "recv_from_prev_group",
    "send_to_worker",
    "recv_from_worker",
    "worker_id",
    "worker_rank",
    "world_size",
    "device",
    "bind_worker_to_cpu_core",
    "_import_python_module",
    "compiled_ccl",
    "init_ccl",
]


def test_they_are_all_there(session, tools):
    """A missing one would be an error of the sync."""
    functions = [session.get_global_func(f"runtime.disco.{name}") for name in NAMES]
    session.sync_all()
    assert len({func.reg_id for func in functions}) == len(NAMES)


@pytest.mark.layouts((1, 1), (2, 2), (4, 1), (4, 2))
def test_a_worker_knows_where_it_is(case, tools):
    """Its number as a shape and as a number, how many there are, its device and library."""
    numbers = list(tools.workers)
    assert tools.results("runtime.disco.worker_id") == [di.Shape((n,)) for n in numbers]
    assert tools.results("runtime.disco.worker_rank") == numbers
    assert tools.results("runtime.disco.world_size") == [len(numbers)] * len(numbers)
    devices = tools.results("runtime.disco.device")
    if case.kind.gpus:
        assert {device.kind for device in devices} == {"cuda"}
        assert len(set(devices)) == len(numbers)
    else:
        assert devices == [di.cpu(0)] * len(numbers)
    assert tools.results("runtime.disco.compiled_ccl") == [case.kind.ccl] * len(numbers)


@pytest.mark.parametrize("name", ["worker_id", "worker_rank", "world_size", "device"])
def test_outside_a_worker_they_are_a_value_error(session, name):
    """Also where workers are threads of this process."""
    with pytest.raises(ValueError, match="current thread is not a worker's"):
        getattr(builtins, name)()


@pytest.mark.parametrize("args", [(), (di.Shape((2,)),), (di.Shape((2,)), "int8", None, False)])
def test_empty_wants_all_its_five_arguments(session, tools, args):
    """As the original's does."""
    tools.call("runtime.disco.empty", *args)
    with pytest.raises(di.RemoteException, match="TypeError"):
        session.sync_all()


@pytest.mark.layouts((4, 2))
@pytest.mark.parametrize(("only", "in_group"), [(1, 1), (True, False), (0, 0)])
def test_empty_takes_flags_as_numbers(tools, only, in_group):
    """As compiled programs send them."""
    got = tools.results("runtime.disco.empty", di.Shape((2,)), "int8", None, only, in_group)
    wanted = [not only or tools.team(w, bool(in_group))[0] == w for w in tools.workers]
    assert [part is not None for part in got] == wanted


def test_a_worker_is_bound_to_its_core(open_session, tools_of):
    """Each to the one at its place in the list; other workers keep theirs."""
    tools = tools_of(open_session(2))
    cores = sorted(os.sched_getaffinity(0))
    wanted = [cores[0], cores[-1]]
    tools.call("runtime.disco.bind_worker_to_cpu_core", di.Shape(wanted))
    assert tools.results("affinity") == [[core] for core in wanted]
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize(
    "cores",
    [
        di.Shape(()),
        di.Shape((0,)),
        di.Shape((0, 100_000)),
        di.Shape((0, 1 << 40)),
        [0, -1],
        [0, "x"],
    ],
    ids=str,
)
def test_a_core_that_there_is_not_is_refused(session, tools, cores):
    """So is a list that is too short, where the original aborts."""
    before = tools.results("affinity")
    tools.call("conformance.on", [1], "runtime.disco.bind_worker_to_cpu_core", cores)
    with pytest.raises(di.BadArgument, match="core"):
        session.sync_all()
    assert tools.results("affinity") == before


def test_a_module_is_imported_by_a_builtin_too(session, tools):
    """Its functions can be called afterwards."""
    tools.call("runtime.disco._import_python_module", "numpy.fft")
    assert np.allclose(tools.call("numpy.fft.fft", [1.0, 1.0]).numpy(1), [2, 0])


def test_a_barrier_is_passed_by_all(session, tools):
    """Inside groups and over all."""
    for in_group in (True, False):
        tools.call("runtime.disco.barrier", in_group)
    session.sync_all()


LIBRARIES = ("", "nccl", "rccl", "mpi", "local")
COLLECTIVES = (
    *("allreduce", "allgather", "broadcast_from_worker0", "scatter_from_worker0"),
    *("gather_to_worker0", "recv_from_worker0", "send_to_next_group", "recv_from_prev_group"),
    *("send_to_worker", "recv_from_worker"),
)


def test_a_collective_has_a_name_for_each_library(session, tools):
    """TVM's own code calls it so; the library is the session's."""
    total = session.empty((2,), "float32")
    for number, library in enumerate(LIBRARIES):
        for name in COLLECTIVES:
            session.get_global_func(f"runtime.disco.{library}.{name}")
        parts = tools.place(np.full((2, 2), number, "float32"))
        tools.call(f"runtime.disco.{library}.allreduce", parts, di.Shape((0,)), False, total)
        assert total.numpy(1).tolist() == [2 * number] * 2


def test_an_allreduce_of_tvms_passes_adds_up(session, tools):
    """Whichever strategy they chose."""
    total = session.empty((2, 3), "float32")
    for strategy in range(4):
        parts = tools.place(np.full((2, 2, 3), strategy + 1, "float32"))
        tools.call("runtime.disco.cuda_ipc.custom_allreduce", parts, strategy, total)
        assert total.numpy(0).tolist() == [[2 * strategy + 2] * 3] * 2


@pytest.mark.layouts((4, 2))
def test_an_allreduce_of_tvms_passes_has_no_groups(session, tools):
    """It is refused where there are some, as there is a function that can say which."""
    array = session.empty((2,), "float32")
    tools.call("runtime.disco.cuda_ipc.custom_allreduce", array, 0, array)
    with pytest.raises(di.BadArgument, match=r"call runtime\.disco\.allreduce, which"):
        session.sync_all()


def test_a_strategy_that_there_is_not_is_refused(session, tools):
    """The message has those that there are."""
    array = session.empty((2,), "float32")
    tools.call("runtime.disco.cuda_ipc.custom_allreduce", array, 4, array)
    with pytest.raises(di.BadArgument, match=r"from 0 \(ring\) to 3 \(auto\), got 4"):
        session.sync_all()


def test_nvshmem_is_not_served_and_the_message_says_what_is(session, tools):
    """Under each of its names."""
    for name in ("init_nvshmem_uid", "init_nvshmem", "empty", "finalize_nvshmem"):
        tools.call(f"runtime.disco.nvshmem.{name}")
        with pytest.raises(
            di.CclError, match=f"{name} is not served.*runtime.disco.send_to_worker"
        ):
            session.sync_all()
