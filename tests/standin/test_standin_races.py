"""The stand-in tells of streams that use the same memory without an order."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def races(cupy, monkeypatch):
    """They are told of only where that is asked for."""
    monkeypatch.setenv("STANDIN_RACES", "1")


def sum_into(rank, source, target):
    """Puts a sum on the stream for collectives, without any waiting."""
    size = source.size
    rank.comm.allReduce(source.data.ptr, target.data.ptr, size, 4, 0, rank.stream.ptr)


def test_collectives_that_wait_are_not_told_of(on_ranks):
    """Several in a row, with computations between them, and memory that goes and comes."""

    def body(rank):
        for _ in range(3):
            source = rank.cupy.full(100, rank.index, np.int64) + 1
            target = rank.cupy.empty_like(source)
            rank.enter()
            sum_into(rank, source, target)
            rank.leave()
            source += target
            del target
        return source[0].item()

    assert on_ranks(2, body) == [4, 5]


def test_a_collective_that_does_not_wait_for_the_computation(on_ranks):
    """Though its input was there in time, by luck."""

    def body(rank):
        source = rank.cupy.ones(100, np.int64)
        target = rank.cupy.zeros_like(source)
        rank.enter()
        source += 1
        sum_into(rank, source, target)

    for result in on_ranks(2, body):
        assert "race: allReduce(count=100, int64, sum)" in str(result)
        assert "does not wait for add" in str(result)


def test_memory_allocated_too_late(on_ranks):
    """Other work of its stream may still use it."""

    def body(rank):
        source = rank.cupy.ones(100, np.int64)
        rank.enter()
        sum_into(rank, source, rank.cupy.empty_like(source))

    for result in on_ranks(2, body):
        assert "does not wait for its allocation" in str(result)


@pytest.mark.parametrize("what", ["read", "overwrite", "fetch"])
def test_a_computation_that_does_not_wait_for_the_collective(on_ranks, what):
    """Whether it reads the result, writes over the input, or copies to the host."""

    def body(rank):
        source = rank.cupy.ones(100, np.int64)
        target = rank.cupy.zeros_like(source)
        rank.enter()
        sum_into(rank, source, target)
        if what == "read":
            return target + 1
        if what == "overwrite":
            source[:10] = 5
        return target.get()

    for result in on_ranks(2, body):
        assert "race: " in str(result)
        assert "does not wait for allReduce" in str(result)


def test_reading_on_two_streams_is_allowed(on_ranks):
    """Only writing needs an order."""

    def body(rank):
        source = rank.cupy.ones(100, np.int64)
        target = rank.cupy.zeros_like(source)
        rank.enter()
        sum_into(rank, source, target)
        found = source.sum().item()
        rank.leave()
        return found

    assert on_ranks(2, body) == [100, 100]


def test_the_host_orders_what_it_waited_for(on_ranks):
    """Without any event."""

    def body(rank):
        source = rank.cupy.ones(100, np.int64)
        target = rank.cupy.zeros_like(source)
        rank.compute.synchronize()
        sum_into(rank, source, target)
        rank.stream.synchronize()
        return target[0].item()

    assert on_ranks(2, body) == [2, 2]


def test_the_null_stream_orders_blocking_streams(cupy):
    """And not the others."""
    array = cupy.zeros(8, np.int64)
    with cupy.cuda.Stream():
        array += 1
    assert array.sum().item() == 8
    array += 1
    with cupy.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError, match="race: add"):
        array += 1
