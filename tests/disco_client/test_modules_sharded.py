"""Compiled modules of which each worker has a shard: their collectives are the session's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import disco_client
from disco_client import SocketSession, errors

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
BATCH, WIDTH, INNER, HEADS, HEAD = 8, 16, 32, 4, 4


def columns(array, shards):
    """Slices of the last axis, one a shard, for a scatter."""
    return np.stack(np.split(array, shards, axis=1))


def rows(array, shards):
    return np.stack(np.split(array, shards))


@pytest.fixture(params=["cluster", "threads", "processes"])
def open_anywhere(request, open_session, monkeypatch):
    """Opens sessions whose workers are of one kind."""
    if request.param == "cluster":
        yield open_session
        return
    monkeypatch.syspath_prepend(WORKER_MODULES)
    names = {"threads": "ThreadedSession", "processes": "ProcessSession"}
    make = getattr(disco_client, names[request.param])
    with contextlib.ExitStack() as stack:

        def open_it(workers, num_groups=1):
            session = stack.enter_context(make(workers, num_groups))
            session.import_python_module("disco_test_functions")
            return session

        yield open_it


@pytest.fixture
def numbers():
    """Weights of a perceptron and of an attention block, and their inputs."""
    rng = np.random.default_rng(5)

    def normal(*shape):
        return (rng.normal(size=shape) / 2).astype("float32")

    return {
        "mlp": (normal(BATCH, WIDTH), [normal(WIDTH, INNER)], normal(INNER, WIDTH)),
        "attention": (
            normal(2, 5, WIDTH),
            [normal(WIDTH, HEADS * HEAD) for _ in "qkv"],
            normal(HEADS * HEAD, WIDTH),
        ),
    }


@pytest.mark.parametrize("block", ["mlp", "attention"])
@pytest.mark.parametrize(("workers", "groups"), [(2, 1), (4, 1), (4, 2)])
def test_a_sharded_block_equals_the_whole_one(
    open_anywhere, tvm_modules, numbers, block, workers, groups
):
    """Compiled for the CPU, with its allreduce inside; each group computes the whole."""
    entry, into, out = numbers[block]
    whole = open_anywhere(1)
    module = whole.load_vm_module(tvm_modules / "sharded_1.so")
    host = [whole.copy_to_worker_0(array) for array in (entry, *into, out)]
    expected = module[block](*host).numpy()
    whole.shutdown()

    shards = workers // groups
    session = open_anywhere(workers, num_groups=groups)
    module = session.load_vm_module(tvm_modules / f"sharded_{shards}.so")
    parts = [columns(array, shards) for array in into] + [rows(out, shards)]
    args = [session.broadcast(entry, in_group=False)]
    for part in parts:
        slices = np.concatenate([part] * groups)
        args.append(session.scatter(slices.astype("float32"), in_group=False))
    result = module[block](*args)
    for worker in range(workers):
        np.testing.assert_allclose(result.numpy(worker), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
def test_each_collective_of_relax_is_served(open_anywhere, tvm_modules, workers):
    """With what the session's own collectives give."""
    session = open_anywhere(workers, num_groups=2)
    module = session.load_vm_module(tvm_modules / f"sharded_{workers}.so")
    mine = session.get_global_func("tests.rank_array")((2, 6), "float32")
    ranks = range(1, workers + 1)
    half = workers // 2

    def got(name, worker):
        return module[name](mine).numpy(worker)

    for worker in range(workers):
        group = ranks[:half] if worker < half else ranks[half:]
        assert (got("sum", worker) == sum(ranks)).all()
        assert (got("sum_of_group", worker) == sum(group)).all()
        assert (got("largest", worker) == workers).all()
        assert (got("broadcast", worker) == 1).all()
        gathered = got("gathered", worker)
        assert gathered.shape == (2 * workers, 6)
        assert gathered[:, 0].tolist() == [rank for rank in ranks for _ in range(2)]
    wide = np.arange(12 * workers, dtype="float32").reshape(2, -1)
    scattered = module["scattered"](session.broadcast(wide, in_group=False))
    for worker in range(workers):
        assert scattered.numpy(worker).tolist() == wide[:, 6 * worker : 6 * worker + 6].tolist()


def test_a_rank_that_fails_releases_peers_inside_a_module(open_anywhere, tvm_modules):
    """The cause is the error, not that the collective inside the module was given up."""
    session = open_anywhere(2)
    module = session.load_vm_module(tvm_modules / "sharded_2.so")
    odd = session.get_global_func("tests.shape_for")(1, (3, 3), (2, 6))
    module["sum"](odd)
    with pytest.raises(errors.RemoteException, match=r"RuntimeError: .*match_cast|[Mm]ismatch"):
        session.sync_all()
    mine = session.get_global_func("tests.rank_array")((2, 6), "float32")
    assert (module["sum"](mine).numpy(1) == 3).all()


def test_a_socket_session_runs_a_sharded_module(tvm_modules):
    """Its own node loads what the program may load anyway."""
    with SocketSession(1, 2, 1, "127.0.0.1", 0) as session:
        module = session.load_vm_module(tvm_modules / "sharded_2.so")
        ones = session.broadcast(np.ones((2, 6), "float32"))
        assert (module["sum"](ones).numpy(1) == 2).all()


@pytest.mark.parametrize("strategy", [1, 2])
def test_a_module_for_allreduce_in_shared_memory_runs(open_anywhere, tvm_modules, strategy):
    """TVM's passes give it storage of its own for that, and an allreduce of its own."""
    session = open_anywhere(2)
    module = session.load_vm_module(tvm_modules / f"shared_memory_{strategy}.so")
    x = np.arange(32, dtype="float32").reshape(4, 8)
    for _ in range(2):
        result = module["main"](session.broadcast(x))
        for worker in range(2):
            np.testing.assert_array_equal(result.numpy(worker), 4 * x + 1)
    session.get_global_func("runtime.disco.cuda_ipc.cuda_ipc_memory_allocator_clear")()
    session.sync_all()
