"""Sessions on child processes: arrays, output, threads, arguments, interrupts."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import disco_client
from disco_client import errors
from disco_server.settings import cpu_cores

MIB = 1 << 20


def test_workers_are_children_without_grpc(processes):
    """Each worker is a process of its own, which starts fast because it loads no gRPC."""
    session = processes(3)
    children = {child.pid for child in psutil.Process().children()}
    assert {place.pid for place in session.workers} <= children
    loaded = session.get_global_func("sys.modules.get")("grpc")
    assert loaded.debug_get_from_remote(1) is None


@pytest.mark.parametrize(("set_to", "found"), [(None, max(1, cpu_cores() // 2)), ("7", 7)])
def test_workers_share_the_cores(processes, monkeypatch, set_to, found):
    """Their numerical libraries get an equal share as threads, unless the program says how many."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        if set_to is not None:
            monkeypatch.setenv(name, set_to)
    environment = processes(2).get_global_func("tests.environment")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert environment(name).debug_get_from_remote(1) == str(found)


@pytest.mark.parametrize(
    ("set_to", "found"), [(None, "0"), ("random", "0"), ("", "0"), ("41", "41")]
)
def test_workers_have_one_seed_of_hashes(processes, monkeypatch, set_to, found):
    """A number in the environment of the program is theirs too; otherwise it is 0."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if set_to is not None:
        monkeypatch.setenv("PYTHONHASHSEED", set_to)
    session = processes(2)
    seeds = session.get_global_func("tests.environment")("PYTHONHASHSEED")
    hashes = session.get_global_func("tests.hash_of")("x")
    assert seeds.get_all() == [found] * 2
    first, second = hashes.get_all()
    assert first == second


def test_collectives_need_no_preparation(processes):
    """The first collective starts MPI on all workers, groups included."""
    session = processes(4, 2)
    array = session.get_global_func("tests.rank_array")(disco_client.Shape((3,)), "float64")
    out = session.empty((3,), "float64")
    session.allreduce(array, out)
    assert [out.debug_get_from_remote(w)[0] for w in range(4)] == [3, 3, 7, 7]


@pytest.mark.parametrize("nbytes", [0, 104, 64 << 10, (64 << 10) + 8, 64 * MIB])
def test_arrays_go_and_come(processes, nbytes):
    """Inline or through shared memory, to a new register or into an array that is there."""
    session = processes(1)
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


def test_an_array_in_a_call_reaches_every_worker(processes):
    """Each worker gets a copy of its own, which it may write."""
    session = processes(2)
    got = session.get_global_func("tests.total")(np.ones((1000, 100), "float32"))
    for worker in range(2):
        assert got.debug_get_from_remote(worker) == [100_000.0, [1000, 100], True]


def test_many_uploads_may_be_under_way(processes):
    """More of them than descriptors would hold at once wait for the worker."""
    session = processes(1)
    session.get_global_func("tests.sleep")(0.3)
    remote = session.empty((1 << 14,), "float64")
    for step in range(300):
        session.copy_to_worker_0(np.full(1 << 14, step, "float64"), remote)
    assert remote.numpy()[0] == 299


def test_workers_that_say_a_lot_do_not_block_the_client(processes):
    """Replies are read while commands are written, so neither side waits for the other."""
    session = processes(2)
    echo, fail = map(session.get_global_func, ("tests.echo", "tests.raise_text"))
    kept = [echo("x" * 30_000) for _ in range(500)]
    for _ in range(300):
        fail("long")
    with pytest.raises(errors.RemoteException):
        session.sync_all()
    assert len(kept[-1].debug_get_from_remote(1)) == 30_000


def test_output_arrives_with_its_rank(processes, printed, eventually):
    """Each line of standard output and error carries the worker's number."""
    session = processes(2)
    session.get_global_func("tests.say")("hello\nworld")
    session.get_global_func("tests.print_error")("trouble")
    wanted = [f"[worker {w} local] {t}\n" for w in range(2) for t in ("hello", "world", "trouble")]
    eventually(lambda: all(line in printed() for line in wanted), what="the lines of both workers")


