"""Sessions on threads: shared objects, collectives, output, endings."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading

import numpy as np
import pytest

import disco_client
import disco_server
from disco_client import errors
from disco_server.embedded import threads as embedded_threads


def rank_threads():
    return {t for t in threading.enumerate() if "-rank-" in t.name or t.name == "disco-sender"}


def test_workers_are_named_threads_of_this_process(threads):
    """Every worker's process is this one, and each thread has its own rank."""
    session = threads(3)
    assert {place.pid for place in session.workers} == {os.getpid()}
    names = {thread.name for thread in rank_threads()}
    assert {f"{session.name}-rank-{worker}" for worker in range(3)} <= names
    rank = session.get_global_func("runtime.disco.worker_rank")()
    assert [rank.debug_get_from_remote(w) for w in range(3)] == [0, 1, 2]


def test_any_object_can_be_fetched(threads):
    """What a worker holds comes as it is: functions, modules, lists of anything."""
    session = threads(2)
    echo = session.get_global_func("tests.echo")
    assert callable(echo.debug_get_from_remote(1))
    assert echo.debug_get_from_remote(1)(4) == 4
    made = session.get_global_func("tests.make_list")(3)
    assert made.debug_get_from_remote(1) == [0, 1, 2, len]
    assert made.debug_get_from_remote(1) is made.debug_get_from_remote(1)


