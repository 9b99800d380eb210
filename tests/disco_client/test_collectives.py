"""Collectives of a session against numpy: four workers in two groups on two nodes, over MPI."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client import (
    REDUCE_OPS,
    BadArgument,
    CclError,
    CollectiveMismatch,
    ConfigError,
    RemoteException,
    connect,
)

WORKERS = range(4)


def _average(parts):
    total = np.sum(parts, 0, dtype=parts[0].dtype)
    if total.dtype.kind in "iu":  # exact: the parts are small
        return np.trunc(np.sum(parts, 0) / len(parts)).astype(total.dtype)
    return (total / len(parts)).astype(total.dtype)


REDUCE = {
    "sum": lambda parts: np.sum(parts, 0, dtype=parts[0].dtype),
    "prod": lambda parts: np.prod(parts, 0, dtype=parts[0].dtype),
    "min": lambda parts: np.min(parts, 0),
    "max": lambda parts: np.max(parts, 0),
    "avg": _average,
}


@pytest.fixture(scope="module")
def session(cluster):
    """Four workers in two groups, shared by the tests of this file."""
    with connect(cluster.address, num_workers=4, num_groups=2, ccl="mpi") as shared:
        shared.import_python_module("disco_test_functions")
        yield shared


def place(session, parts):
    """Puts one array on each worker; returns the reference."""
    ref = session.get_global_func("tests.echo")(None)
    for worker, part in enumerate(parts):
        ref.debug_copy_from(worker, part)
    return ref


def members(worker, in_group):
    """Who takes part in a worker's collective."""
    if not in_group:
        return list(WORKERS)
    return [0, 1] if worker < 2 else [2, 3]


def parts_of(shape, dtype, seed=0):
    """An array for each worker; small numbers, so that nothing is rounded."""
    numbers = np.random.default_rng(seed).integers(1, 4, (4, *shape))
    return [part.astype(dtype) for part in numbers]


def fetch(ref):
    return [ref.numpy(worker) for worker in WORKERS]


def both(test):
    """Runs a test inside the groups and over all workers."""
    return pytest.mark.parametrize("in_group", [True, False], ids=["group", "all"])(test)


