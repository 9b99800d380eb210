"""The stand-in for NCCL among threads: what collectives give, and what they refuse."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

NUMBERS = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
SIZE = 4


def reduce_all(rank, host, op):
    """What an allReduce of one array for each rank gives."""
    array = rank.cupy.asarray(host)
    number = NUMBERS[array.dtype.name]
    ptr = array.data.ptr
    rank.comm.allReduce(ptr, ptr, array.size, number, op, rank.enter())
    rank.leave()
    return array.get()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_sums_are_in_the_dtype(on_ranks, dtype):
    """Integers wrap, floats round."""
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    parts = [(np.arange(5) * 37 + rank * 50).astype(kind) for rank in range(SIZE)]
    wide = np.float64 if kind.kind in "fV" else np.int64
    expected = np.sum([part.astype(wide) for part in parts], axis=0).astype(kind)
    for result in on_ranks(SIZE, lambda rank: reduce_all(rank, parts[rank.index], 0)):
        assert result.dtype == kind
        assert result.tobytes() == expected.tobytes()


def test_the_other_operators(on_ranks):
    """Products, the greatest, the least, and averages."""
    results = on_ranks(
        SIZE,
        lambda rank: [
            reduce_all(rank, np.array([rank.index + 1.5, -rank.index]), op) for op in range(1, 5)
        ],
    )

    expected = [[1.5 * 2.5 * 3.5 * 4.5, 0], [4.5, 0], [1.5, -3], [3, -1.5]]
    assert np.array_equal(results[2], expected)


def test_averages_of_integers_are_cut(on_ranks):
    """Towards zero."""
    results = on_ranks(2, lambda rank: reduce_all(rank, np.array([-3, 3, 4]) * rank.index, 4))

    assert results[0].tolist() == [-1, 1, 2]


def test_the_greater_of_a_number_and_nan_is_the_number(on_ranks):
    """Unlike numpy's, and like the device's."""
    values = [np.nan, 2.0]
    results = on_ranks(2, lambda rank: reduce_all(rank, np.array([values[rank.index]]), 2))

    assert results[0].tolist() == [2]


def test_gathering_and_scattering(on_ranks):
    """In place and from one array to another."""

    def body(rank):
        cp, me = rank.cupy, rank.index
        rows = cp.full((SIZE, 3), -1, np.int32)
        rows[me] = me
        rank.comm.allGather(rows.data.ptr + me * 12, rows.data.ptr, 3, 2, rank.enter())
        summed = cp.empty(3, np.int32)
        rank.comm.reduceScatter(rows.data.ptr, summed.data.ptr, 3, 2, 0, rank.stream.ptr)
        inside = rows.data.ptr + me * 12
        rank.comm.reduceScatter(rows.data.ptr, inside, 3, 2, 0, rank.stream.ptr)
        rank.leave()
        return summed.tolist(), rows[me].tolist()

    assert on_ranks(SIZE, body) == [([4 * r] * 3, [4 * r] * 3) for r in range(SIZE)]


def test_from_one_and_to_one(on_ranks):
    """Only the root's buffer is read, or written."""

    def body(rank):
        array = rank.cupy.full(3, rank.index, np.float32)
        rank.comm.bcast(array.data.ptr, 3, 7, 2, rank.enter())
        got = rank.cupy.zeros(3, np.float32)
        target = got.data.ptr if rank.index == 1 else 0
        rank.comm.reduce(array.data.ptr, target, 3, 7, 0, 1, rank.stream.ptr)
        source = array.data.ptr if rank.index == 0 else 0
        rank.comm.broadcast(source, array.data.ptr, 1, 7, 0, rank.stream.ptr)
        rank.leave()
        return array[0].item(), got[0].item()

    assert on_ranks(3, body) == [(2, 0), (2, 6), (2, 0)]


def test_a_ring_needs_a_group(on_ranks, nccl):
    """In a group, sends and receives go together, also those to oneself."""

    def body(rank):
        here = rank.cupy.full(3, rank.index, np.int64)
        there = rank.cupy.zeros((2, 3), np.int64)
        stream = rank.enter()
        nccl.groupStart()
        rank.comm.send(here.data.ptr, 3, 4, (rank.index + 1) % SIZE, stream)
        rank.comm.recv(there.data.ptr, 3, 4, (rank.index - 1) % SIZE, stream)
        rank.comm.send(here.data.ptr, 3, 4, rank.index, stream)
        rank.comm.recv(there.data.ptr + 24, 3, 4, rank.index, stream)
        nccl.groupEnd()
        rank.leave()
        return there[:, 0].tolist()

    assert on_ranks(SIZE, body) == [[(r - 1) % SIZE, r] for r in range(SIZE)]


