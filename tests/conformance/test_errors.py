"""What goes wrong on a worker is a typed error at the client, and the session goes on."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di

BOTH_ENDS = pytest.mark.layouts((1, 1), (4, 1))
HERE = Path(__file__).name


# In what a worker does ----------------------------------------------------------------


@pytest.mark.layouts((4, 2))
@pytest.mark.parametrize("workers", [[0], [3], [1, 2], [0, 1, 2, 3]], ids=str)
def test_an_exception_comes_with_its_rank_its_traceback_and_our_line(session, tools, workers):
    """At the next sync; the other workers' results are good."""
    result = tools.call("fail_on", workers, "it broke")
    with pytest.raises(di.RemoteException, match="ValueError: it broke") as raised:
        session.sync_all()
    error = raised.value
    assert error.worker == workers[0]
    assert {failure.worker for failure in error.failures} <= set(workers)
    assert error.function == "conformance.fail_on"
    assert "in fail_on" in error.remote_traceback
    assert error.issued_at is not None
    assert error.issued_at.filename.endswith("conftest.py")
    for worker in tools.workers:
        if worker in workers:
            with pytest.raises(di.RemoteException, match="it broke"):
                result.debug_get_from_remote(worker)
        else:
            assert result.debug_get_from_remote(worker) == worker


def test_the_line_that_issued_a_failed_call_is_named(session):
    """The one in the program, not one of the library."""
    fail = session.get_global_func("conformance.fail_on")
    fail([1], "here")
    with pytest.raises(di.RemoteException, match=f'File ".*{HERE}", line') as raised:
        session.sync_all()
    assert raised.value.issued_at.function == ("test_the_line_that_issued_a_failed_call_is_named")


def test_what_depends_on_a_failure_shows_its_cause(session, tools):
    """The first cause, whoever asks, and however far away."""
    ref = tools.call("fail_on", [1], "first cause")
    for _ in range(5):
        ref = tools.call("echo", ref)
    with pytest.raises(di.RemoteException, match="first cause"):
        session.sync_all()
    with pytest.raises(di.RemoteException, match="first cause"):
        ref.debug_get_from_remote(1)
    assert ref.debug_get_from_remote(0) == 0
    session.sync_all()  # it has been raised


@pytest.mark.parametrize("wait", ["sync_worker_0", "sync_all", "get", "copy"])
def test_every_call_that_waits_raises_what_is_unseen(session, tools, wait):
    """Even where it is about something else."""
    good = session.copy_to_worker_0(np.zeros(2))
    session.sync_all()
    tools.call("fail_on", list(tools.workers), "unseen")
    waits = {
        "get": lambda: good.debug_get_from_remote(0),
        "copy": lambda: session.copy_from_worker_0(np.zeros(2), good),
    }
    with pytest.raises(di.RemoteException, match="unseen"):
        waits.get(wait, getattr(session, wait, None))()


@BOTH_ENDS
@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("conformance.no_such", (), di.FunctionNotFound),
        ("numpy.no_such", (), di.FunctionNotFound),
        ("numpy.pi", (), di.FunctionNotFound),
        ("conformance.add", (1,), di.RemoteException),
        ("conformance.add", (1, 2, 3), di.RemoteException),
        ("conformance.add", (1, "2"), di.RemoteException),
        ("runtime.disco.empty", ("shape",), di.RemoteException),
        ("runtime.disco.empty", (di.Shape((2,)), "float33", None, False, True), di.BadArgument),
        ("runtime.disco.empty", (di.Shape((1 << 60,)), "int8", None, 0, 1), di.BadArgument),
        ("runtime.disco.empty", (di.Shape((2,)), "int8", di.cpu(7), 0, 1), di.BadArgument),
        ("runtime.disco.empty", (di.Shape((2,)), "int8", di.cuda(99), 0, 1), di.BadArgument),
        ("runtime.disco._import_python_module", ("no_such_module",), di.FunctionNotFound),
        ("ffi.ModuleGetFunction", (5, "f"), di.BadArgument),
    ],
)
def test_a_call_that_cannot_be_is_a_typed_error(session, tools, name, args, error):
    """Of the next sync."""
    tools.call(name, *args)
    with pytest.raises(error):
        session.sync_all()


