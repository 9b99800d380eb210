"""Sessions of processes on GPUs, with the stand-in as the library of each of them.

Its own hub carries the collectives, and then oneCCL does, where that is installed.
"""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from disco_client import errors

GPUS = "disco_test_gpus"


@pytest.fixture
def gpus(standin, processes, carrier, monkeypatch):
    """Opens sessions whose workers find the stand-in, and know the functions for it."""
    for name, value in carrier.items():
        monkeypatch.setenv(name, value)

    def open_one(num_workers=2, num_groups=1, *, init=True, **options):
        session = processes(num_workers, num_groups, **{"logs": False, **options})
        session.import_python_module(GPUS)
        if init:
            session.init_ccl("nccl", *range(num_workers))
        return session

    return open_one


def call(session, name, *args):
    return session.get_global_func(f"gpus.{name}")(*args)


def each(session, ref):
    return [ref.debug_get_from_remote(worker) for worker in range(session.num_workers)]


def lost(session, act):
    """The error of the session's end, and that it came within seconds."""
    began = time.monotonic()
    with pytest.raises(errors.WorkerLost) as raised:
        act()
    assert time.monotonic() - began < 15
    with pytest.raises(errors.WorkerLost):
        session.sync_all()
    return raised.value


def test_a_program_of_four_workers_on_the_standin(gpus):
    """Uploads, functions, collectives in groups and across them, transfers, downloads."""
    session = gpus(4, 2)
    n = 300_000
    host = np.arange(n, dtype=np.float32)
    every = session.empty((n,), "float32")
    session.broadcast_from_worker0(session.copy_to_worker_0(host), every, in_group=False)
    mine = call(session, "rank_plus", every)
    session.allreduce(mine, every)
    assert [got[1:3].tolist() for got in each(session, every)] == [[3, 5], [3, 5], [7, 9], [7, 9]]

    session.get_global_func("runtime.disco.barrier")(False)
    session.allreduce(mine, every, in_group=False)
    assert np.array_equal(every.numpy(), 4 * host + 6)
    strided = call(session, "strided", every)
    assert np.array_equal(strided.debug_get_from_remote(3), (4 * host + 6)[::2])
    strided.debug_copy_from(3, np.zeros(n // 2, np.float32))
    assert every.debug_get_from_remote(3)[:4].tolist() == [0, 10, 0, 18]

    value = session.empty((2,), "bfloat16")
    session.allgather(value, session.empty((4,), "bfloat16"))
    session.sync_all()
    assert each(session, call(session, "where", value)) == [f"cupy {w}" for w in range(4)]


def test_a_program_on_cpus_does_not_load_the_standin(gpus):
    """For arrays, collectives, copies, syncs or failures; only who asks for it gets it."""
    session = gpus(2, init=False)
    array = session.copy_to_worker_0(np.arange(200_000.0))
    every = session.empty((200_000,), "float64")
    session.broadcast_from_worker0(array, every)
    session.allreduce(every, every)
    session.allgather(every, session.empty((400_000,), "float64"))
    session.sync_all()
    assert every.numpy()[1] == 2
    call(session, "fail_on", 1, every)
    with pytest.raises(errors.RemoteException):
        session.sync_all()
    session.init_ccl("mpi")
    assert each(session, call(session, "where", every)) == ["numpy", "numpy"]

    assert each(session, call(session, "loaded")) == [[], []]
    session.init_ccl("nccl", 0, 1)
    assert "cupy" in call(session, "loaded").debug_get_from_remote(1)
    with pytest.raises(errors.CclError, match="uses 'nccl' already, so 'mpi' cannot start"):
        session.init_ccl("mpi")


@pytest.mark.parametrize("ccl", [None, "nccl"])
def test_what_a_worker_of_the_standin_lacks_is_named(gpus, ccl):
    """The others are released and nobody has moved; when it is mended, all of them start."""
    session = gpus(2, init=False, ccl=ccl)
    call(session, "hide_on", 1, True)
    with pytest.raises(errors.CclError, match=r"cuda:1 needs cupy, which cannot be impo") as no:
        session.init_ccl("nccl", 0, 1)
    assert no.value.worker == 1

    host = session.empty((3,), "float32")
    assert each(session, call(session, "where", host)) == ["numpy", "numpy"]
    session.allreduce(host, host)
    if ccl is None:
        session.sync_all()
    else:
        with pytest.raises(errors.CclError, match=r"a GPU for each with session\.init_ccl"):
            session.sync_all()
    call(session, "hide_on", 1, False)

    call(session, "set_on", 1, "STANDIN_GPUS", "0")
    with pytest.raises(errors.CclError, match="cuda:1 cannot be used: cudaErrorInsufficientDri"):
        session.init_ccl("nccl", 0, 1)
    call(session, "set_on", 1, "STANDIN_GPUS", "4")

    call(session, "set_on", 1, "STANDIN_NCCL_VERSION", "22707")
    with pytest.raises(errors.CclError, match=r"worker 0 [\d.]+; worker 1 2\.27\.7"):
        session.init_ccl("nccl", 0, 1)
    call(session, "set_on", 1, "STANDIN_NCCL_VERSION", "")

    session.init_ccl("nccl", 0, 1)
    array = session.empty((3,), "float32")
    assert each(session, call(session, "where", array)) == ["cupy 0", "cupy 1"]
    session.allreduce(array, array)
    session.sync_all()


def test_a_sync_of_processes_waits_for_the_gpus_of_the_standin(gpus):
    """Commands, answers about other things and acknowledgements do not.

    What failed there is the sync's error, and that of whoever asks for what lies there; it
    is not the end of the worker, and other workers go on.
    """
    session = gpus(2)
    array = session.empty((1000,), "float32")
    worker = session.get_global_func("runtime.disco.worker_rank")
    for _ in range(1500):  # more than a rank executes without saying how far it is
        worker()
    for _ in range(3):
        session.allreduce(array, array)

    assert each(session, call(session, "under_way")) == [True, True]
    session.sync_worker(0)
    assert each(session, call(session, "under_way")) == [False, True]
    session.sync_all()
    assert each(session, call(session, "under_way")) == [False, False]

    large = session.empty((200_000,), "float32")
    session.sync_all()
    call(session, "break_on", 1)
    with pytest.raises(errors.RemoteException, match="IllegalAddress") as failed:
        session.sync_all()
    assert failed.value.worker == 1
    for ref in (array, large):  # a large one is under way when it fails
        with pytest.raises((errors.RemoteException, errors.SessionError), match="IllegalAddress"):
            ref.debug_get_from_remote(1)
        assert ref.debug_get_from_remote(0).dtype == np.float32
    session.sync_worker(0)
    assert each(session, worker()) == [0, 1]


def test_a_start_of_the_standin_that_fails_ends_its_process(gpus, monkeypatch):
    """The peers wait in the library; the end of one process is the end of all."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "absent:1")
    session = gpus(2, init=False)
    error = lost(session, lambda: session.init_ccl("nccl", 0, 1))

    assert (error.worker, error.exit_status) == (1, 74)
    words = "disco: worker 1: nccl could not connect the workers: NCCL_ERROR_SYSTEM_ERROR: "
    assert words in "\n".join(error.output)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("async:1:2", "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network"),
        ("hang:0:2", r"it was not done after \d+ s \(DISCO_NCCL_TIMEOUT_S\)"),
    ],
)
def test_a_failure_of_the_standin_at_work_ends_its_process(gpus, monkeypatch, capfd, plan, words):
    """Within seconds, with worker, collective, command and why among its last words.

    Before, whoever waits is told once by each worker of what hangs that it takes long.
    """
    monkeypatch.setenv("STANDIN_NCCL_FAIL", plan)
    if plan.startswith("hang"):
        monkeypatch.setenv("DISCO_NCCL_TIMEOUT_S", "1.5")
    monkeypatch.setenv("DISCO_SLOW_S", "0.3")
    session = gpus(2, logs=True)
    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    session.allgather(array, session.empty((6,), "float32"))
    error = lost(session, session.sync_all)

    assert error.exit_status == 74
    pattern = rf"disco: worker {error.worker}: allgather of command #\d+ failed in NCCL [\d.]+: "
    assert re.search(pattern + words, "\n".join(error.output))
    printed = capfd.readouterr().err
    slow = re.findall(r"disco: worker (\d): allgather of command #\d+ has been under way", printed)
    if plan.startswith("hang"):
        assert sorted(slow) == ["0", "1"]


@pytest.mark.parametrize("plan", ["kill:1:1", "fade:1:1"])
def test_a_worker_of_the_standin_that_is_killed_ends_the_session(gpus, monkeypatch, plan):
    """In the middle of a collective; nobody waits for its part, and it is the one blamed.

    That holds where the others see its connections close long before it has ended.
    """
    monkeypatch.setenv("STANDIN_NCCL_FAIL", plan)
    session = gpus(2)
    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    error = lost(session, session.sync_all)

    assert error.exit_status == -9
    assert error.worker == 1
