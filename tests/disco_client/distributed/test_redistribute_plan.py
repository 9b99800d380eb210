"""Plans, carried out on parts that lie side by side in this process."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError
from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.redistribute import make_plan
from disco_client.wire.partition import coordinate_of, line_of

MESH = DeviceMesh((2, 2), range(4), ("dp", "tp"))
COMBINE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def info_of(shape, mesh, placement):
    return DTensorStructInfo(TensorStructInfo(shape, "int64"), mesh, placement)


def parts_of(whole, info, rng):
    """The parts of a tensor; partial ones are made up so that they give the whole."""
    parts = []
    for place in range(info.device_mesh.size):
        part = whole[tuple(slice(*each) for each in info.bounds(place))].copy()
        parts.append(part)
    for axis, spec in enumerate(info.placement.dim_specs):
        if spec.is_partial:
            split_values(parts, info.device_mesh.shape, axis, spec.op, rng)
    return parts


def split_values(parts, mesh, axis, op, rng):
    """Makes the parts along an axis of the mesh such that combining them gives the whole."""
    for place in range(len(parts)):
        line = line_of(mesh, place, axis)
        if line[0] != place:
            continue
        whole = parts[place]
        if op == "sum":
            others = [rng.integers(-9, 9, whole.shape) for _ in line[1:]]
            values = [whole - sum(others), *others]
        elif op == "prod":
            values = [whole] + [np.ones_like(whole)] * (len(line) - 1)
        else:
            sign = -1 if op == "max" else 1
            values = [whole] + [whole + sign * rng.integers(0, 9, whole.shape) for _ in line[1:]]
        for other, value in zip(line, values, strict=True):
            parts[other] = value


def carry_out(step, parts):
    """One step, by what its name says, with the bytes that reach each worker."""
    if step.move == "transfer":
        return carry_out_route(step.route, parts)
    mesh = step.before.device_mesh.shape
    source = step.before.placement.dim_specs[step.mesh_axis]
    target = step.after.placement.dim_specs[step.mesh_axis]
    after, reached = [], []
    for place, own in enumerate(parts):
        line = line_of(mesh, place, step.mesh_axis)
        me = coordinate_of(mesh, place)[step.mesh_axis]
        theirs = [parts[other] for other in line]
        if step.move in ("allreduce", "reduce-scatter"):
            whole = functools.reduce(COMBINE[source.op], theirs)
        elif step.move in ("allgather", "all-to-all"):
            whole = np.concatenate(theirs, axis=source.axis)
        else:
            whole = own
        if step.move == "keep" and me and target.op in ("sum", "prod"):
            whole = np.full_like(own, target.op == "prod")
        if target.axis >= 0:
            whole = np.array_split(whole, len(line), axis=target.axis)[me]
        after.append(whole)
        if step.move == "allgather":
            reached.append(sum(p.nbytes for p in theirs) - own.nbytes)
        elif step.move == "all-to-all":
            mine = np.array_split(own, len(line), axis=target.axis)[me]
            reached.append(whole.nbytes - mine.nbytes)
        elif step.move == "reduce-scatter":
            reached.append(whole.nbytes * (len(line) - 1))
        elif step.move == "allreduce":
            mine = np.array_split(own.reshape(-1), len(line))[me].nbytes
            reached.append(mine * (len(line) - 1) + own.nbytes - mine)
        else:
            reached.append(0)
    return after, tuple(reached)


def carry_out_route(route, parts):
    """Each copy and each combination by itself, on the whole tensor's indices."""
    before, after = route.before, route.after
    workers = before.device_mesh.device_ids
    shape = tuple(before.tensor_sinfo.shape)
    held = {}
    for place, worker in enumerate(workers):
        held[worker] = np.zeros(shape, np.int64)
        held[worker][np.ix_(*indices(before.pieces(place)))] = parts[place]
    op = next((spec.op for spec in before.placement.dim_specs if spec.is_partial), "sum")
    reached = dict.fromkeys(route.members, 0)
    combined = []
    for worker, box, holders in route.reductions:
        at = tuple(slice(*each) for each in box)
        combined.append(functools.reduce(COMBINE[op], [held[each][at] for each in holders]))
        assert len(set(holders)) == len(holders)
        reached[worker] += sum(held[each][at].nbytes for each in holders if each != worker)
    out = [
        np.full(after.local_shape(place), neutral_of(after, place))
        for place in range(after.device_mesh.size)
    ]
    for sender, receiver, box, source in route.copies:
        place = after.device_mesh.device_ids.index(receiver)
        values = held[sender][tuple(slice(*each) for each in box)] if source < 0 else None
        if source >= 0:
            reduction = route.reductions[source]
            assert (reduction.worker, reduction.box) == (sender, box)
            values = combined[source]
        picked = [
            [at for at, index in enumerate(own) if start <= index < stop]
            for own, (start, stop) in zip(indices(after.pieces(place)), box, strict=True)
        ]
        out[place][np.ix_(*picked)] = values
        reached[receiver] += values.nbytes * (sender != receiver)
    return out, tuple(reached.values())


def indices(pieces):
    return [[index for piece in each for index in range(*piece)] for each in pieces]