@BOTH_ENDS
@pytest.mark.parametrize("content", [None, 5, "text", [1]])
def test_what_is_no_function_cannot_be_called(session, tools, content):
    """The error shows what is in the register instead."""
    session.call_packed(tools.call("echo", content))
    with pytest.raises(di.BadArgument, match="expected a function"):
        session.sync_all()


def test_a_function_that_a_module_lacks_is_an_error_of_the_next_sync(session, tools):
    """Not of its call, and not the end of the program."""
    module = di.DModule(tools.call("module"), session)
    func = module["no_such_function"]
    with pytest.raises(di.FunctionNotFound, match="no_such_function"):
        session.sync_all()
    with pytest.raises(di.FunctionNotFound, match="no_such_function"):
        func().debug_get_from_remote(0)


def test_a_module_that_is_not_there_is_an_error_of_the_next_sync(session):
    """With its name."""
    session.import_python_module("no_such_module_anywhere")
    with pytest.raises(di.FunctionNotFound, match="no_such_module_anywhere"):
        session.sync_all()


# In what the program passes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((2,), "float33", di.ConfigError),
        ((2,), 5, di.ConfigError),
        ((2,), "object", di.ConfigError),
        ((-3,), "float32", di.ConfigError),
        ((1.5,), "float32", di.DtypeError),
        ((True,), "float32", di.DtypeError),
        ("12", "float32", di.DtypeError),
        (None, "float32", di.DtypeError),
        (3, "float32", di.DtypeError),
        ((1 << 50,), "float32", di.ConfigError),
        ((1 << 70,), "float32", di.ConfigError),
        ((0, 10**5000), "float32", di.ConfigError),
    ],
)
def test_an_array_that_cannot_be_is_refused_here(session, shape, dtype, error):
    """Before anything is sent."""
    gc.collect()
    session.sync_all()  # takes along the registers of references that died before
    issued = session.statistics()["issued"]
    with pytest.raises(error):
        session.empty(shape, dtype)
    assert session.statistics()["issued"] == issued


@BOTH_ENDS
@pytest.mark.parametrize(
    "host", [np.zeros(5, "float32"), np.zeros(6, "int32"), np.zeros(6, "float64")]
)
@pytest.mark.parametrize("how", ["to", "from", "first", "last"])
def test_copies_between_unlike_arrays_are_refused(session, tools, host, how):
    """Size and dtype must be the same; what a refused copy would have filled is not read."""
    ref = tools.call("numpy.ones", [6], "float32")
    last = session.num_workers - 1
    copies = {
        "to": lambda: (session.copy_to_worker_0(host, ref), session.sync_all()),
        "from": lambda: session.copy_from_worker_0(host, ref),
        "first": lambda: ref.debug_copy_from(0, host),
        "last": lambda: ref.debug_copy_from(last, host),
    }
    with pytest.raises(di.BadArgument, match="must be the same"):
        copies[how]()
    if how == "to":  # nobody has waited for that one
        with pytest.raises(di.BadArgument, match="must be the same"):
            ref.numpy()
        session.copy_to_worker_0(np.ones(6, "float32"), ref)
    for got in tools.fetch(ref):
        np.testing.assert_array_equal(got, np.ones(6))


@pytest.mark.parametrize("host", ["text", object(), None, [object()]], ids="abcd")
def test_what_is_no_array_of_numbers_is_not_copied(session, host):
    """Neither to worker 0 nor to another one."""
    ref = session.empty((1,), "float32")
    with pytest.raises((di.EncodingError, TypeError)):
        session.copy_to_worker_0(host)
    with pytest.raises((di.EncodingError, TypeError)):
        ref.debug_copy_from(0, host)


def test_an_array_that_cannot_be_written_is_not_filled(session):
    """It is refused before anything is fetched."""
    host = np.zeros(2, "float32")
    host.flags.writeable = False
    ref = session.empty((2,), "float32")
    for wrong in (host, [0.0, 0.0], None):
        with pytest.raises((di.EncodingError, TypeError)):
            session.copy_from_worker_0(wrong, ref)


