"""The Session's calls: what they take, what they return, and when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import disco_client as di

LARGE = 40_000  # elements; as float32 beyond what travels inside a command
EVERY_LAYOUT = pytest.mark.layouts((1, 1), (2, 1), (2, 2), (4, 1), (4, 2))


# What it is -------------------------------------------------------------------------


@EVERY_LAYOUT
def test_its_size_is_known_without_a_round_trip(case, session):
    """No command is issued for it."""
    before = session.statistics()["issued"]
    assert isinstance(session, di.Session)
    assert (session.num_workers, session.num_groups) == (case.workers, case.groups)
    assert session.statistics()["issued"] == before


def test_there_is_one_entry_for_each_worker(case, session):
    """With its number, and its process."""
    assert [place.worker for place in session.workers] == list(range(case.workers))
    pids = [place.pid for place in session.workers]
    assert (len(set(pids)) == case.workers) is case.kind.processes


@pytest.mark.parametrize(
    ("workers", "groups"),
    [(0, 1), (-1, 1), ("'2'", 1), (2.0, 1), (4, 3), (2, 0), (2, -2), (2, "'1'"), ("None", 1)],
)
def test_numbers_that_make_no_session_are_refused_at_once(program, workers, groups):
    """Where the original aborts, hangs or divides by zero."""
    with pytest.raises((di.ConfigError, TypeError), match=r"num_|expected"):
        eval(program(workers, groups), {"di": di})


# Functions --------------------------------------------------------------------------


def test_each_lookup_is_a_reference_of_its_own(session):
    """They return at once and are not cached."""
    first = session.get_global_func("conformance.echo")
    second = session.get_global_func("conformance.echo")
    assert isinstance(first, di.DPackedFunc)
    assert first.reg_id != second.reg_id


@EVERY_LAYOUT
def test_a_call_runs_on_every_worker_and_gives_a_plain_reference(session, tools):
    """Through the function or through the session, and for a result of None too."""
    rank = session.get_global_func("runtime.disco.worker_rank")
    for ref in (rank(), session.call_packed(rank)):
        assert type(ref) is di.DRef
        assert tools.fetch(ref) == list(tools.workers)
    nothing = tools.call("echo", None)
    assert type(nothing) is di.DRef
    assert tools.fetch(nothing) == [None] * session.num_workers


@pytest.mark.parametrize("func", ["conformance.echo", 5, None, len])
def test_only_a_reference_is_called(session, tools, func):
    """Everything else is a TypeError, and the session goes on."""
    with pytest.raises(TypeError):
        session.call_packed(func)
    assert tools.results("echo", 1)[0] == 1


def test_a_module_is_imported_everywhere(session, tools):
    """The call returns nothing, at once."""
    assert session.import_python_module("numpy.linalg") is None
    session.sync_all()
    assert tools.results("numpy.linalg.norm", [3.0, 4.0]) == [5.0] * session.num_workers


def test_a_modules_functions_are_found_by_name(session, tools):
    """``module["name"]`` is a function; the module's reference may go before it."""
    module = di.DModule(tools.call("module"), session)
    add = module["add"]
    assert isinstance(add, di.DPackedFunc)
    del module
    assert tools.fetch(add(2, 3)) == [5] * session.num_workers


def test_a_module_is_asked_for_a_function_without_an_error(session, tools):
    """By ``in``, by its names, and by the original's query, whose null is None."""
    module = di.DModule(tools.call("module"), session)
    assert "add" in module
    assert "nope" not in module
    assert {"add", "matmul"} <= set(module.names())
    find = session.get_global_func("ffi.ModuleGetFunction")
    assert tools.fetch(find(module, "nope", True)) == [None] * session.num_workers
    assert None not in tools.fetch(find(module, "add", True))
    session.sync_all()
    find(module, "nope")
    with pytest.raises(di.FunctionNotFound, match="nope"):
        session.sync_all()


# Order and waiting --------------------------------------------------------------------


def test_calls_do_not_wait_and_syncs_do(session, tools, waiter):
    """Thousands of calls go out while the workers are busy; they run in order."""
    tools.call("wait_for_file", str(waiter))
    add = session.get_global_func("conformance.add")
    ref = tools.call("echo", 0)
    for _ in range(3000):
        ref = add(ref, 1)
    synced = []

    def wait():
        for sync in (session.sync_worker_0, session.sync_all, session._sync_all):
            sync()
        for sync in (session.sync_worker, session._sync_worker):
            sync(session.num_workers - 1)
        synced.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)
    assert not synced
    waiter.touch()
    waiting.join()
    assert synced
    assert tools.fetch(ref) == [3000] * session.num_workers


