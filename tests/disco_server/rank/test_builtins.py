"""The functions that every rank offers, under the original's names."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from disco_client import Device, Shape
from disco_client.errors import ConfigError, DiscoError
from disco_server.rank import functions
from disco_server.rank.builtins import core as builtins
from disco_server.rank.errors import ArgumentRefused, FunctionMissing, ModuleNotAllowed
from disco_server.rank.functions import registered, resolve
from disco_server.rank.worker import Worker, set_current_worker

ORIGINAL = """empty allreduce allgather broadcast_from_worker0 scatter_from_worker0
    gather_to_worker0 recv_from_worker0 send_to_next_group recv_from_prev_group send_to_worker
    recv_from_worker worker_id worker_rank world_size device bind_worker_to_cpu_core
    _import_python_module compiled_ccl"""


def never(worker, ccl):
    pytest.fail("no process group was needed")


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, num_workers=4, num_groups=2, allow=("numpy",)):
        worker = Worker(worker_id, num_workers, num_groups, open_groups=never, allow_modules=allow)
        set_current_worker(worker)
        return worker

    yield become
    set_current_worker(None)


def call(name, *args):
    return resolve(name, ())(*args)


def test_the_names_of_the_original_are_there():
    """Those that need no other library."""
    names = {f"runtime.disco.{name}" for name in ORIGINAL.split()}
    assert names <= set(registered())


RESULTS = {
    "mask": (np.ma.array, "MaskedArray.*mask"),
    "structured": (lambda part: np.zeros(len(part), [("a", "i4")]), "structured"),
    "objects": (lambda part: np.array([part, None], object), "Python's objects"),
    "generator": (lambda part: (each for each in part), "returned a generator"),
    "list of masked": (lambda part: [np.ma.array(part)], r"at \[0\]: .*mask"),
    "raises": (lambda part: [[1], [2, 3]], "expected what numpy makes an array of"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_part_of_a_tensor_is_a_plain_array_or_refused(at, monkeypatch, what):
    """What a rule's own function returns; numbers and lists of them become one."""
    at()
    function, match = RESULTS[what]
    monkeypatch.setitem(functions._registry, "trial.part", function)
    with pytest.raises(DiscoError, match=match):
        call("runtime.disco._dt_bind", "trial.part", {}, {}, "float64")(np.ones(2))
    for good in (lambda part: part.tolist(), lambda part: part.view(np.recarray)):
        monkeypatch.setitem(functions._registry, "trial.part", good)
        found = call("runtime.disco._dt_bind", "trial.part", {}, {}, "float64")(np.ones(2))
        assert type(found) is np.ndarray
        assert found.tolist() == [1, 1]


def test_outside_a_worker_they_say_so():
    """Instead of working on nobody's behalf."""
    with pytest.raises(ValueError, match="not a worker's"):
        call("runtime.disco.worker_id")


def test_a_rank_knows_where_it_is(at):
    """As a shape, as a number, among how many, on what."""
    at(3)
    assert call("runtime.disco.worker_id") == Shape([3])
    assert call("runtime.disco.worker_rank") == 3
    assert call("runtime.disco.world_size") == 4
    assert call("runtime.disco.device") == Device("cpu", 0)
    assert call("runtime.disco.compiled_ccl") == "mpi"


@pytest.mark.parametrize(
    ("only", "in_group", "holders"),
    [
        (False, True, [0, 1, 2, 3]),
        (False, False, [0, 1, 2, 3]),
        (True, True, [0, 2]),
        (True, False, [0]),
        (1, 0, [0]),
    ],
)
def test_empty_allocates_where_the_original_does(at, only, in_group, holders):
    """Everywhere, on each group's first worker, or on worker 0; None elsewhere."""
    got = []
    for worker in range(4):
        at(worker)
        array = call("runtime.disco.empty", Shape([2, 3]), "float32", None, only, in_group)
        if array is not None:
            assert (array.shape, array.dtype) == ((2, 3), np.float32)
            got.append(worker)
    assert got == holders


def test_empty_takes_dtypes_and_devices_in_every_form(at):
    """Names, dtypes, bfloat16; the worker's own device by object or text."""
    at(0)
    for dtype in ("bfloat16", np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16):
        array = call("runtime.disco.empty", [2], dtype, Device("cpu", 0), False, True)
        assert array.dtype == ml_dtypes.bfloat16
    assert call("runtime.disco.empty", (), "int8", "cpu", False, True).shape == ()


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (([1 << 60], "int8", None, False, True), ConfigError),
        (([1 << 40, 1 << 40, 0, 1 << 40], "int8", None, False, True), None),
        (([2], "float33", None, False, True), ConfigError),
        (([-2], "float32", None, False, True), ValueError),
        (([2], "float32", "cuda:0", False, True), ArgumentRefused),
        (([2], "float32", Device("cpu", 1), False, True), ArgumentRefused),
        (([2], "float32", "tpu", False, True), ConfigError),
    ],
)
def test_empty_refuses_what_the_worker_cannot_have(at, args, error):
    """Instead of dying for lack of memory or taking another device."""
    at(0)
    if error is None:  # nothing at all, of a strange shape: numpy itself decides
        with pytest.raises(ValueError, match="array"):
            call("runtime.disco.empty", *args)
        return
    with pytest.raises(error):
        call("runtime.disco.empty", *args)


def test_a_rank_is_bound_to_its_core(at):
    """The one at its place in the list; too few, or one that is not there, is refused."""
    before = os.sched_getaffinity(0)
    try:
        at(1)
        core = max(before)
        call("runtime.disco.bind_worker_to_cpu_core", Shape([0, core]))
        assert os.sched_getaffinity(0) == {core}
        with pytest.raises(ArgumentRefused, match="a core for each of 4 workers, got 1"):
            call("runtime.disco.bind_worker_to_cpu_core", Shape([0]))
        for absurd in (100_000, 1 << 40, 1 << 62, -1, "0", 0.5):
            with pytest.raises(ArgumentRefused, match=f"core {absurd}"):
                call("runtime.disco.bind_worker_to_cpu_core", [0, absurd])
    finally:
        os.sched_setaffinity(0, before)


def test_modules_are_imported_by_their_allowed_names(at):
    """Anything else is refused, or missing."""
    at(0)
    call("runtime.disco._import_python_module", "numpy.fft")
    with pytest.raises(ModuleNotAllowed):
        call("runtime.disco._import_python_module", "subprocess")
    with pytest.raises(FunctionMissing):
        call("runtime.disco._import_python_module", "numpy.no_such_thing")
    with pytest.raises(ArgumentRefused):
        call("runtime.disco._import_python_module", 5)


@pytest.mark.parametrize(
    ("worker", "name"),
    [
        (2, "runtime.disco.send_to_next_group"),
        (3, "runtime.disco.send_to_next_group"),
        (0, "runtime.disco.recv_from_prev_group"),
        (1, "runtime.disco.recv_from_prev_group"),
        (0, "runtime.disco.recv_from_worker0"),
    ],
)
def test_a_transfer_without_a_partner_is_refused(at, worker, name):
    """Before anything is opened or sent."""
    at(worker)
    with pytest.raises(ArgumentRefused):
        call(name, np.zeros(2))


@pytest.mark.parametrize("op", [Shape([5]), Shape(), 7, -1, None, "mean"])
def test_a_reduction_is_one_of_five(at, op):
    """By its code in a shape, as a number or by its name."""
    at(0)
    with pytest.raises((ArgumentRefused, ConfigError)):
        builtins._op(op)
    for good in (Shape([2]), 2, "min"):
        assert builtins._op(good).name == "MIN"