def test_a_split_makes_communicators(on_ranks):
    """One for each color, ordered by the keys; none for who has no color."""

    def body(rank):
        sub = rank.comm.commSplit(-1 if rank.index == 3 else rank.index % 2, -rank.index)
        if sub is None:
            return None
        array = rank.cupy.full(1, rank.index, np.int32)
        sub.allReduce(array.data.ptr, array.data.ptr, 1, 2, 0, rank.enter())
        rank.leave()
        found = sub.rank_id(), sub.size(), sub.device_id(), array.item()
        sub.destroy()
        return found

    assert on_ranks(SIZE, body) == [(1, 2, 0, 2), (0, 1, 1, 1), (0, 2, 2, 2), None]


def test_a_forgotten_wait_shows_old_data(on_ranks):
    """On every rank, and always; the collective itself is not to blame."""

    def body(rank):
        array = rank.cupy.full(1, 1, np.int32)
        got = rank.cupy.zeros(1, np.int32)
        rank.comm.allReduce(array.data.ptr, got.data.ptr, 1, 2, 0, rank.enter())
        stale = got.item()
        rank.leave()
        return stale, got.item()

    assert on_ranks(SIZE, body) == [(0, SIZE)] * SIZE


def test_forgetting_to_wait_for_the_computation_sends_old_data(on_ranks):
    """The collective takes what is there when it runs."""

    def body(rank):
        source = np.frombuffer(rank.cupy.cuda.alloc_pinned_memory(4), np.int32, 1)
        source[:] = 1
        array = rank.cupy.zeros(1, np.int32)
        copy = rank.cupy.cuda.runtime.memcpyAsync
        copy(array.data.ptr, source.ctypes.data, 4, 1, rank.compute.ptr)
        got = rank.cupy.empty(1, np.int32)
        rank.comm.allReduce(array.data.ptr, got.data.ptr, 1, 2, 0, rank.stream.ptr)
        rank.leave()
        return got.item()

    assert on_ranks(2, body) == [0, 0]


def test_who_does_not_wait_still_takes_part(on_ranks):
    """Another rank that needs the result gets it, as if the device went on by itself."""
    met = threading.Barrier(3)

    def body(rank):
        array = rank.cupy.full(1, 1, np.int32)
        got = rank.cupy.zeros(1, np.int32)
        rank.comm.allReduce(array.data.ptr, got.data.ptr, 1, 2, 0, rank.enter())
        if rank.index == 1:
            rank.leave()
        value = got.item()
        met.wait(20)
        return value

    assert on_ranks(3, body) == [0, 3, 0]


@pytest.mark.parametrize("what", ["count", "dtype", "operator", "kind"])
def test_ranks_that_do_not_match_are_told(on_ranks, what, capfd):
    """All of them, where the library would hang or go on with wrong data."""

    def body(rank):
        odd = rank.index == 1
        array = rank.cupy.zeros(8, np.int32)
        ptr = array.data.ptr
        count = 3 if odd and what == "count" else 4
        dtype = 3 if odd and what == "dtype" else 2
        operator = 2 if odd and what == "operator" else 0
        if odd and what == "kind":
            rank.comm.bcast(ptr, count, dtype, 0, rank.enter())
        else:
            rank.comm.allReduce(ptr, ptr, count, dtype, operator, rank.enter())
        rank.stream.synchronize()

    results = on_ranks(3, body)
    for result in results:
        assert type(result).__name__ == "StandinFault"
        assert "mismatch among ranks" in str(result)
        assert "rank 0: allReduce(count=4, int32, sum); rank 1: " in str(result)
    assert "mismatch among ranks" in capfd.readouterr().err


def test_a_send_that_does_not_match_is_told(on_ranks):
    """To the communicator's other ranks as well."""

    def body(rank):
        array = rank.cupy.zeros(4, np.int32)
        if rank.index == 0:
            rank.comm.send(array.data.ptr, 4, 2, 1, rank.enter())
        elif rank.index == 1:
            rank.comm.recv(array.data.ptr, 3, 2, 0, rank.enter())
        else:
            rank.comm.bcast(array.data.ptr, 4, 2, 0, rank.enter())
        rank.stream.synchronize()

    for result in on_ranks(3, body):
        assert "send(count=4" in str(result)
        assert "recv(count=3" in str(result)


