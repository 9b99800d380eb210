"""Process groups: who belongs where, who takes part, and messages from one to another."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di

GROUPED = pytest.mark.layouts((2, 2), (4, 2))
FOUR_IN_TWO = pytest.mark.layouts((4, 2))


def both(test):
    return pytest.mark.parametrize("in_group", [True, False], ids=["group", "all"])(test)


def held(parts):
    """Lists instead of arrays, to compare."""
    return [None if part is None else part.tolist() for part in parts]


@pytest.mark.parametrize("workers_groups", [(1, 2), (2, 4), (4, 3)], ids=str)
def test_groups_are_equal_or_refused(program, workers_groups):
    """At once, and for every kind alike."""
    with pytest.raises(di.ConfigError, match="num_groups"):
        eval(program(*workers_groups), {"di": di})


@both
@GROUPED
@pytest.mark.parametrize("only", [True, False], ids=["leaders", "everywhere"])
def test_an_empty_array_is_everywhere_or_on_the_roots(tools, only, in_group):
    """With groups each has a root; the others hold None."""
    ref = tools.session.empty((2,), "float32", worker0_only=only, in_group=in_group)
    expected = [not only or tools.team(worker, in_group)[0] == worker for worker in tools.workers]
    assert [part is not None for part in tools.fetch(ref)] == expected


@both
@GROUPED
def test_a_broadcast_goes_from_each_root_to_its_group(session, tools, in_group):
    """Or from worker 0 to all; only the roots need a source."""
    parts = tools.counting(2, 3)
    roots = {tools.team(worker, in_group)[0] for worker in tools.workers}
    src = tools.place([part if w in roots else None for w, part in enumerate(parts)])
    dst = session.empty((6,), "float32")
    session.broadcast_from_worker0(src, dst, in_group)
    for worker, got in enumerate(tools.fetch(dst)):
        root = tools.team(worker, in_group)[0]
        np.testing.assert_array_equal(got, parts[root].reshape(-1))


@both
@GROUPED
@pytest.mark.parametrize("ignored", [False, True], ids=["none", "ignored"])
def test_a_scatter_deals_each_roots_parts_to_its_group(session, tools, in_group, ignored):
    """Flat and equal, in rank order; what the others pass as source is ignored."""
    size = len(tools.team(0, in_group))
    parts = tools.counting(size, 3, 2)
    roots = {tools.team(worker, in_group)[0] for worker in tools.workers}
    elsewhere = np.zeros(1, "int8") if ignored else None
    src = tools.place([part if w in roots else elsewhere for w, part in enumerate(parts)])
    dst = session.empty((6,), "float32")
    session.scatter_from_worker0(src, dst, in_group)
    for worker, got in enumerate(tools.fetch(dst)):
        team = tools.team(worker, in_group)
        np.testing.assert_array_equal(got, parts[team[0]][team.index(worker)].reshape(-1))


@both
@GROUPED
@pytest.mark.parametrize("ignored", [False, True], ids=["none", "ignored"])
def test_a_gather_collects_at_each_root(session, tools, in_group, ignored):
    """In rank order; what the others pass as destination is ignored and left alone."""
    size = len(tools.team(0, in_group))
    parts = tools.counting(3)
    roots = {tools.team(worker, in_group)[0] for worker in tools.workers}
    elsewhere = np.full(1, 9, "int8") if ignored else None
    room = np.zeros((size, 3), "float32")
    dst = tools.place([room if w in roots else elsewhere for w in tools.workers])
    session.gather_to_worker0(tools.place(parts), dst, in_group)
    for worker, got in enumerate(tools.fetch(dst)):
        if worker in roots:
            expected = [parts[member] for member in tools.team(worker, in_group)]
            np.testing.assert_array_equal(got, expected)
        else:
            assert held([got]) == held([elsewhere])


@both
@GROUPED
def test_reductions_and_collections_stay_inside(session, tools, in_group):
    """Inside each group, or over all workers."""
    parts = tools.counting(3)
    size = len(tools.team(0, in_group))
    src = tools.place(parts)
    total, every = session.empty((3,), "float32"), session.empty((size, 3), "float32")
    session.allreduce(src, total, in_group=in_group)
    session.allgather(src, every, in_group=in_group)
    for worker in tools.workers:
        expected = [parts[member] for member in tools.team(worker, in_group)]
        np.testing.assert_array_equal(total.numpy(worker), np.sum(expected, 0))
        np.testing.assert_array_equal(every.numpy(worker), expected)


@FOUR_IN_TWO
def test_groups_may_use_shapes_of_their_own(session, tools):
    """They do not meet, so they need not agree."""
    parts = [np.ones((2, 3)), np.ones((3, 2)), np.full(5, 2.0), np.full(5, 3.0)]
    src = tools.place(parts)
    dst = tools.place([np.empty_like(part) for part in parts])
    session.allreduce(src, dst)
    assert held(tools.fetch(dst)) == [
        [[2, 2, 2]] * 2,
        [[2, 2]] * 3,
        [5] * 5,
        [5] * 5,
    ]


# What comes from the host -------------------------------------------------------------


@both
@GROUPED
@pytest.mark.parametrize("given", [False, True], ids=["new", "given"])
def test_a_host_array_is_broadcast_to_every_worker_of_every_group(session, tools, in_group, given):
    """The original sends uninitialised memory to the other groups."""
    host = np.arange(6.0).reshape(2, 3)
    expected = host.copy()
    dst = session.empty((3, 2), "float64") if given else None
    ref = session.broadcast(host, dst, in_group)
    host[...] = -1  # it was copied
    assert ref is dst or not given
    for got in tools.fetch(ref):
        np.testing.assert_array_equal(got.reshape(2, 3), expected)


@both
@GROUPED
@pytest.mark.parametrize("given", [False, True], ids=["new", "given"])
def test_a_host_array_is_scattered_one_slice_a_worker(session, tools, in_group, given):
    """Worker w gets the slice w, whatever group it is in."""
    count = session.num_workers
    host = np.arange(count * 6, dtype="int32").reshape(count, 2, 3)
    dst = session.empty((6,), "int32") if given else None
    ref = session.scatter(host, dst, in_group)
    assert ref is dst or not given
    for worker, got in enumerate(tools.fetch(ref)):
        np.testing.assert_array_equal(got.reshape(2, 3), host[worker])
        assert got.shape == ((6,) if given else (2, 3))


@GROUPED
def test_lists_are_host_arrays_too(session, tools):
    """As numpy makes arrays of them."""
    assert held(tools.fetch(session.broadcast([1, 2]))) == [[1, 2]] * session.num_workers
    rows = [[float(worker)] for worker in tools.workers]
    assert held(tools.fetch(session.scatter(rows))) == rows


@both
@GROUPED
def test_a_host_array_with_another_number_of_slices_is_refused(session, in_group):
    """Before anything is sent."""
    issued = session.statistics()["issued"]
    for host in (np.zeros((session.num_workers + 1, 2)), np.zeros((0, 2)), 5.0):
        with pytest.raises(di.ConfigError, match=f"{session.num_workers} slices"):
            session.scatter(host, None, in_group)
    assert session.statistics()["issued"] == issued


# From one worker to another -----------------------------------------------------------


@FOUR_IN_TWO
def test_a_group_hands_on_to_the_next(tools):
    """Worker by worker: 0 to 2, 1 to 3."""
    parts = tools.counting(2, 3)
    got = tools.fetch(tools.call("hand_to_next_group", tools.place(parts)))
    for worker, expected in enumerate([parts[0], parts[1], parts[0], parts[1]]):
        np.testing.assert_array_equal(got[worker], expected)


@GROUPED
@pytest.mark.parametrize("count", [1, 40_000])
def test_any_worker_sends_to_any_other(session, tools, count):
    """By their global numbers; the others are not involved."""
    last = session.num_workers - 1
    for sender, receiver in {(0, last), (last, 0), (last, max(0, last - 1))}:
        parts = tools.counting(count)
        got = tools.fetch(tools.call("pass_on", tools.place(parts), sender, receiver))
        for worker in tools.workers:
            expected = parts[sender if worker == receiver else worker]
            np.testing.assert_array_equal(got[worker], expected)


@GROUPED
def test_worker_0_sends_to_each_of_the_others(tools):
    """Who receive by ``recv_from_worker0``."""
    parts = tools.counting(3)
    for got in tools.fetch(tools.call("from_worker0", tools.place(parts))):
        np.testing.assert_array_equal(got, parts[0])


@FOUR_IN_TWO
@pytest.mark.parametrize(
    ("workers", "name", "args"),
    [
        ([2], "send_to_next_group", ()),
        ([0], "recv_from_prev_group", ()),
        ([0], "recv_from_worker0", ()),
        ([1], "send_to_worker", (1,)),
        ([1], "recv_from_worker", (1,)),
        ([3], "send_to_worker", (4,)),
        ([3], "recv_from_worker", (4,)),
        ([0], "send_to_worker", (-1,)),
        ([0, 1, 2, 3], "send_to_worker", (99,)),
        ([0, 1, 2, 3], "send_to_next_group", ()),
        ([0, 1, 2, 3], "recv_from_prev_group", ()),
        ([0, 1, 2, 3], "recv_from_worker0", ()),
    ],
    ids=str,
)
def test_a_message_without_a_partner_is_an_error_for_all(session, tools, workers, name, args):
    """Nobody waits for a worker that will not come."""
    buffer = session.empty((40_000,), "float32")
    tools.call("on", workers, f"runtime.disco.{name}", buffer, *args)
    with pytest.raises((di.BadArgument, di.CollectiveMismatch)):
        session.sync_all()
    ref = tools.place(tools.counting(2))
    session.allreduce(ref, ref, in_group=False)
    session.sync_all()


@pytest.mark.parametrize("other", [np.zeros(3, "float32"), np.zeros(2, "int32")], ids=repr)
def test_both_ends_of_a_message_must_fit(session, tools, other):
    """Same number of elements, same dtype; otherwise both ends say so."""
    buffers = tools.place([np.ones(2, "float32"), other])
    tools.call("pass_on", buffers, 0, 1)
    with pytest.raises(di.CollectiveMismatch):
        session.sync_all()
    np.testing.assert_array_equal(buffers.numpy(1), other)
