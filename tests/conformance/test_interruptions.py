"""Whatever is raised in a call is that call's failure; what comes between calls ends nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
import pytest

import disco_client as di

KINDS = {
    "Halt": "enough",
    "Unprintable": "its text raised Halt",
    "KeyboardInterrupt": "enough",
    "GeneratorExit": "enough",
    "CancelledError": "enough",
    "Failed": "enough",
    "Skipped": "enough",
    "BaseExceptionGroup": "enough",
    "MemoryError": "enough",
}


def works(session, tools):
    """All workers execute what comes next, and their arrays arrive."""
    session.sync_all()
    array = session.broadcast(np.arange(100_000.0))
    session.allreduce(array, array)
    return all(np.array_equal(got, 2 * np.arange(100_000.0)) for got in tools.fetch(array))


@pytest.mark.parametrize("captured", [False, True])
def test_whatever_a_function_raises_is_the_failure_of_its_call(session, tools, captured):
    """Of every class but SystemExit, with its traceback; its register is poisoned."""
    function = session.get_global_func("raising.on")
    for raised, text in KINDS.items():
        if captured:
            with session.capture() as program:
                result = function(1, raised)
                program.output(result)
            result = program()
        else:
            result = function(1, raised)
        with pytest.raises(di.RemoteException, match=text) as failed:
            session.sync_all()
        assert failed.value.worker == 1
        assert raised in failed.value.remote_traceback
        assert failed.value.remote_traceback.count("in raise_on") == 1
        with pytest.raises(di.RemoteException, match=text):
            result.debug_get_from_remote(1)
        assert result.debug_get_from_remote(0) == 1
    assert works(session, tools)


def test_so_it_is_wherever_code_of_the_program_runs(session, tools, tmp_path):
    """In constructors, methods, properties, callbacks, loggers, and files when they are loaded."""
    model = session.create("raising.Model")
    source = tmp_path / "disco_raising_source.py"
    source.write_text("import asyncio\nraise asyncio.CancelledError('in the file')\n")
    uses = {
        "in __init__": lambda: session.create("raising.Model", failing=True),
        "in step": model.step,
        "in loss": lambda: model.loss,
        "in the callback": lambda: tools.call("raising.in_callback"),
        "in the logger": lambda: tools.call("raising.in_logger"),
        "in the file": lambda: session.load_source(source),
    }
    for text, use in uses.items():
        ref = use()
        with pytest.raises(di.RemoteException, match=text):
            session.sync_all()
        del ref
    assert works(session, tools)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_value_raises_when_it_goes_or_is_shown_ends_nothing(kind, session, tools):
    """Its ``__del__`` has no call to fail; its ``__repr__`` is of the one that asks."""
    held = tools.call("raising.ending")
    if kind.processes:
        assert held.debug_get_from_remote(1).text == "its repr raised Halt"
    del held
    assert works(session, tools)


@pytest.mark.parametrize(("code", "status"), [(3, 3), ("no way", 1)])
def test_an_exit_of_a_function_ends_its_worker(open_session, tools_of, code, status):
    """With the status, the function and the command."""
    session = open_session(2)
    tools = tools_of(session)
    for number in range(40):
        tools.call("echo", number)
    session.sync_all()
    tools.call("raising.on", 1, code)
    seq = session.statistics()["issued"]
    with pytest.raises(di.WorkerLost) as lost:
        session.sync_worker(1)
    said = f" exited with status {status}: SystemExit: {code} was raised in raising.on"
    assert (lost.value.worker, lost.value.exit_status) == (1, status)
    assert f"{said} (command #{seq}); session" in str(lost.value)


def test_a_handler_that_raises_in_a_call_fails_that_call(workers_of_their_own, session, tools):
    """As an alarm is meant; the next call is not touched."""
    assert all(installed for installed, _ in tools.results("raising.handle"))
    for _ in range(2):
        tools.call("raising.alarm", 0.2, 0)
        late = tools.call("raising.sleep", 30)
        with pytest.raises(di.RemoteException, match="TimeoutError: it is late"):
            session.sync_all()
        with pytest.raises(di.RemoteException, match="in sleep"):
            late.debug_get_from_remote(0)
    assert works(session, tools)


def test_a_handler_that_raises_in_an_idle_worker_is_logged(
    workers_of_their_own, session, tools, printed, eventually
):
    """The worker goes on, and no command fails for it."""
    pids = [pid for _, pid in tools.results("raising.handle")]
    before = tools.results("raising.handled")
    session.sync_all()
    time.sleep(0.1)  # the replies have been sent
    for pid in pids:
        os.kill(pid, signal.SIGALRM)
    eventually(lambda: printed().count("TimeoutError: it is late") >= len(pids), what="the log")
    assert "while the worker ran no call; it goes on" in printed()
    assert tools.results("raising.handled") == [count + 1 for count in before]
    assert works(session, tools)


def test_handlers_that_raise_all_the_time_lose_no_frame(workers_of_their_own, session, tools):
    """Wherever they hit: what fails is calls, and everything else arrives once and in order."""
    tools.results("raising.handle")
    array, held = np.arange(50_000.0), tools.call("numpy.zeros", 50_000)
    assert works(session, tools)  # else an alarm may hit the look-up of what the session keeps
    tools.call("raising.alarm", 0.011, 0.011)
    rounds = good = 0
    failures = []
    begin = time.monotonic()
    try:
        while time.monotonic() < begin + (1 if good else 30):
            rounds += 1
            refs = [tools.call("echo", number) for number in range(50)]
            try:
                held.debug_copy_from(1, array)
                assert np.array_equal(held.numpy(1), array)
                assert [ref.debug_get_from_remote(1) for ref in refs[::10]] == [0, 10, 20, 30, 40]
                if not rounds % 4:
                    assert np.array_equal(session.broadcast(array).numpy(1), array)
                good += 1
            except di.RemoteError as error:
                failures.append(str(error))
    finally:
        for _ in range(5):  # an alarm may hit this call, too
            tools.call("raising.alarm", 0, 0)
            with contextlib.suppress(di.RemoteError):
                session.sync_all()
    # The other worker of a broadcast may learn of it first.
    late = ("it is late", "failed before entering it")
    assert all(any(text in failure for text in late) for failure in failures)
    assert good, failures
    assert min(tools.results("raising.handled")) > 10
    assert works(session, tools)


def test_what_another_thread_raises_in_an_idle_worker_is_logged(
    session, tools, tmp_path, eventually
):
    """It comes with the next command, which is executed all the same."""
    go, done = tmp_path / "go", tmp_path / "done"
    tools.call("raising.from_thread", str(go), str(done))
    session.sync_all()
    time.sleep(0.2)  # the replies have been sent
    go.touch()
    files = [tmp_path / f"done-{worker}" for worker in tools.workers]
    eventually(lambda: all(file.exists() and file.read_text() for file in files), what="threads")
    assert [file.read_text() for file in files] == ["1"] * len(files)
    assert tools.results("echo", 7) == [7] * len(files)
    assert works(session, tools)
