"""Sessions of threads on GPUs, with the stand-in as the library of all of them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import disco_client
from disco_client import errors

GPUS = "disco_test_gpus"
STANDIN = str(Path(__file__).parents[2] / "standin")


@pytest.fixture
def gpus(standin, threads):
    """Opens sessions whose worker N computes on GPU N."""

    def open_one(num_workers=2, num_groups=1):
        session = threads(num_workers, num_groups, logs=False)
        session.import_python_module(GPUS)
        session.init_ccl("nccl", *range(num_workers))
        return session

    return open_one


def call(session, name, *args):
    return session.get_global_func(f"gpus.{name}")(*args)


def each(session, ref):
    return [ref.debug_get_from_remote(worker) for worker in range(session.num_workers)]


@pytest.mark.parametrize("groups", [1, 2])
def test_everything_that_moves_arrays_of_the_standin(gpus, groups):
    """From the client through every kind of collective and back, in all groups."""
    session = gpus(4, groups)
    size, n = 4 // groups, 6
    host = np.arange(4 * n, dtype=np.float32)
    whole = session.copy_to_worker_0(host)
    part, everywhere = session.empty((n,), "float32"), session.empty((4 * n,), "float32")
    session.scatter_from_worker0(whole, part, in_group=False)
    mine = call(session, "rank_plus", part)
    ranks = [host[n * w : n * w + n] + w for w in range(4)]
    assert [got.tolist() for got in each(session, mine)] == [want.tolist() for want in ranks]

    groups_of = [range(w // size * size, w // size * size + size) for w in range(4)]
    total = session.empty((n,), "float32")
    session.allreduce(mine, total)
    assert [got.tolist() for got in each(session, total)] == [
        sum(ranks[peer] for peer in group).tolist() for group in groups_of
    ]
    session.allgather(mine, everywhere, in_group=False)
    assert each(session, everywhere)[3].tolist() == np.concatenate(ranks).tolist()
    spread = session.empty((n,), "float32")
    session.reduce_scatter(everywhere, spread, "max", in_group=False)
    assert [got.tolist() for got in each(session, spread)] == [want.tolist() for want in ranks]
    session.all_to_all(everywhere, everywhere, in_group=False)
    assert each(session, everywhere)[2].tolist() == np.tile(ranks[2], 4).tolist()
    session.gather_to_worker0(mine, whole, in_group=False)
    back = np.empty_like(host)
    session.copy_from_worker_0(back, whole)
    assert back.tolist() == np.concatenate(ranks).tolist()


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "complex64", "int16"])
def test_dtypes_of_the_standin_reach_the_client(gpus, dtype):
    """As they left it; what is made on a worker too."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    host = (np.arange(9) % 2).astype(kind)
    session = gpus(1)

    there = session.copy_to_worker_0(host)
    assert call(session, "where", there).debug_get_from_remote(0) == "cupy 0"
    for got in (there.numpy(), call(session, "strided", there).numpy()):
        assert got.dtype == kind
    assert there.numpy().tobytes() == host.tobytes()


def test_a_sync_waits_for_the_gpu_of_the_standin(gpus):
    """And commands do not: what they asked for is under way until somebody waits."""
    session = gpus(2)
    array = session.empty((1000,), "float32")
    for _ in range(5):
        session.allreduce(array, array)

    assert each(session, call(session, "under_way")) == [True, True]
    session.sync_worker(1)
    assert each(session, call(session, "under_way")) == [True, False]
    session.sync_all()
    assert each(session, call(session, "under_way")) == [False, False]