def neutral_of(info, place):
    """What a part has before anything comes; what must come is found missing by it."""
    at = coordinate_of(info.device_mesh.shape, place)
    specs = zip(info.placement.dim_specs, at, strict=True)
    op = next((spec.op for spec, index in specs if spec.is_partial and index), None)
    return {None: -99, "sum": 0, "prod": 1, "min": 99, "max": -99}[op]


kinds = st.sampled_from(["R", "S[0]", "S[1]", "S[2]", "P", "P[prod]", "P[min]", "P[max]"])


def is_placement(specs):
    """Not where the order of combining would decide the result; test_placement refuses these."""
    return len({spec for spec in specs if spec.startswith("P")}) < 2


@given(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 4)),
    st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3)]),
    st.data(),
    st.integers(0, 99),
)
def test_every_plan_brings_each_part_where_it_is_to_be(shape, mesh_shape, data, seed):
    """From any placement to any other, uneven and empty parts among them, at its cost."""
    mesh = DeviceMesh(mesh_shape, range(int(np.prod(mesh_shape))))
    both = st.tuples(*[kinds] * len(mesh_shape)).filter(is_placement).map(", ".join)
    before, after = data.draw(both), data.draw(both)
    rng = np.random.default_rng(seed)
    whole = rng.integers(-9, 9, shape)
    plan = make_plan(info_of(shape, mesh, before), after)
    parts = parts_of(whole, plan.before, rng)
    for step in plan.steps:
        parts, reached = carry_out(step, parts)
        assert step.nbytes == reached
    target = plan.after
    for place, part in enumerate(combined(parts, target)):
        bounds = tuple(slice(*each) for each in target.bounds(place))
        np.testing.assert_array_equal(part, whole[bounds])


def combined(parts, info):
    """What partial parts stand for."""
    mesh = info.device_mesh.shape
    for axis, spec in enumerate(info.placement.dim_specs):
        if spec.is_partial:
            parts = [
                functools.reduce(COMBINE[spec.op], [parts[p] for p in line_of(mesh, place, axis)])
                for place in range(len(parts))
            ]
    return parts


@pytest.mark.parametrize(
    ("before", "after", "moves", "cost"),
    [
        ("R, R", "R, R", [], 0),
        ("R, R", "S[0], S[1]", ["slice", "slice"], 0),
        ("S[0], R", "R, R", ["allgather"], 96),
        ("S[0], R", "S[1], R", ["all-to-all"], 48),
        ("P, R", "S[0], R", ["reduce-scatter"], 96),
        ("P, R", "R, R", ["allreduce"], 192),
        # First what is combined is split, so that less is combined and gathered.
        ("P, P", "R, R", ["reduce-scatter", "allreduce", "allgather"], 288),
        # Of two cuts of one axis only the later one can be undone by itself.
        ("S[0], S[0]", "R, S[0]", ["transfer"], 96),
    ],
)
def test_the_cheapest_moves_are_taken(before, after, moves, cost):
    """For 8 x 6 numbers of four bytes on two times two workers."""
    tensor = TensorStructInfo((8, 6), "float32")
    plan = make_plan(DTensorStructInfo(tensor, MESH, before), after)
    assert [step.move for step in plan.steps] == moves
    assert plan.cost == cost


def test_a_plan_says_what_it_does():
    """Each move with its axis, and what reaches a worker."""
    tensor = TensorStructInfo((1024, 6), "float32")
    plan = make_plan(DTensorStructInfo(tensor, MESH, "P, S[1]"), "S[0], R")
    assert str(plan).splitlines() == [
        "P[sum], S[1] -> S[0], R: 12,288 bytes to a worker",
        "  1. reduce-scatter along mesh axis 0 (dp): P[sum] -> S[0], 6,144 bytes to a worker",
        "  2. allgather along mesh axis 1 (tp): S[1] -> R, 6,144 bytes to a worker",
        "  49,152 bytes in all, 1.00 times the least, 49,152",
    ]
    assert "nothing to do" in str(make_plan(plan.before, "P, S[1]"))


def test_a_way_is_found_once():
    """However the placement is written; tensors, meshes' names and targets keep theirs apart."""
    plan = make_plan(info_of((8, 6), MESH, "P, S[1]"), "S[0], R")
    again = make_plan(
        info_of((8, 6), DeviceMesh((2, 2), [0, 1, 2, 3], ["dp", "tp"]), "P[sum], S[-1]"),
        Placement([PlacementSpec.sharding(-2), PlacementSpec.replica()]),
    )
    assert again is plan
    for shape, mesh, target in (
        ((8, 7), MESH, "S[0], R"),
        ((8, 6), DeviceMesh((2, 2), range(4)), "S[0], R"),
        ((8, 6), MESH, "S[1], R"),
    ):
        other = make_plan(info_of(shape, mesh, "P, S[1]"), target)
        assert other.before.tensor_sinfo.shape == shape
        assert other.before.device_mesh.names == mesh.names
        assert str(other.after.placement) == target


def test_a_placement_that_does_not_fit_is_refused():
    """As where a tensor is made."""
    with pytest.raises(ConfigError, match="one for each axis of the mesh"):
        make_plan(info_of((4, 4), MESH, "R, R"), Placement([PlacementSpec.replica()]))