def test_buffers_may_overlap_only_in_place(on_ranks, nccl):
    """Anything else destroys what is still to be sent."""

    def body(rank):
        array = rank.cupy.zeros(16, np.int32)
        ptr, stream, comm = array.data.ptr, rank.enter(), rank.comm
        calls = (
            lambda: comm.allReduce(ptr, ptr + 4, 4, 2, 0, stream),
            lambda: comm.allGather(ptr + (1 - rank.index) * 16, ptr, 4, 2, stream),
            lambda: comm.reduceScatter(ptr, ptr + (1 - rank.index) * 16, 4, 2, 0, stream),
        )
        for call in calls:
            with pytest.raises(nccl.NcclError, match="overlap, but not in place") as caught:
                call()
            assert caught.value.status == 4
        return True

    assert on_ranks(2, body) == [True, True]


def test_what_a_communicator_refuses(on_ranks, nccl):
    """Buffers elsewhere, and numbers that mean nothing."""

    def body(rank):
        array = rank.cupy.zeros(4, np.int32)
        host = np.zeros(4, np.int32)
        with rank.cupy.cuda.Device(3):
            elsewhere = rank.cupy.zeros(4, np.int32)
            foreign = rank.cupy.cuda.Stream()
        ptr, stream = array.data.ptr, rank.stream.ptr
        for arguments in (
            (host.ctypes.data, ptr, 4, 2, 0, stream),
            (ptr, elsewhere.data.ptr, 4, 2, 0, stream),
            (ptr, ptr, 1000, 2, 0, stream),
            (ptr, ptr, 4, 10, 0, stream),
            (ptr, ptr, 4, 2, 5, stream),
            (ptr, ptr, 4, 2, 0, foreign.ptr),
        ):
            with pytest.raises(nccl.NcclError, match="NCCL_ERROR_INVALID_ARGUMENT"):
                rank.comm.allReduce(*arguments)
        with pytest.raises(OverflowError):
            rank.comm.allReduce(ptr, ptr, -1, 2, 0, stream)
        return True

    assert on_ranks(1, body) == [True]


def test_a_communicator_that_is_gone(on_ranks, nccl):
    """Every call fails, but for ending it once more."""

    def body(rank):
        rank.comm.destroy()
        for call in (rank.comm.rank_id, rank.comm.check_async_error, rank.comm.size):
            with pytest.raises(nccl.NcclError, match="NCCL_ERROR_INVALID_ARGUMENT"):
                call()
        rank.comm.destroy()
        rank.comm.abort()
        return True

    assert on_ranks(2, body) == [True, True]


def test_the_same_device_twice_is_refused(cupy, nccl):
    """On every rank."""
    with pytest.raises(nccl.NcclError, match="Duplicate GPU detected") as caught:
        nccl.NcclCommunicator.initAll([0, 1, 0])

    assert caught.value.status == 5


def test_one_thread_may_have_many_devices(cupy, nccl):
    """By a group over their communicators."""
    comms = nccl.NcclCommunicator.initAll(3)
    arrays = []
    nccl.groupStart()
    for index, comm in enumerate(comms):
        with cupy.cuda.Device(index):
            arrays.append(cupy.full(1, index + 1, np.int32))
        ptr = arrays[-1].data.ptr
        comm.allReduce(ptr, ptr, 1, 2, 0, 0)
    nccl.groupEnd()

    assert [array.get().item() for array in arrays] == [6, 6, 6]
    for comm in comms:
        comm.destroy()


def test_aborting_frees_who_waits(on_ranks, nccl):
    """The stream goes on without a result; the other rank sees an error."""
    entered = threading.Barrier(2)

    def body(rank):
        array = rank.cupy.zeros(1, np.int32)
        if rank.index == 0:
            rank.comm.allReduce(array.data.ptr, array.data.ptr, 1, 2, 0, rank.enter())
            timer = threading.Timer(0.2, rank.comm.abort)
            timer.start()
            rank.stream.synchronize()
            timer.join()
            entered.wait(20)
            return "freed"
        entered.wait(20)
        while True:
            try:
                rank.comm.check_async_error()
            except nccl.NcclError as error:
                rank.comm.abort()
                return error.status

    assert on_ranks(2, body) == ["freed", 6]


@pytest.mark.parametrize(("count", "dtype"), [(0, 7), (3, 7)])
def test_operations_of_nothing(on_ranks, count, dtype):
    """They match, too."""

    def body(rank):
        array = rank.cupy.ones(count, np.float32)
        rank.comm.allReduce(array.data.ptr, array.data.ptr, count, dtype, 0, rank.enter())
        rank.leave()
        return array.tolist()

    assert on_ranks(2, body) == [[2] * count] * 2


def test_the_versions_are_those_of_the_library(nccl, monkeypatch):
    """Unless the environment says otherwise."""
    assert nccl.get_version() == 23203
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22005")

    assert nccl.get_version() == 22005
    assert len(nccl.get_unique_id()) == 128
    with pytest.raises(ValueError, match="commId length 3 != 128"):
        nccl.NcclCommunicator(1, b"abc", 0)