@pytest.mark.parametrize("seen", [False, True])
def test_a_sync_raises_what_failed_on_the_gpu_of_the_standin(gpus, seen):
    """Also where the last command had failed by itself, and that is known already."""
    session = gpus(2)
    array = session.empty((3,), "float32")
    session.sync_all()
    call(session, "break_on", 1)
    call(session, "fail_on", 0, array)
    if seen:
        with pytest.raises(errors.RemoteException, match="told to fail"):
            session.sync_worker(0)
    with pytest.raises(errors.RemoteException, match=r"IllegalAddress|told to fail") as raised:
        session.sync_worker(1)

    assert seen == ("IllegalAddress" in str(raised.value).partition("\n")[0])
    with pytest.raises(errors.RemoteException, match="IllegalAddress"):
        array.debug_get_from_remote(1)
    assert array.debug_get_from_remote(0).shape == (3,)
    session.sync_worker(0)


def test_a_host_array_beside_one_of_the_standin(gpus):
    """Goes its own way; in one collective with it, it is refused, and the session goes on."""
    session = gpus(2)
    device = session.copy_to_worker_0(np.ones(3, np.float32))
    every = session.empty((3,), "float32")
    host = session.empty((3,), "float32", disco_client.cpu())
    session.broadcast_from_worker0(device, every)
    host.debug_copy_from(0, np.full(3, 2, np.float32))
    host.debug_copy_from(1, np.full(3, 3, np.float32))
    session.allreduce(host, host)
    assert host.numpy().tolist() == [5] * 3

    call(session, "mixed", 1, every)
    with pytest.raises(errors.CollectiveMismatch, match=r"worker 1 brought .* on a GPU"):
        session.sync_all()
    session.allreduce(every, every)
    assert every.numpy().tolist() == [2] * 3


def test_random_tensors_on_gpus_of_the_standin_are_those_of_hosts(gpus, threads):
    """They are drawn on the host, and array parameters come back from the device for that."""
    session, host = gpus(), threads(3)
    large, rows = np.arange(20000.0).reshape(-1, 4), np.eye(5000, 3)
    for name, call in {
        "normal": lambda rng, _: rng.normal(size=(40, 3)),
        "arrays": lambda rng, _: rng.normal([1.0, 2.0], size=(40, 2)),
        "large arrays": lambda rng, _: rng.normal(large),
        "tensors": lambda rng, x: rng.normal(x(large), size=(5000, 4)),
        "rows": lambda rng, _: rng.multinomial(9, [0.25, 0.75], 40),
        "permuted": lambda rng, x: rng.permuted(x(rows), axis=1),
        "choice": lambda rng, x: rng.choice(x(rows), 30, p=np.full(5000, 1 / 5000)),
        "across": lambda rng, _: rng.random((100000, 3), placement="S[1]"),
    }.items():
        got, want = (
            call(
                each.numpy.random.default_rng(5),
                lambda a, s=each: s.distribute(a, placement="S[0]"),
            )
            for each in (session, host)
        )
        assert got.numpy().tobytes() == want.numpy().tobytes(), name


def test_a_worker_of_the_standin_that_fails_releases_its_peers(gpus):
    """The cause is raised, and the next collective is as good as before."""
    session = gpus(2)
    array = session.copy_to_worker_0(np.ones(3, np.float32))
    every = session.empty((3,), "float32")
    session.broadcast_from_worker0(array, every)
    call(session, "fail_on", 1, every)
    with pytest.raises(errors.RemoteException, match="told to fail"):
        session.sync_all()

    session.allreduce(every, every)
    assert every.numpy().tolist() == [2] * 3


def test_what_the_standin_cannot_reduce_is_refused_on_every_worker(gpus):
    """Before anybody enters; the session goes on."""
    session = gpus(2)
    array = session.empty((3,), "int16")
    session.allreduce(array, array)
    with pytest.raises(errors.CollectiveMismatch, match="int16 on a GPU has no such reduction"):
        session.sync_all()

    session.allgather(array, session.empty((6,), "int16"))
    session.sync_all()


