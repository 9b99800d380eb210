"""Data between GPUs, against numpy, with the stand-in as the library."""

from __future__ import annotations

import device_ranks
import numpy as np
import pytest
import scenarios

from disco_server.collectives.types import ReduceOp

# Moves are of bytes, whatever these mean; one dtype of each size will do.
MOVED = [np.dtype("bool"), scenarios.BFLOAT16, np.dtype("complex128")]
REDUCED = ("bool", "int8", "int32", "uint64", "float16", "bfloat16", "float32", "complex64")
SUM = ReduceOp.SUM


def only(*names):
    """The reductions of some dtypes that a GPU knows."""
    return lambda dtype, op: dtype.name in names and device_ranks.known_on_device(dtype, op)


def test_reductions_of_every_family_on_the_standin(device_ranks):
    """Four ranks, one group and two: what numpy gives, apart and in place."""
    assert device_ranks(4).run("reductions", sizes=[7], knows=only(*REDUCED)) == [[]] * 4


def test_moves_of_every_size_of_the_standin(device_ranks):
    """Gathering and spreading bring every part to its place, in every way and in place."""
    assert device_ranks(4).run("moves", dtypes=MOVED) == [[]] * 4


@pytest.mark.parametrize("count", [1, 2])
def test_few_ranks_of_the_standin(device_ranks, count):
    """One rank alone, two in one group, and two in a group each."""
    ranks = device_ranks(count, groups=count)
    knows = only("float32", "bool", "complex64")

    assert ranks.run("reductions", sizes=[5001], knows=knows) == [[]] * count
    assert ranks.run("moves", dtypes=MOVED[:1]) == [[]] * count


def test_shapes_do_not_matter_to_the_standin(device_ranks):
    """Only element counts do; strided, scalar, empty and overlapping arrays work."""
    ranks = device_ranks(4)

    assert ranks.run("shapes") == [[]] * 4
    assert ranks.run("transfers") == [[]] * 4


@pytest.mark.parametrize("shift", [1, 4, 9])
def test_sources_of_the_standin_may_overlap_their_destinations(device_ranks, shift):
    """A few elements further in the same memory, of each kind of collective."""
    ranks = device_ranks(4, groups=1)
    size = 12

    def overlap(rank):
        place, wrong = rank.place(), []
        world, me = place.flat.world, rank.rank
        whole = [np.arange(4 * size + shift, dtype=np.float32) + 100 * each for each in range(4)]
        first = [each[: 4 * size] for each in whole]

        def check(name, got, want):
            wrong.extend(scenarios.differ(f"{name} {shift}", got, np.asarray(want, np.float32)))

        mine = whole[me].copy()
        world.allreduce(mine[: 4 * size], mine[shift:], SUM)
        check("allreduce", mine[shift:], sum(first))
        mine = whole[me].copy()
        world.reduce_scatter(mine[: 4 * size], mine[shift : shift + size], SUM)
        check("reduce_scatter", mine[shift : shift + size], sum(first).reshape(4, -1)[me])
        mine = whole[me].copy()
        world.allgather(mine[:size], mine[shift:])
        check("allgather", mine[shift:], np.concatenate([each[:size] for each in whole]))
        mine = whole[me].copy()
        world.broadcast(mine[: 4 * size], mine[shift:])
        check("broadcast", mine[shift:], first[0])
        mine = whole[me].copy()
        world.scatter(mine[: 4 * size], mine[shift : shift + size])
        check("scatter", mine[shift : shift + size], first[0].reshape(4, -1)[me])
        mine = whole[me].copy()
        world.gather(mine[:size], mine[shift:])
        gathered = np.concatenate([each[:size] for each in whole])
        check("gather", mine[shift:], whole[me][shift:] if me else gathered)
        mine = whole[me].copy()
        world.all_to_all(mine[: 4 * size], mine[shift:])
        parts = [each.reshape(4, -1)[me] for each in first]
        check("all_to_all", mine[shift:], np.concatenate(parts))
        return wrong

    assert ranks.each(overlap) == [[]] * 4


def test_operations_of_the_standin_keep_their_order_among_functions(device_ranks):
    """Computed, combined, computed, passed on: without a wait nothing is seen too early."""
    ranks = device_ranks(4, groups=1)

    def chain(rank):
        arrays, world = rank.arrays, rank.flat.world
        found = arrays.from_host(np.full(1000, rank.rank, np.float32))
        for _ in range(5):
            world.allreduce(found, found, ReduceOp.MAX)  # the highest of them
            found = found + 1
            every = arrays.empty((4, 1000), found.dtype)
            world.allgather(found, every)
            found = every.sum(axis=0) / 4
        return arrays.to_host(found).tolist() == [8.0] * 1000

    assert ranks.each(chain) == [True] * 4


def test_the_standin_is_not_waited_for(device_ranks, standin, monkeypatch):
    """No collective makes the host wait for the device: calls return with nothing done."""
    ranks = device_ranks(2, groups=1)
    waits = []
    for owner, name in (
        (standin.cuda.stream.Event, "synchronize"),
        (standin.cuda.stream._BaseStream, "synchronize"),
        (standin.cuda.runtime, "streamSynchronize"),
        (standin.cuda.runtime, "deviceSynchronize"),
    ):
        real = getattr(owner, name)

        def note(*args, name=name, real=real):
            waits.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, note)

    def act(rank):
        world, one = rank.flat.world, rank.arrays.empty((6,), np.dtype(np.float32))
        two = rank.arrays.empty((12,), one.dtype)
        world.allreduce(one, one, SUM)
        world.allgather(one, two)
        world.reduce_scatter(two, one, SUM)
        world.broadcast(one, one)
        world.scatter(two, one)
        world.gather(one, two)
        world.all_to_all(two, two)
        (world.recv if rank.rank else world.send)(one, 1 - rank.rank)
        world.barrier()
        seen = len(waits), rank.arrays.comm.done
        world.barrier()
        rank.arrays.synchronize()
        return seen

    assert ranks.each(act) == [(0, False)] * 2
    assert len(waits) == 8  # two streams each, by way of the runtime
