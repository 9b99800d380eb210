"""What a fetch returns is the program's own, and what a call sends is the workers'."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import disco_client as di

FETCHES = {
    "get": lambda ref: ref.get(),
    "get_all": lambda ref: ref.get_all()[0],
    "numpy": lambda ref: ref.numpy(),
    "future": lambda ref: ref.future().result(),
}


@pytest.mark.parametrize("fetch", FETCHES)
def test_a_fetched_array_is_a_copy(tools, fetch):
    """Changing it leaves the register as it is, and the other way round."""
    for size in (3, 20_000):
        ref = tools.call("add", np.zeros(size), 0)
        found = FETCHES[fetch](ref)
        assert type(found) is np.ndarray
        assert found.flags.writeable
        assert found.flags.c_contiguous
        found += 5
        assert ref.numpy().tolist() == [0] * size
        tools.call("arrays.add_into", ref, 1)
        assert ref.get().tolist() == [1] * size
        assert found.tolist() == [5] * size


def test_a_fetched_value_is_a_copy_all_through(tools):
    """Arrays in lists and dicts, and these themselves."""
    ref = tools.call("arrays.make", "nested")
    for fetch in (ref.get, ref.future().result, lambda: ref.get_all()[0]):
        found = fetch()
        found[0] += 5
        found[1]["a"][0][:] = 7
        found.append(1)
        found[1]["b"] = 2
        again = ref.get()
        assert [again[0].tolist(), again[1]["a"][0].tolist()] == [[0, 0], [1, 1]]
        assert [len(again), list(again[1])] == [2, ["a"]]
    pair = tools.call("arrays.make", "pair")
    pair.get()[0][:] = 5
    assert [part.tolist() for part in pair.get()] == [[0, 0], [1, 1]]
    assert type(pair.get()) is tuple


def test_a_fetch_has_the_content_of_its_place_among_the_commands(session, tools):
    """A later command does not change what was asked for before it."""
    ref = tools.call("add", np.zeros(3), 0)
    asked = ref.future()
    tools.call("arrays.add_into", ref, 1)
    session.sync_all()
    assert asked.result().tolist() == [0, 0, 0]
    assert ref.get().tolist() == [1, 1, 1]


def test_awaited_arrays_are_copies(tools):
    """Also those of all workers."""
    ref = tools.call("add", np.zeros(3), 0)

    async def fetch():
        one = await ref
        one += 5
        return one

    assert asyncio.run(fetch()).tolist() == [5, 5, 5]
    assert ref.numpy().tolist() == [0, 0, 0]


def test_a_tensor_is_fetched_as_a_copy(session):
    """Where each worker has all of it, too; and so is one worker's part."""
    for placement in ("R", "S[0]"):
        x = session.distribute(np.zeros(4), session.mesh(), placement)
        for fetch in (x.numpy, lambda x=x: x.shard(0), lambda x=x: np.asarray(x)):
            fetch()[:] = 5
        assert x.numpy().tolist() == [0] * 4


def test_a_read_only_array_and_one_of_another_order_arrive_as_others_do(tools):
    """Writable and in C's order."""
    found = tools.call("arrays.make", "read-only").get()
    assert (found.flags.writeable, found.flags.c_contiguous) == (True, True)
    assert found.tolist() == [[2, 2, 2]] * 2


def test_the_number_of_a_register_is_an_array_of_its_dtype(tools):
    """One of numpy's keeps it, and text is no number."""
    found = tools.call("arrays.make", "float32").numpy()
    assert [type(found), found.shape] == [np.ndarray, ()]
    assert found == np.float32(0.1)
    assert found.dtype == np.float32
    for value in (True, 3, 2.5):
        assert tools.call("echo", value).numpy() == value
    with pytest.raises(TypeError, match="expected an array"):
        tools.call("echo", "text").numpy()
    with pytest.raises(TypeError, match="expected an array"):
        tools.call("arrays.make", "objects").numpy()


def test_the_workers_have_their_own_of_what_a_call_sends(session, tools):
    """Changing an array after the call, or on one worker, changes no other one."""
    for size in (3, 20_000):
        sent = np.zeros(size)
        ranks = session.get_global_func("runtime.disco.worker_rank")()
        ref = tools.call("arrays.add_into", sent, ranks)
        nested = tools.call("echo", [sent, {"a": sent}])
        there = session.copy_to_worker_0(sent)
        copied = session.empty((size,), "float64")
        copied.debug_copy_from(0, sent)
        sent += 5
        assert [ref.numpy(worker)[-1] for worker in tools.workers] == [0, 1]
        assert [nested.get()[0][-1], nested.get(1)[1]["a"][-1]] == [0, 0]
        assert [there.numpy()[-1], copied.numpy()[-1]] == [0, 0]


def test_an_array_that_could_not_travel_is_a_copy_too(tools, kind):
    """Between threads, where it is fetched as it is; elsewhere it is a description."""
    for what in ("records", "objects"):
        ref = tools.call("arrays.make", what)
        found = ref.get()
        if kind.processes:
            assert type(found) is di.Opaque
        else:
            assert type(found) is np.ndarray
            assert not np.shares_memory(found, ref.debug_get_from_remote(0))


def test_threads_hand_over_the_register_itself_where_that_is_asked_for(tools, kind):
    """``debug_get_from_remote`` is the one way to reach it, and other kinds return a copy."""
    ref = tools.call("add", np.zeros(3), 0)
    ref.debug_get_from_remote(0)[:] = 5
    assert ref.numpy().tolist() == ([0] * 3 if kind.processes else [5] * 3)
    masked = tools.call("arrays.make", "masked")
    if kind.processes:
        with pytest.raises(di.BadArgument, match="mask"):
            masked.debug_get_from_remote(0)
    else:
        assert masked.debug_get_from_remote(0).mask.tolist() == [False, True, False]