def test_numbers_of_the_standin_that_do_not_fit(standin, threads):
    """Are refused as what they are, and the right ones may be given afterwards."""
    session = threads(2, logs=False)
    session.import_python_module(GPUS)
    expected = [
        ((), errors.BadArgument, "expected the GPU of each worker on this machine"),
        ((0,), errors.BadArgument, "got 1 for this one at place 1"),
        ((1, 1), errors.CclError, "workers 0 and 1 share the GPU 0000:11:00.0"),
        ((0, 9), errors.CclError, "expected one of the 4 GPUs that this process sees, got cuda:9"),
        ((0, -1), errors.ConfigError, "expected the numbers of GPUs, from 0, got 0, -1"),
        ((0, "1"), errors.ConfigError, "expected the numbers of GPUs, from 0, got 0, '1'"),
    ]
    for numbers, kind, words in expected:
        with pytest.raises(kind, match=words):
            session.init_ccl("nccl", *numbers)
        where = call(session, "where", session.empty((1,), "int8"))
        assert each(session, where) == ["numpy", "numpy"], numbers

    session.init_ccl("nccl", 3, 2)
    where = call(session, "where", session.empty((1,), "int8"))
    assert each(session, where) == ["cupy 3", "cupy 2"]


def test_a_library_of_the_standin_starts_once(gpus):
    """Again with the same numbers or with none changes nothing, anything else is refused."""
    session = gpus(2)
    session.init_ccl("nccl", 0, 1)
    session.init_ccl("nccl")
    with pytest.raises(errors.BadArgument, match="computes on cuda:0 already"):
        session.init_ccl("nccl", 1, 0)
    with pytest.raises(errors.CclError, match="uses 'nccl' already, so 'local' cannot start"):
        session.init_ccl("local")
    with pytest.raises(errors.BadArgument, match="'rccl' moves arrays of rocm devices"):
        session.init_ccl("rccl", 0, 1)

    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    session.sync_all()


def test_a_failure_at_work_ends_the_waits_of_the_standin(gpus, monkeypatch):
    """It is raised with worker, collective, command and the library's words."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "async:1:2")
    session = gpus(2)
    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    session.allreduce(array, array)
    with pytest.raises(errors.CclError, match=r"failed in NCCL 2.32.3: NCCL_ERROR_REMOTE_ERROR"):
        session.sync_all()
    session.allreduce(array, array)
    with pytest.raises(errors.CclError, match=r"worker [01]: allreduce\(sum\) of command #\d+ f"):
        session.sync_all()


def test_a_hang_of_the_standin_is_given_up_after_the_given_time(gpus, monkeypatch):
    """Which is a failure like any other."""
    monkeypatch.setenv("DISCO_NCCL_TIMEOUT_S", "0.5")
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "hang:0:1")
    session = gpus(2)
    array = session.empty((3,), "float32")
    session.allreduce(array, array)
    began = time.monotonic()
    with pytest.raises(errors.CclError, match="failed in NCCL"):
        session.sync_all()

    assert time.monotonic() - began < 10


START = """
import os, sys
sys.path.insert(0, {standin!r})
os.environ["STANDIN_NCCL_FAIL"] = {plan!r}
import disco_client
session = disco_client.ThreadedSession(2, logs=False)
for act in (lambda: session.init_ccl("nccl", 0, 1), session.sync_all):
    try:
        act()
    except disco_client.WorkerLost as error:
        print(error.worker, error, flush=True)
"""


@pytest.mark.parametrize("plan", ["absent:1", "init:0"])
def test_a_start_of_the_standin_that_fails_ends_the_session(run_program, plan):
    """The other threads may be in the library for ever; nobody waits for them.

    In a process of its own, because a thread that is left behind has things open.
    """
    program = run_program(START.format(standin=STANDIN, plan=plan))
    status, out, err = program.finish()
    first, again = out.splitlines()

    pattern = r"(\d) worker \1: nccl could not connect the workers: .*; session '.*' is over"
    assert re.fullmatch(pattern, first)
    assert again == first
    assert status == 0, err
    if plan == "absent:1":
        assert first.startswith("1 ")