@pytest.mark.parametrize("nbytes", [0, 104, 64 << 10, (64 << 10) + 8, 64 << 20])
def test_arrays_go_and_come(threads, nbytes):
    """The host array is the program's own again when the copy returns, either way."""
    session = threads(1)
    host = np.arange(nbytes // 8, dtype="int64")
    expected = host.copy()
    fresh = session.copy_to_worker_0(host)
    there = session.empty(host.shape, host.dtype)
    session.copy_to_worker_0(host, there)
    host[...] = -1
    for remote in (fresh, there):
        back = np.empty_like(host)
        session.copy_from_worker_0(back, remote)
        assert np.array_equal(back, expected)
        assert not np.shares_memory(back, remote.debug_get_from_remote(0))


def test_a_busy_worker_does_not_hold_up_a_copy(threads):
    """The array is copied for it, so that the program can go on."""
    session = threads(1)
    remote = session.empty((1 << 20,), "float64")
    session.sync_all()
    waiter = threading.Event()
    session.get_global_func("tests.call_back")
    session.sync_all()
    disco_functions = sys.modules["disco_test_functions"]
    disco_functions.GATE = waiter
    session.get_global_func("tests.call_back")()
    host = np.ones(1 << 20)
    session.copy_to_worker_0(host, remote)
    host[...] = 2
    waiter.set()
    assert remote.numpy().sum() == 1 << 20


def test_an_array_in_a_call_is_each_workers_own(threads):
    """Workers that write to theirs do not see each other."""
    session = threads(2)
    kept = session.get_global_func("tests.echo")(np.zeros(100_000))
    first, second = (kept.debug_get_from_remote(w) for w in range(2))
    assert not np.shares_memory(first, second)


def test_collectives_need_no_preparation(threads):
    """Groups included."""
    session = threads(4, 2)
    array = session.get_global_func("tests.rank_array")(disco_client.Shape((3,)), "float64")
    out = session.empty((3,), "float64")
    session.allreduce(array, out)
    assert [out.debug_get_from_remote(w)[0] for w in range(4)] == [3, 3, 7, 7]


def test_a_failed_worker_frees_those_in_a_collective(threads):
    """The error is the first cause, and the session goes on."""
    session = threads(3)
    array = session.empty((4,), "float32")
    session.get_global_func("tests.fail_before_allreduce")(array, 1)
    with pytest.raises(errors.RemoteException, match="told to fail"):
        session.sync_all()
    session.allreduce(array, array)
    session.sync_all()


@pytest.mark.parametrize("ccl", ["nccl", "rccl"])
def test_an_impossible_library_says_what_works(threads, ccl):
    """At the start as well as later."""
    with pytest.raises(errors.ConfigError, match="'local'"):
        disco_client.ThreadedSession(2, ccl=ccl)
    session = threads(2)
    with pytest.raises(errors.BadArgument, match="init_ccl"):
        session.init_ccl(ccl)
    session.sync_all()


def test_a_worker_without_memory_for_its_library_ends_the_session(threads, monkeypatch):
    """Its peers would wait for it, in this collective or the next one."""

    def fails_on_one(*args, worker_id, **options):
        if worker_id == 1:
            raise MemoryError
        return open_groups(*args, worker_id=worker_id, **options)

    open_groups = embedded_threads.open_groups
    monkeypatch.setattr(embedded_threads, "open_groups", fails_on_one)
    session = threads(2)
    with pytest.raises(errors.SessionLost, match="worker 1 has no memory left to start local"):
        session.allreduce(session.broadcast(np.ones(2))).numpy()


def test_collectives_do_without_the_thread_that_watches_them(threads, monkeypatch):
    """Where the system starts no thread for it."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("meeting-watch"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    session = threads(2)
    assert session.allreduce(session.broadcast(np.ones(2))).numpy().tolist() == [2.0, 2.0]


def test_memory_serves_for_mpi():
    """Which could not tell one thread from another; from the start as well as later."""
    with disco_client.ThreadedSession(2, ccl="mpi") as session:
        assert session.ccl == "local"
        session.init_ccl("mpi")
        assert session.ccl == "local"


@pytest.mark.parametrize(("arguments", "text"), [((0,), "num_workers"), ((4, 3), "num_groups")])
def test_wrong_arguments_are_refused(arguments, text):
    """The message names what was expected."""
    with pytest.raises(errors.ConfigError, match=text):
        disco_client.ThreadedSession(*arguments)


def test_output_has_its_rank_and_the_streams_come_back(threads, capsys):
    """What this thread prints is left alone."""
    before = sys.stdout, sys.stderr
    session = threads(2)
    session.get_global_func("tests.say")("hello\nworld")
    session.get_global_func("tests.print_error")("trouble")
    session.sync_all()
    print("mine")
    captured = capsys.readouterr()
    for worker in range(2):
        for word in ("hello", "world", "trouble"):
            assert f"[worker {worker} local] {word}\n" in captured.err
    assert captured.out == "mine\n"
    session.shutdown()
    assert (sys.stdout, sys.stderr) == before


def test_output_can_be_switched_off(threads, capsys):
    """Not a word is written, but the report of a death has it."""
    session = threads(2, logs=False)
    session.get_global_func("tests.say")("a secret")
    session.get_global_func("tests.exit_on")(1, 3)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    assert "a secret" in lost.value.output
    captured = capsys.readouterr()
    assert "a secret" not in captured.out + captured.err


def test_a_worker_that_exits_ends_the_session_and_not_the_program(threads):
    """sys.exit in a called function is the worker's end, with its status."""
    session = threads(2)
    session.get_global_func("tests.exit_on")(1, 7)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    assert (lost.value.worker, lost.value.exit_status) == (1, 7)
    assert lost.value.output[-1] == "these are my last words"
    with pytest.raises(errors.WorkerLost):
        session.get_global_func("tests.echo")


def test_shutdown_ends_what_runs(threads, eventually):
    """A loop in Python, a wait in a collective, and workers with nothing to do."""
    for function in ("tests.loop_forever", "tests.wait_alone"):
        session = threads(2)
        session.get_global_func(function)()
        session.shutdown()
        session.shutdown()
        with pytest.raises(errors.SessionClosed):
            session.sync_all()
    eventually(lambda: not rank_threads(), what="the worker threads to end")


def test_many_threads_may_use_one_session(threads):
    """Each gets its own answers."""
    session = threads(2)
    echo = session.get_global_func("tests.echo")
    wrong = []

    def work(me):
        for step in range(100):
            value = me * 1000 + step
            if echo(value).debug_get_from_remote(step % 2) != value:
                wrong.append(value)
            session.sync_all()

    workers = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_large_values_do_not_stop_the_window(threads):
    """More inline bytes than may be under way, in fewer commands than are acknowledged."""
    session = threads(1)
    echo = session.get_global_func("tests.echo")
    array = np.zeros(60_000, "uint8")
    for _ in range(700):
        _kept = echo(array)
    session.sync_all()


def test_ctrl_c_interrupts_a_wait_and_the_session_lives_on(threads, tmp_path):
    """It is delivered while the worker is still busy."""
    session, gate = threads(2), tmp_path / "gate"
    session.sync_all()
    session.get_global_func("tests.wait_for_file_on")(0, str(gate))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        session.sync_all()
    gate.touch()
    assert session.get_global_func("tests.echo")(5).debug_get_from_remote(1) == 5


def test_a_worker_does_not_wait_for_its_own_session(threads):
    """Nor does a finalizer that runs in its thread: it would wait for itself."""
    session = threads(2)
    disco_server.register_func("tests.wait_for_own_session", override=True)(session.sync_all)
    session.get_global_func("tests.wait_for_own_session")()
    with pytest.raises(errors.RemoteException, match="Reentered: "):
        session.sync_all()
    assert session.get_global_func("tests.echo")(5).debug_get_from_remote(1) == 5


def test_each_worker_can_have_its_core(threads):
    """The thread is pinned, not the process."""
    cores = sorted(os.sched_getaffinity(0))
    session = threads(2)
    wanted = [cores[0], cores[-1]]
    session.get_global_func("runtime.disco.bind_worker_to_cpu_core")(disco_client.Shape(wanted))
    found = session.get_global_func("tests.affinity")()
    assert [found.debug_get_from_remote(w) for w in range(2)] == [[core] for core in wanted]
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(5)", "1/0"])
@pytest.mark.parametrize("call", ["", "tests.loop_forever", "tests.stuck", "tests.wait_alone"])
def test_a_program_ends_with_its_own_exit_code(run_program, ending, call):
    """Without shutdown(), whatever its workers are stuck in."""
    stuck = f"session.get_global_func({call!r})()\n" if call else ""
    program = run_program(
        "import disco_client\n"
        "session = disco_client.ThreadedSession(2)\n"
        "session.import_python_module('disco_test_functions')\n"
        f"session.sync_all()\n{stuck}{ending}\n"
    )
    code, _, err = program.finish(20)
    assert code == {"": 0, "1/0": 1}.get(ending, 5), err
    if not ending:
        assert err == ""


def test_a_session_that_is_dropped_ends_its_threads(modules, eventually):
    """The workers do not keep it alive."""
    session = disco_client.ThreadedSession(2)
    session.sync_all()
    del session
    eventually(lambda: not rank_threads(), what="the worker threads to end")


def test_what_ends_a_worker_ends_a_thread_that_it_starts_without_a_word(monkeypatch, eventually):
    """Python may raise it there instead, before the thread has run a line of its own."""
    said, began, before = [], threading.Event(), set(sys._current_frames())
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def end():
        began.set()
        raise embedded_threads._SessionEnded

    _thread.start_new_thread(end, ())
    assert began.wait(20)
    eventually(lambda: set(sys._current_frames()) <= before, what="the thread to end")
    assert said == []