def test_output_can_be_switched_off(processes, capfd):
    """Not a word reaches this process's streams, but the report of a death has it."""
    session = processes(2, logs=False)
    session.get_global_func("tests.say")("a secret")
    session.get_global_func("tests.exit_on")(1, 3)
    with pytest.raises(errors.WorkerLost) as lost:
        session.sync_all()
    assert "a secret" in lost.value.output
    captured = capfd.readouterr()
    assert "a secret" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((0,), {}, "num_workers"),
        (("2",), {}, "num_workers"),
        ((4, 3), {}, "num_groups"),
        ((2,), {"entrypoint": "no.such.module"}, "entrypoint"),
        ((2,), {"entrypoint": 7}, "entrypoint"),
        ((2,), {"ccl": "local"}, "ThreadedSession"),
        ((2,), {"ccl": "gloo"}, "expected ccl"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(arguments, options, text):
    """The message names what was expected."""
    with pytest.raises(errors.ConfigError, match=text):
        disco_client.ProcessSession(*arguments, **options)


def test_an_impossible_library_says_what_works(processes):
    """Asked for later, it is an error of the call, and the session lives on."""
    session = processes(2)
    with pytest.raises(errors.CclError, match="mpi"):
        session.init_ccl("local")
    session.sync_all()


def test_an_entrypoint_of_ones_own_may_prepare_its_worker(tmp_path, monkeypatch):
    """It registers what it wants, and then serves."""
    (tmp_path / "own_entry.py").write_text(
        "import disco_server\n"
        "disco_server.register_func('own.name')(lambda: 'mine')\n"
        "from disco_server.rank.process import main\n"
        "main()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with disco_client.ProcessSession(1, entrypoint="own_entry") as session:
        assert session.get_global_func("own.name")().debug_get_from_remote(0) == "mine"


def test_many_threads_may_use_one_session(processes):
    """Each gets its own answers."""
    session = processes(2)
    echo = session.get_global_func("tests.echo")
    wrong = []

    def work(me):
        for step in range(60):
            value = me * 1000 + step
            if echo(value).debug_get_from_remote(step % 2) != value:
                wrong.append(value)
            session.sync_worker(step % 2)

    workers = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_ctrl_c_interrupts_a_wait_and_the_session_lives_on(processes, tmp_path):
    """It is delivered while a worker is still busy."""
    session = processes(2)
    session.sync_all()
    for number in range(3):
        told = tmp_path / str(number)
        session.get_global_func("tests.wait_for_file_on")(1, str(told))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.sync_all()
        told.touch()
    assert session.get_global_func("tests.echo")(5).debug_get_from_remote(1) == 5


SHOT_AT = """
import disco_client, signal, sys, threading
done, hits, inside = [], 0, False

def shot(number, frame):
    global hits, inside
    if inside:
        hits, inside = hits + 1, False
        raise KeyboardInterrupt

with disco_client.ProcessSession(2) as session:
    session.import_python_module("disco_test_functions")
    echo = session.get_global_func("tests.echo")
    session.sync_all()
    signal.signal(signal.SIGINT, shot)
    threading.Thread(target=lambda: done.append(sys.stdin.readline()), daemon=True).start()

    def wait():
        while not done:
            session.sync_worker(1)
            session.sync_all()

    print("ready", flush=True)
    while not done:
        try:
            inside = True
            wait()  # from 3.12 on no `try` covers the end of a loop that stands in it
            inside = False
        except KeyboardInterrupt:
            pass
    print(hits, echo(5).debug_get_from_remote(1))
"""


def test_ctrl_c_at_any_moment_leaves_the_session_usable(run_program):
    """However often it hits calls that send and read."""
    program = run_program(SHOT_AT)
    assert program.line() == "ready"
    for _ in range(200):
        program.process.send_signal(signal.SIGINT)
        time.sleep(0.003)
    code, out, err = program.finish(text="stop\n")
    assert code == 0, err
    hits, answer = out.split()
    assert int(hits) > 10
    assert answer == "5"


def test_the_workers_outlive_the_thread_that_opened_them(modules):
    """A session may be opened in one thread and used in another."""
    opened = []
    thread = threading.Thread(target=lambda: opened.append(disco_client.ProcessSession(2)))
    thread.start()
    thread.join()
    with opened[0] as session:
        session.sync_all()


def test_nothing_of_a_session_stays_in_the_process(modules):
    """Neither threads nor descriptors."""

    def held():
        return len(list(Path("/proc/self/fd").iterdir())), set(threading.enumerate())

    with disco_client.ProcessSession(2):
        pass
    descriptors, living = held()
    for _ in range(3):
        with disco_client.ProcessSession(2) as session:
            session.copy_to_worker_0(np.zeros(100_000)).numpy()
    assert held()[0] <= descriptors
    assert held()[1] <= living


def test_whoever_waits_for_a_worker_learns_of_its_failure(processes):
    """However soon the worker shows that it is done; each time anew."""
    session = processes(2)
    fail_on = session.get_global_func("tests.fail_on")
    for turn in range(200):
        fail_on(1, f"turn {turn}")
        with pytest.raises(errors.RemoteException, match=f"turn {turn}$"):
            session.sync_worker(1)
        session.sync_worker(1)


def test_without_shared_progress_a_wait_ends_as_well(processes, monkeypatch):
    """As on processors that make no use of it: the answer comes through the socket."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    session = processes(2)
    seen = [session.get_global_func("tests.echo")(turn) for turn in range(3)]
    session.sync_worker(1)
    assert [each.debug_get_from_remote(1) for each in seen] == [0, 1, 2]
    session.sync_all()


def test_answers_do_not_pile_up_while_a_rank_shows_how_far_it_is(eventually):
    """They fill its socket otherwise: then it reads nothing more, and each wait takes longer."""
    with disco_client.ProcessSession(1) as session:
        transport: Any = session._core.transport
        (child,) = transport._children.ranks.values()
        most = 0
        for _ in range(3000):
            session.sync_worker(0)
            most = max(most, len(child.waiters))
        assert most <= 65
        # Another thread sends what a busy rank did not take at once.
        eventually(lambda: not child.sender._armed, what="what was sent to leave")


def test_a_wait_for_room_in_the_middle_of_a_delivery_is_refused(monkeypatch):
    """A finalizer may issue in the thread that delivers, without which there is no room."""
    with disco_client.ProcessSession(1) as session:
        session._core.log.window.commands = 4
        nap = session.get_global_func("time.sleep")
        session.sync_all()
        transport: Any = session._core.transport
        (child,) = transport._children.ranks.values()
        send, made, refused = child.sender.send, [], []

        def issue(*args):
            if not refused:
                try:
                    while True:
                        made.append(nap(0.001))
                except errors.Reentered as error:
                    refused.append(error)
            send(*args)

        monkeypatch.setattr(child.sender, "send", issue)
        nap(0.1)
        session.sync_all()
        assert len(made) <= 4
        assert len(refused) == 1