@both
@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int64", "float16", "float32", "float64", "bfloat16"]
)
def test_allreduce_is_numpys_reduction_everywhere(session, dtype, op, in_group):
    """For every reduction and kind of number; integers wrap, their average is cut off."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    parts = parts_of((3, 5), dtype)
    src, dst = place(session, parts), session.empty((15,), dtype)
    assert session.allreduce(src, dst, op, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        expected = REDUCE[op]([parts[m] for m in members(worker, in_group)])
        np.testing.assert_array_equal(got, expected.reshape(-1))
    for got, sent in zip(fetch(src), parts, strict=True):
        np.testing.assert_array_equal(got, sent)


@both
@pytest.mark.parametrize("count", [1, 1000, 70_000, 3_000_000])
def test_allreduce_of_any_size_may_be_in_place(session, count, in_group):
    """Small ones ride with the meeting, large ones are cut into pieces: the sum is the same."""
    ref = session.get_global_func("tests.rank_array")([count], "float32")
    session.allreduce(ref, ref, in_group=in_group)
    for worker, got in enumerate(fetch(ref)):
        total = sum(member + 1 for member in members(worker, in_group))
        assert (got == total).all()


@both
@pytest.mark.parametrize("shape", [(3, 4), (0,), (), (200, 300)])
def test_allgather_collects_in_rank_order(session, shape, in_group):
    """Flat, one part after the other, whatever the destination's shape is."""
    parts = parts_of(shape, "int32")
    size = 2 if in_group else 4
    src, dst = place(session, parts), session.empty((size, *shape), "int32")
    assert session.allgather(src, dst, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        np.testing.assert_array_equal(got, [parts[m] for m in members(worker, in_group)])


@both
@pytest.mark.parametrize("count", [5, 100_000])
def test_broadcast_copies_the_roots_array(session, count, in_group):
    """Worker 0's, or each group's first worker's; the others' content is ignored."""
    parts = parts_of((count,), "float64")
    src, dst = place(session, parts), session.empty((count,), "float64")
    assert session.broadcast_from_worker0(src, dst, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        np.testing.assert_array_equal(got, parts[members(worker, in_group)[0]])
    session.broadcast_from_worker0(src, src, in_group)
    np.testing.assert_array_equal(src.numpy(3), parts[2 if in_group else 0])


@both
def test_scatter_deals_the_roots_chunks(session, in_group):
    """Equal flat chunks in rank order, not tied to an axis."""
    size = 2 if in_group else 4
    parts = parts_of((3, 4, 3), "int16")
    src, dst = place(session, parts), session.empty((36 // size,), "int16")
    assert session.scatter_from_worker0(src, dst, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        team = members(worker, in_group)
        expected = parts[team[0]].reshape(size, -1)[team.index(worker)]
        np.testing.assert_array_equal(got, expected)


@both
def test_gather_is_scatters_mirror(session, in_group):
    """Only the root needs a destination; the others hold None."""
    size = 2 if in_group else 4
    parts = parts_of((4, 3), "float32")
    src = place(session, parts)
    dst = session.empty((size, 4, 3), "float32", None, True, in_group)
    assert session.gather_to_worker0(src, dst, in_group) is dst
    for root in (0, 2) if in_group else (0,):
        np.testing.assert_array_equal(dst.numpy(root), [parts[m] for m in members(root, in_group)])
    assert dst.debug_get_from_remote(1) is None


@both
@pytest.mark.parametrize("op", REDUCE_OPS)
def test_reduce_scatter_leaves_each_worker_its_chunk(session, op, in_group):
    """Of what allreduce would give."""
    size = 2 if in_group else 4
    parts = parts_of((8, 3), "float32")
    src, dst = place(session, parts), session.empty((24 // size,), "float32")
    assert session.reduce_scatter(src, dst, op, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        team = members(worker, in_group)
        whole = REDUCE[op]([parts[m] for m in team])
        np.testing.assert_array_equal(got, whole.reshape(size, -1)[team.index(worker)])


@both
@pytest.mark.parametrize("in_place", [False, True])
def test_all_to_all_exchanges_chunks(session, in_place, in_group):
    """Chunk j of worker i becomes chunk i of worker j."""
    size = 2 if in_group else 4
    parts = parts_of((size, 6), "int64")
    src = place(session, parts)
    dst = src if in_place else session.empty((size, 6), "int64")
    assert session.all_to_all(src, dst, in_group) is dst
    for worker, got in enumerate(fetch(dst)):
        team = members(worker, in_group)
        expected = [parts[m][team.index(worker)] for m in team]
        np.testing.assert_array_equal(got, expected)


@both
@pytest.mark.parametrize("given", [False, True], ids=["new", "given"])
def test_a_host_array_is_broadcast_to_all_workers(session, in_group, given):
    """Of every group, as its users expect; only one copy leaves the client."""
    host = np.arange(6.0).reshape(2, 3)
    dst = session.empty((6,), "float64") if given else None
    got = session.broadcast(host, dst, in_group)
    assert got is dst or not given
    for part in fetch(got):
        np.testing.assert_array_equal(part.reshape(2, 3), host)
    assert session.broadcast([1, 2]).numpy(3).tolist() == [1, 2]


@both
@pytest.mark.parametrize("given", [False, True], ids=["new", "given"])
def test_a_host_array_is_scattered_along_its_first_axis(session, in_group, given):
    """Worker w gets the slice w, whatever group it is in."""
    host = np.arange(24, dtype="int32").reshape(4, 2, 3)
    dst = session.empty((3, 2), "int32") if given else None
    got = session.scatter(host, dst, in_group)
    for worker, part in enumerate(fetch(got)):
        np.testing.assert_array_equal(part.reshape(2, 3), host[worker])


@both
@pytest.mark.parametrize("host", [np.zeros(2), np.zeros((5, 4)), 5.0], ids=["2", "5", "none"])
def test_a_first_axis_of_another_length_is_refused(session, host, in_group):
    """Here, with both numbers, and with the call that divides any number of rows."""
    divides = r"4 slices .* got shape.*session\.distribute\(array, placement='S\[0\]'\)"
    with pytest.raises(ConfigError, match=divides):
        session.scatter(host, None, in_group)


@pytest.mark.parametrize("op", ["mean", "SUM", "", None, 0])
def test_an_unknown_reduction_is_refused(session, op):
    """Here, with those that there are."""
    ref = session.empty((1,), "float32")
    for collective in (session.allreduce, session.reduce_scatter):
        with pytest.raises(ConfigError, match="sum, prod, min, max, avg"):
            collective(ref, ref, op)


@both
@pytest.mark.parametrize("ones", [(2,), (100_000,)], ids=["small", "large"])
def test_shapes_that_differ_are_refused_on_every_rank(session, in_group, ones):
    """Before any of them enters; all can go on at once, and the odd one is named."""
    odd = (ones[0] + 1,)
    src = session.get_global_func("tests.shape_for")(3, odd, ones)
    dst = session.get_global_func("tests.shape_for")(3, odd, ones)
    session.allreduce(src, dst, "sum", in_group)
    with pytest.raises(CollectiveMismatch) as refused:
        session.sync_all()
    affected = [failure.worker for failure in refused.value.failures]
    assert affected == ([2, 3] if in_group else list(WORKERS))
    assert "float32" in str(refused.value)
    assert str(odd[0]) in str(refused.value)
    assert "worker 3" in str(refused.value)
    for worker in affected:
        with pytest.raises(CollectiveMismatch):
            dst.numpy(worker)
    if in_group:
        assert (dst.numpy(0) == 2).all()
    total = session.get_global_func("tests.rank_array")([2], "int32")
    session.allreduce(total, total, in_group=False)
    assert total.numpy(3).tolist() == [10, 10]


@pytest.mark.parametrize(
    ("src", "dst", "text"),
    [
        (((4,), "float32"), ((5,), "float32"), "5"),
        (((4,), "float32"), ((4,), "float64"), "float64"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(session, src, dst, text):
    """Nothing is overrun, whichever collective it is."""
    source, target = session.empty(*src), session.empty(*dst)
    for collective in (
        session.allreduce,
        session.broadcast_from_worker0,
        session.all_to_all,
        session.allgather,
        session.scatter_from_worker0,
        session.gather_to_worker0,
        session.reduce_scatter,
    ):
        collective(source, target)
        with pytest.raises(CollectiveMismatch, match=text):
            session.sync_all()


def test_what_is_no_array_is_refused_on_every_rank(session):
    """None, as where an array is on worker 0 only, and anything else."""
    lonely = session.empty((2,), "float32", None, True, False)
    whole = session.empty((2,), "float32")
    session.allreduce(lonely, whole, in_group=False)
    with pytest.raises(CollectiveMismatch, match="must be an array, not None"):
        session.sync_all()
    session.allreduce(whole, whole, in_group=False)
    session.sync_all()


@pytest.mark.parametrize("poisoned", [False, True], ids=["raised", "poisoned"])
@pytest.mark.parametrize("worker", [0, 3])
def test_a_rank_that_cannot_come_ends_the_collective_for_all(session, worker, poisoned):
    """The first cause is what the user sees; the next collective works."""
    ones = session.get_global_func("tests.rank_array")([3], "float32")
    if poisoned:
        bad = session.get_global_func("tests.fail_on")(worker)
        src = session.get_global_func("tests.add")(ones, bad)
        dst = session.empty((3,), "float32")
        session.allreduce(src, dst, in_group=False)
    else:
        session.get_global_func("tests.fail_before_allreduce")(ones, worker)
    with pytest.raises(RemoteException, match="told to fail") as raised:
        session.sync_all()
    assert raised.value.worker == worker
    session.sync_all()
    session.allreduce(ones, ones, in_group=False)
    assert ones.numpy(worker).tolist() == [10, 10, 10]


@pytest.mark.parametrize("worker", [1, 2])
def test_whoever_waits_first_gets_the_cause_and_nobody_else(session, worker):
    """A sync of one rank, which was only released, still names the rank that failed."""
    ones = session.get_global_func("tests.rank_array")([3], "float32")
    session.get_global_func("tests.fail_before_allreduce")(ones, worker)
    with pytest.raises(RemoteException, match="told to fail") as raised:
        session.sync_worker(0)
    assert raised.value.worker == worker
    session.sync_all()


def test_sending_around_a_ring(session):
    """Point to point by global ids, across the groups and the nodes."""
    array = session.get_global_func("tests.rank_array")([1000], "float64")
    got = session.get_global_func("tests.ring")(array)
    assert [part[0] for part in fetch(got)] == [4, 1, 2, 3]


def test_one_group_hands_to_the_next(session):
    """The worker of the same rank in the next group gets it."""
    array = session.get_global_func("tests.rank_array")([5], "int32")
    got = session.get_global_func("tests.hand_to_next_group")(array)
    assert [part[0] for part in fetch(got)] == [1, 2, 1, 2]
    got = session.get_global_func("tests.two_sends_to_zero")(array)
    assert [part[0] for part in fetch(got)] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("name", "args", "failed", "text"),
    [
        ("runtime.disco.send_to_next_group", (), [2, 3], "last group"),
        ("runtime.disco.recv_from_prev_group", (), [0, 1], "first group"),
        ("runtime.disco.recv_from_worker0", (), [0], "from itself"),
        ("runtime.disco.send_to_worker", (9,), [0, 1, 2, 3], "worker 9"),
    ],
)
def test_a_transfer_to_nobody_is_refused(session, name, args, failed, text):
    """Those that could have gone on are released, and the session works on."""
    array = session.empty((5,), "int32")
    session.get_global_func(name)(array, *args)
    with pytest.raises(Exception, match=text) as refused:
        session.sync_all()
    said = [f.worker for f in refused.value.failures if text in f.message]
    assert said == failed
    ones = session.get_global_func("tests.rank_array")([1], "int32")
    session.allreduce(ones, ones, in_group=False)
    assert ones.numpy(2).tolist() == [10]


def test_a_library_is_started_once_by_its_name(session):
    """Starting it again changes nothing; another one cannot start beside it."""
    session.init_ccl("mpi")
    session.init_ccl("mpi", 0, 1, 2, 3)
    with pytest.raises(ConfigError, match="'gloo'"):
        session.init_ccl("gloo")
    with pytest.raises(ConfigError, match="expected the numbers of GPUs, from 0, got 0, -1"):
        session.init_ccl("nccl", 0, -1)
    with pytest.raises(BadArgument, match=r"the GPU of each worker.*init_ccl\('nccl', 0, 1\)"):
        session.init_ccl("nccl")
    with pytest.raises(CclError, match="'nccl' cannot start"):
        session.init_ccl("nccl", 0, 1, 2, 3)
    with pytest.raises(CclError, match="mpi"):
        session.init_ccl("local")
    ones = session.get_global_func("tests.rank_array")([1], "int32")
    session.allreduce(ones, ones, in_group=False)
    assert ones.numpy().tolist() == [10]
