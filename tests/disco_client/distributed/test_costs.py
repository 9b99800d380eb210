"""What plans say they cost is what the workers receive, byte for byte."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.distributed import DeviceMesh

MESHES = [
    DeviceMesh((2,), [3, 1]),
    DeviceMesh((3,), range(3)),
    DeviceMesh((4,), range(4)),
    DeviceMesh((2, 2), [2, 0, 3, 1]),
    DeviceMesh((1, 4), range(4)),
]
PARTIAL = ["P", "P[prod]", "P[min]", "P[max]"]
LARGE = (129, 128)  # float32: more than what travels within a command

meshes = st.sampled_from(MESHES)


def placements(ndim, mesh, partial=PARTIAL):
    """Any placement, partial ones of each kind among them."""
    kinds = [["R", op, *(f"S[{axis}]" for axis in range(ndim))] for op in partial]
    each = st.sampled_from(kinds).flatmap(lambda k: st.tuples(*[st.sampled_from(k)] * mesh.ndim))
    return each.map(", ".join)


def received(session):
    """How many bytes the teams of each worker have brought to it so far."""
    count = session.get_global_func("runtime.disco._received_bytes")()
    return np.array([count.debug_get_from_remote(worker) for worker in range(4)])


def planned(plans, num_workers=4):
    """How many bytes the steps of plans say that reach each worker."""
    total = np.zeros(num_workers, np.int64)
    for plan in plans:
        for step in plan.steps:
            total[plan.before.device_mesh.device_ids] += step.nbytes
    return total


def plans_of(tensor):
    return [plan for _, plan in tensor.origin.moves]


def explained(tensor):
    """The bytes that explain() says, in all and line by line."""
    first, *lines = tensor.explain().splitlines()
    numbers = [
        int(re.search(r"([\d,]+) bytes", line)[1].replace(",", ""))
        for line in lines
        if line.endswith(" bytes to a worker")
    ]
    return int(re.search(r"([\d,]+) bytes", first)[1].replace(",", "")), numbers


def check(session, compute):
    """Computes; what its result says, in whichever way, is what the workers count."""
    before = received(session)
    result = compute()
    np.testing.assert_array_equal(received(session) - before, planned(plans_of(result)))
    total, lines = explained(result)
    assert total == sum(plan.cost for plan in plans_of(result)) == sum(lines)
    assert lines == [step.cost for plan in plans_of(result) for step in plan.steps]
    return result


@settings(max_examples=120)
@given(
    mesh=meshes,
    shape=st.lists(st.integers(0, 7), max_size=3),
    dtype=st.sampled_from(["float32", "int8", "complex64", "float16"]),
    data=st.data(),
)
def test_a_plan_costs_what_the_workers_receive(workers, mesh, shape, dtype, data):
    """Each of them, for any two placements; the plan's cost is that of who gets the most."""
    partial = PARTIAL[:2] if dtype == "complex64" else PARTIAL  # they have no order
    places = placements(len(shape), mesh, partial)
    x = workers.distribute(np.zeros(shape, dtype), mesh, data.draw(places))
    target = data.draw(places)
    plan = x.plan(target)
    assert plan.cost == sum(max(step.nbytes) for step in plan.steps)
    moved = check(workers, lambda: x.redistribute(target))
    assert moved.placement == plan.after.placement
    assert explained(moved)[0] == plan.cost


FUNCTIONS = {
    "matmul": lambda x, y, _s: x @ y,
    "add": lambda x, y, _s: x + y,
    "multiply": lambda x, y, _s: x * y,
    "where": lambda x, y, _s: np.where(x, x, y),
    "mean": lambda x, _y, _s: x.mean(axis=0),
    "sum": lambda x, _y, _s: x.sum(axis=-1, keepdims=True),
    "getitem": lambda x, _y, _s: x[1:, 0],
    "einsum": lambda x, y, _s: np.einsum("ij,kj->ik", x, y),
    "reshape": lambda x, _y, _s: x.reshape(-1),
    "concatenate": lambda x, y, _s: np.concatenate([x, y], axis=1),
    "softmax": lambda x, _y, s: s.apply("softmax", x, axis=0),
    "take": lambda x, _y, _s: np.take(x, [2, 0, 1], axis=1),
    "clip": lambda x, _y, _s: x.clip(-1, 1),
    "round": lambda x, _y, _s: np.round(x, 1),
    "var": lambda x, _y, _s: x.var(axis=0),
    "cumsum": lambda x, _y, _s: x.cumsum(axis=0),
    "norm": lambda x, _y, _s: np.linalg.norm(x, 1),
    "repeat": lambda x, _y, _s: x.repeat(2, axis=0),
    "split": lambda x, _y, _s: np.split(x, [1])[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=10)
@given(mesh=meshes, size=st.integers(3, 6), data=st.data())
def test_explain_says_what_the_workers_received(workers, name, mesh, size, data):
    """For operators, functions, and those that are several functions."""
    shape = (size, size)
    arrays = [np.random.default_rng(seed).normal(size=shape).astype("float32") for seed in (0, 1)]
    x, y = (workers.distribute(a, mesh, data.draw(placements(2, mesh))) for a in arrays)
    check(workers, lambda: FUNCTIONS[name](x, y, workers))


@settings(max_examples=20)
@given(mesh=meshes, data=st.data())
def test_what_a_large_host_array_costs(workers, mesh, data):
    """Copies are made by broadcasts; parts go where they belong, and cost nothing."""
    array = np.ones(LARGE, "float32")
    placement = data.draw(placements(2, mesh))
    x = check(workers, lambda: workers.distribute(array, mesh, placement))
    if "R" not in placement and "P" not in placement:
        assert x.explain().endswith("nothing moved")
    elif mesh.shape != (1, 4):
        assert "host array: broadcast along mesh axis" in x.explain()


@settings(max_examples=20)
@given(mesh=meshes, data=st.data())
def test_what_a_large_host_operand_costs(workers, mesh, data):
    """Each worker gets what it needs of it, and no more than that is brought."""
    array = np.ones(LARGE, "float32")
    x = workers.distribute(array, mesh, data.draw(placements(2, mesh)))
    check(workers, lambda: x + array)
    other = array.T
    check(workers, lambda: x @ other)


def test_a_host_operand_goes_where_it_is_needed(workers):
    """In parts, where the other operand is split; so nothing moves between workers."""
    array = np.ones(LARGE, "float32")
    x = workers.distribute(array, workers.mesh(), "S[0]")
    y = check(workers, lambda: x * array)
    assert y.explain() == "multiply -> S[0]: 0 bytes to a worker\n  nothing moved"
    np.testing.assert_array_equal(y.numpy(), array)
    z = check(workers, lambda: x @ np.ones((128, 200), "float32"))
    assert z.explain().splitlines()[1] == (
        "  operand 1, host array: broadcast along mesh axis 0: first -> R,"
        " 102,400 bytes to a worker"
    )


@settings(max_examples=30)
@given(mesh=meshes, data=st.data())
def test_fetching_combines_and_moves_nothing_else(workers, mesh, data):
    """Parts come to the client straight from the workers that have them."""
    x = workers.distribute(np.ones((5, 3)), mesh, data.draw(placements(2, mesh)))
    plan = x.plan(x.placement.combined())
    before = received(workers)
    x.numpy()
    np.testing.assert_array_equal(received(workers) - before, planned([plan]))