def test_syncs_return_nothing(session):
    """Under the original's names and ours."""
    calls = (session.sync_worker_0, session.sync_all, session._sync_all)
    assert [call() for call in calls] == [None] * 3
    assert session._sync_worker(1) is session.sync_worker(0) is None


# Arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (0,), (2, 0, 3), [2, 3], di.Shape((4,)), (np.int64(2), 1), range(2, 4)], ids=repr
)
def test_empty_takes_any_shape(session, tools, shape):
    """Any integers, none at all, and zeros."""
    ref = session.empty(shape, "int16")
    assert [a.shape for a in tools.fetch(ref)] == [tuple(shape)] * session.num_workers


def test_a_shape_may_be_made_by_a_generator(session):
    """It is read once."""
    assert session.empty((n for n in (3, 2)), "int8").numpy().shape == (3, 2)


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", np.dtype("uint64"), np.int8])
def test_empty_takes_dtypes_by_name_and_by_object(session, tools, dtype):
    """The workers' arrays have it."""
    wanted = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    assert [a.dtype.name for a in tools.fetch(session.empty((2,), dtype))] == [
        wanted
    ] * session.num_workers


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", di.cpu(0)], ids=repr)
def test_empty_takes_a_device(session, device):
    """None is each worker's own, which is the CPU here."""
    assert session.empty((1,), "int8", device).numpy(1).shape == (1,)


@pytest.mark.parametrize("count", [3, LARGE])
@EVERY_LAYOUT
def test_a_copy_to_worker_0_is_on_worker_0_only(session, tools, count):
    """It is a snapshot: the host array may be changed at once."""
    host = np.arange(count, dtype="float32")
    expected = host.copy()
    ref = session.copy_to_worker_0(host)
    host[:] = -1
    got = tools.fetch(ref)
    np.testing.assert_array_equal(got[0], expected)
    assert got[1:] == [None] * (session.num_workers - 1)


@pytest.mark.parametrize("count", [6, LARGE])
def test_a_copy_goes_into_an_array_that_is_given(session, count):
    """In place, whatever its shape; the same reference is returned."""
    ref = session.empty((2, count // 2), "float32", worker0_only=True)
    host = np.arange(count, dtype="float32")
    assert session.copy_to_worker_0(host, ref) is ref
    np.testing.assert_array_equal(ref.numpy(), host.reshape(2, -1))


@pytest.mark.layouts((4, 2))
def test_only_worker_0_is_written_even_where_leaders_have_an_array(session, tools):
    """The other groups' leaders keep what they had."""
    ref = session.empty((2,), "int64", worker0_only=True)
    ref.debug_copy_from(2, [7, 7])
    session.copy_to_worker_0(np.array([1, 2]), ref)
    assert [None if a is None else a.tolist() for a in tools.fetch(ref)] == [
        [1, 2],
        None,
        [7, 7],
        None,
    ]


@pytest.mark.parametrize("count", [6, LARGE])
def test_a_copy_from_worker_0_fills_the_array_before_it_returns(session, tools, count):
    """Contiguous or not, of any shape with as many elements."""
    expected = np.arange(count, dtype="float32")
    ref = session.copy_to_worker_0(expected)
    plain = np.empty((2, count // 2), "float32")
    strided = np.empty((count, 2), "float32")[:, 0]
    for host in (plain, strided):
        assert session.copy_from_worker_0(host, ref) is None
        np.testing.assert_array_equal(host.reshape(-1), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(6.0).reshape(2, 3).T,
        lambda: np.arange(12.0)[::2],
        lambda: np.broadcast_to(np.float64(3), (2, 2)),
        lambda: np.arange(3, dtype=">i4"),
        lambda: [[1, 2], [3, 4]],
        lambda: 5.0,
    ],
    ids=["transposed", "strided", "read-only", "big-endian", "list", "number"],
)
def test_any_host_array_can_be_copied(session, make):
    """Where the original aborts or raises."""
    host = make()
    np.testing.assert_array_equal(session.copy_to_worker_0(host).numpy(), np.asarray(host))


# Threads and signals ----------------------------------------------------------------------


def test_several_threads_use_a_session_at_once(session):
    """Each gets its own answers."""
    wrong = []

    def work(number):
        add = session.get_global_func("conformance.add")
        for index in range(30):
            got = add(number * 1000, index).debug_get_from_remote(index % 2)
            if got != number * 1000 + index:
                wrong.append((number, index, got))
            session.sync_worker(index % 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