def test_a_copy_from_what_is_no_array_is_refused(session, tools):
    """A register without an array says what it has."""
    with pytest.raises(di.BadArgument, match="expected an array"):
        session.copy_from_worker_0(np.zeros(1), tools.call("echo", "text"))


def test_a_reference_of_another_session_is_refused(session, open_session):
    """The original reads whatever its number means here."""
    theirs = open_session(1).empty((2,), "float32")
    echo = session.get_global_func("conformance.echo")
    mine = session.empty((2,), "float32")
    for use in (
        lambda: echo(theirs),
        lambda: session.call_packed(theirs),
        lambda: session.allreduce(mine, theirs),
        lambda: session.copy_from_worker_0(np.zeros(2, "float32"), theirs),
        lambda: session.copy_to_worker_0(np.zeros(2, "float32"), theirs),
        lambda: di.DPackedFunc(theirs, session),
    ):
        with pytest.raises(di.ForeignReference):
            use()


# In a worker itself ---------------------------------------------------------------------


def test_a_worker_that_dies_ends_its_session_with_a_name(
    workers_of_their_own, open_session, tools_of
):
    """Whoever waits is told at once; later calls say the same, and shutdown is fine."""
    session = open_session(2)
    tools = tools_of(session)
    ref = tools.call("echo", 1)
    session.sync_all()
    tools.call("kill_on", 1, int(signal.SIGKILL))
    with pytest.raises(di.WorkerLost, match="SIGKILL") as lost:
        session.sync_worker(1)
    assert (lost.value.worker, lost.value.exit_status) == (1, -9)
    for use in (session.sync_all, session.sync_worker_0, lambda: ref.debug_get_from_remote(0)):
        with pytest.raises(di.WorkerLost):
            use()
    session.shutdown()


def test_a_worker_that_was_stopped_goes_on_later(workers_of_their_own, session, tools):
    """What is merely slow is waited for, not killed."""
    pid = tools.results("pid")[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        result = tools.call("echo", "late")
        done = []
        waiting = threading.Thread(target=lambda: done.append(result.debug_get_from_remote(1)))
        waiting.start()
        waiting.join(0.2)
        assert not done
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    finally:
        os.kill(pid, signal.SIGCONT)
    waiting.join()
    assert done == ["late"]


@pytest.mark.parametrize(
    "wait",
    [
        lambda session, ref, _into: session.sync_all(),
        lambda session, ref, _into: session.sync_worker_0(),
        lambda session, ref, _into: session.sync_worker(1),
        lambda session, ref, into: np.copyto(into, ref.numpy(1)),
        lambda session, ref, into: session.copy_from_worker_0(into, ref),
        lambda session, ref, _into: ref.debug_copy_from(1, np.arange(500_000.0)),
    ],
    ids=["sync_all", "sync_worker_0", "sync_worker", "numpy", "copy_from", "debug_copy_from"],
)
def test_ctrl_c_stops_any_wait_which_is_right_when_it_is_repeated(session, tools, waiter, wait):
    """As in a cell of a notebook: the session works on, and answers do not get mixed up."""
    array, into = np.arange(500_000.0), np.zeros(500_000)
    ref = tools.place([array, array])
    session.sync_all()
    tools.call("wait_for_file", str(waiter))
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        wait(session, ref, into)
    interrupt.join()
    assert not waiter.exists()  # the workers are still busy
    waiter.touch()
    wait(session, ref, into)
    assert not into.any() or np.array_equal(into, array)
    assert np.array_equal(ref.numpy(1), array)
    assert tools.results("echo", 5) == [5, 5]


def test_ctrl_c_ends_a_wait_at_once_and_the_session_goes_on(session, tools, waiter):
    """The original delivers it when the wait is over, or aborts."""
    tools.call("wait_for_file", str(waiter))
    main = threading.main_thread().ident

    def interrupt():
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)

    waits = threading.Thread(target=interrupt)
    waits.start()
    with pytest.raises(KeyboardInterrupt):
        session.sync_all()
    waits.join()
    assert not waiter.exists()  # the workers are still busy
    waiter.touch()
