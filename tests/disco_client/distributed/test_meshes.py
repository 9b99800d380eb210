"""Tensors go from one mesh to another, of any workers, and nothing is sent twice."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from disco_client import ConfigError, ProcessSession, RemoteError, connect
from disco_client.distributed import (
    DeviceMesh,
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
from disco_client.distributed.redistribute import make_plan
from disco_client.distributed.routes import find_route
from disco_client.wire.partition import coordinate_of
from disco_server.cli.local import LocalCluster

RANKS = 8
MOST = 1.05
"""How many times the lower bound may be sent."""

PARTIAL = ["P", "P[prod]", "P[min]", "P[max]"]


@pytest.fixture(scope="module", params=["process", "connect"])
def ranks(request):
    """A session of eight workers, on child processes and on a cluster."""
    with contextlib.ExitStack() as stack:
        if request.param == "process":
            yield stack.enter_context(ProcessSession(RANKS))
        else:
            cluster = stack.enter_context(LocalCluster(2, RANKS // 2))
            yield stack.enter_context(connect(cluster.address, num_workers=RANKS))


@st.composite
def meshes(draw, ranks=RANKS):
    """Some of the workers in any order, in one row or in a grid."""
    size = draw(st.integers(1, ranks))
    first = draw(st.sampled_from([each for each in range(1, size + 1) if size % each == 0]))
    shape = draw(st.sampled_from([(size,), (first, size // first)]))
    return DeviceMesh(shape, draw(st.permutations(range(ranks)))[:size])


@st.composite
def explicit(draw, shape, parts):
    """Any parts of any axis that make up all of it; they may overlap, and be empty."""
    axis = draw(st.integers(0, len(shape) - 1))
    extent = shape[axis]
    ends = sorted(draw(st.lists(st.integers(0, extent), min_size=parts - 1, max_size=parts - 1)))
    longer = draw(st.lists(st.integers(0, 2), min_size=parts, max_size=parts))
    bounds = zip([0, *ends], [*ends, extent], longer, strict=True)
    pieces = [(start, min(extent, stop + more)) for start, stop, more in bounds]
    return PlacementSpec.explicit(axis, draw(st.permutations(pieces)))


@st.composite
def placed(draw, shape, dtype, mesh):
    """A tensor on a mesh, in any placement."""
    kinds = ["R", *(f"S[{axis}]" for axis in range(len(shape)))]
    op = draw(st.sampled_from(PARTIAL[:2] if dtype == "complex64" else PARTIAL))
    plain = st.sampled_from([*kinds, op]).map(lambda text: Placement.from_text(text).dim_specs[0])
    specs = []
    for count in mesh.shape:
        choices = [plain, explicit(shape, count)] if shape and math.prod(shape) else [plain]
        specs.append(draw(st.one_of(choices)))
    try:
        return DTensorStructInfo(TensorStructInfo(shape, dtype), mesh, Placement(specs))
    except ConfigError:  # parts of an axis that another axis of the mesh splits
        assume(False)


@st.composite
def journeys(draw, ranks=RANKS):
    """A tensor on one mesh, and the same on another one."""
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    dtype = draw(st.sampled_from(["float32", "int8", "complex64", "float16", "bool"]))
    return [draw(placed(shape, dtype, draw(meshes(ranks)))) for _ in range(2)]


def numbers(info):
    """Small whole numbers, of which sums are exact in every order."""
    values = np.random.default_rng(7).integers(-3, 4, info.tensor_sinfo.shape)
    return (
        values > 0
        if info.tensor_sinfo.dtype.kind == "b"
        else values.astype(info.tensor_sinfo.dtype)
    )


def region(info, place):
    """Which elements a worker holds."""
    mask = np.zeros(tuple(info.tensor_sinfo.shape), bool)
    pieces = [[at for piece in each for at in range(*piece)] for each in info.pieces(place)]
    mask[np.ix_(*pieces)] = True
    return mask


def least(before, after):
    """How many bytes have to be sent, counted element by element."""

    def partial(info, place):
        at = coordinate_of(info.device_mesh.shape, place)
        specs = zip(info.placement.dim_specs, at, strict=True)
        return tuple(index for spec, index in specs if spec.is_partial)

    held = {worker: region(before, p) for p, worker in enumerate(before.device_mesh.device_ids)}
    values = {partial(before, place) for place in range(before.device_mesh.size)}
    needed = {
        worker: region(after, place)
        for place, worker in enumerate(after.device_mesh.device_ids)
        if not any(partial(after, place))
    }
    shape = tuple(before.tensor_sinfo.shape)
    receivers = sum((mask.astype(int) for mask in needed.values()), np.zeros(shape, int))
    have = sum(
        (mask & held[worker] for worker, mask in needed.items() if worker in held),
        np.zeros(shape, int),
    )
    if len(values) == 1:
        count = receivers - have
    else:
        count = np.where(receivers, receivers + len(values) - 1 - (have > 0), 0)
    return int(count.sum()) * before.tensor_sinfo.dtype.itemsize


def received(session):
    """How many bytes workers have brought to each other so far, as they count them."""
    count = session.get_global_func("runtime.disco._received_bytes")()
    return np.array(count.get_all())


def same_tensor(tensor, array):
    """Each worker's part and the whole are those of an array, bit for bit."""
    info = tensor.info
    if not any(spec.is_partial for spec in info.placement.dim_specs):
        for place, worker in enumerate(info.device_mesh.device_ids):
            pieces = [[at for piece in each for at in range(*piece)] for each in info.pieces(place)]
            part = tensor.shard(worker)
            assert part.tobytes() == np.ascontiguousarray(array[np.ix_(*pieces)]).tobytes()
    whole = tensor.numpy()
    assert (whole.dtype, whole.shape) == (array.dtype, array.shape)
    assert whole.tobytes() == array.tobytes()


def moved(tensor, info):
    """Moves a tensor; the workers receive what the plan says, worker by worker."""
    session = tensor.ref.session
    plan = tensor.plan(info.device_mesh, info.placement)
    before = received(session)
    result = tensor.redistribute(info.device_mesh, info.placement)
    reached = received(session) - before
    planned = np.zeros(RANKS, int)
    for step in plan.steps:
        planned[list(step.workers)] += step.nbytes
    np.testing.assert_array_equal(reached, planned)
    return result, int(reached.sum())


def distributed(session, array, info, *, turned):
    """A tensor that lies so; its parts are in Fortran order if it is turned."""
    if not turned or info.is_explicit:  # parts may overlap, which only redistribute takes
        return session.distribute(array, info.device_mesh, info.placement)
    specs = [
        replace(spec, axis=array.ndim - 1 - spec.axis) if spec.axis >= 0 else spec
        for spec in info.placement.dim_specs
    ]
    x = session.distribute(array.T, info.device_mesh, Placement(specs)).T
    return x.redistribute(info.device_mesh, info.placement)  # what was partial is combined


def info_of(shape, workers, placement, dtype="float32"):
    mesh = DeviceMesh((len(workers),), list(workers))
    return DTensorStructInfo(TensorStructInfo(shape, dtype), mesh, placement)


@pytest.mark.timeout(240)
@settings(max_examples=60)
@given(journey=journeys(), turned=st.booleans())
@example(journey=[info_of((), [0, 1, 2], "P"), info_of((), [5, 4, 3], "R")], turned=False)
@example(journey=[info_of((5, 3), [1, 0, 3], "P"), info_of((5, 3), [3, 4, 0, 6], "R")], turned=True)
@example(
    journey=[info_of((1,), [0, 1, 2, 3], "P"), info_of((1,), [3, 2, 1, 0, 4], "R")], turned=False
)
@example(
    journey=[info_of((7, 2), range(8), "S[0]"), info_of((7, 2), range(7, -1, -1), "S[1]")],
    turned=True,
)
def test_a_tensor_goes_to_another_mesh_and_back(ranks, journey, turned):
    """Bit for bit, and no byte is sent that need not be; disjoint meshes and overlapping ones."""
    before, after = journey
    array = numbers(before)
    x = distributed(ranks, array, before, turned=turned)
    y, there = moved(x, after)
    assert y.info == after
    same_tensor(y, array)
    z, back = moved(y, before)
    same_tensor(z, array)
    if before.device_mesh != after.device_mesh:
        assert there <= MOST * least(before, after)
        assert back <= MOST * least(after, before)
        assert there == x.plan(after.device_mesh, after.placement).nbytes


@settings(max_examples=200)
@given(journeys())
def test_the_bound_is_what_has_to_be_sent(journey):
    """As counting element by element says; on one mesh, too."""
    before, after = journey
    plan = make_plan(before, after.placement, after.device_mesh)
    stays = before.device_mesh == after.device_mesh and "P" in str(after.placement)
    assert stays or plan.bound == least(before, after)
    if before.device_mesh != after.device_mesh:
        assert plan.nbytes == sum(plan.traffic.values())
        assert plan.ratio == 1


def test_what_is_sent_comes_from_the_nearest():
    """Of the same node where one there has it; of several the one that has sent least."""
    nodes = ("a", "a", "b", "b", "a", "b")
    before = info_of((8,), [0, 2], "R")
    after = info_of((8,), [4, 5, 2], "R")
    assert find_route(before, after, nodes).traffic() == {(0, 4): 32, (2, 5): 32}
    # Without nodes the two take turns.
    assert find_route(before, info_of((8,), [5, 4, 3, 1], "R")).traffic() == {
        (0, 5): 32,
        (0, 3): 32,
        (2, 4): 32,
        (2, 1): 32,
    }


def test_a_plan_lists_who_sends_to_whom(ranks):
    """With the least that has to be sent, and how many times that is."""
    x = ranks.distribute(np.ones((1024, 6), "float32"), DeviceMesh((2,), [0, 1]), "S[0]")
    way = "S[0] on DeviceMesh((2,), [0, 1]) -> R on DeviceMesh((2,), [1, 2])"
    assert str(x.plan(DeviceMesh((2,), [1, 2]), "R")).splitlines() == [
        f"{way}: 24,576 bytes to a worker",
        f"  1. transfer: {way}, 24,576 bytes to a worker",
        "     worker 0 to worker 1: 12,288 bytes",
        "     worker 0 to worker 2: 12,288 bytes",
        "     worker 1 to worker 2: 12,288 bytes",
        "  36,864 bytes in all, 1.00 times the least, 36,864",
    ]
    y = ranks.distribute(np.ones((8, 8), "float32"), ranks.mesh(), "R")
    assert "and" not in str(y.plan("S[0]"))
    wide = DTensorStructInfo(TensorStructInfo((128,), "int8"), DeviceMesh((64,), range(64)), "S[0]")
    lines = str(make_plan(wide, "R", DeviceMesh((3,), [64, 65, 66]))).splitlines()
    assert lines[-2:] == [
        "     and 128 more: 256 bytes",
        "  384 bytes in all, 1.00 times the least, 384",
    ]


def test_nothing_passes_the_client(ranks):
    """Neither what is sent nor what is received."""
    x = ranks.distribute(np.ones((256, 1024), "float32"), DeviceMesh((2,), [0, 1]), "S[0]")
    x.redistribute(DeviceMesh((3,), [2, 3, 4]), "S[1]")
    ranks.sync_all()
    before = ranks.statistics()
    x.redistribute(DeviceMesh((3,), [2, 3, 4]), "S[1]")
    ranks.sync_all()
    grown = {
        key: value - before[key] for key, value in ranks.statistics().items() if "bytes" in key
    }
    assert grown
    assert max(grown.values()) < 4096


def test_parts_go_with_others_of_their_kind(ranks):
    """A tensor that was moved is computed with on the workers that have it."""
    array = np.arange(24.0).reshape(4, 6)
    x = ranks.distribute(array, DeviceMesh((3,), [0, 1, 2]), "S[1]")
    other = DeviceMesh((2, 2), [6, 7, 1, 0])
    y = (x * 2).redistribute(other, "S[0], P")
    np.testing.assert_array_equal((y @ array.T).numpy(), 2 * array @ array.T)


def test_a_move_in_a_captured_program(ranks):
    """It is replayed with whatever is given."""
    there = DeviceMesh((2,), [5, 2])
    x = ranks.distribute(np.arange(6.0), DeviceMesh((2,), [0, 2]), "S[0]")
    with ranks.capture("move") as program:
        source = program.input("x", like=x)
        program.output((source + 1).redistribute(there, "R"))
    for value in (1.0, 5.0):
        array = np.full(6, value)
        result = program(ranks.distribute(array, DeviceMesh((2,), [0, 2]), "S[0]"))
        for worker in there.device_ids:
            np.testing.assert_array_equal(result.shard(worker), array + 1)


def test_a_failed_tensor_fails_where_it_goes(ranks):
    """With its own cause, and nobody waits; the session goes on."""
    x = ranks.distribute(np.ones(8), DeviceMesh((2,), [0, 1]), "S[0]")
    broken = x._held_by(ranks.get_global_func("runtime.disco._dt_bind_move")("no such move"))
    there = DeviceMesh((2,), [1, 2])
    with pytest.raises(RemoteError, match="no such move"):
        broken.redistribute(there, "R").numpy()
    np.testing.assert_array_equal(x.redistribute(there, "R").numpy(), np.ones(8))


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ((DeviceMesh((2,), [7, 8]), "R"), ConfigError, "names worker 8, and the session has 8"),
        ((DeviceMesh((2,), [0, 1]), "R, R"), ConfigError, "expected 1 spec, one for each axis"),
        ((DeviceMesh((2,), [0, 1]),), TypeError, "expected a Placement"),
        ((), TypeError, "expected .*placement.* or .*mesh, placement"),
        ((DeviceMesh((2,), [0, 1]), "R", "R"), TypeError, "positional arguments"),
        (("R", "S[0]"), TypeError, "expected"),
    ],
)
def test_what_is_no_placement_on_a_mesh_is_refused(ranks, where, error, text):
    """By both methods, before anything is sent."""
    x = ranks.distribute(np.ones(4), DeviceMesh((2,), [0, 1]), "S[0]")
    for method in (x.redistribute, x.plan):
        with pytest.raises(error, match=text):
            method(*where)


def test_operands_on_two_meshes_are_told_how_to_meet(ranks):
    """By the two calls that bring one to the other's mesh, with what each sends."""
    here, there = DeviceMesh((2,), [0, 1]), DeviceMesh((2, 2), [1, 2, 3, 4])
    x = ranks.distribute(np.ones((8, 6), "float32"), here, "S[0]")
    y = ranks.distribute(np.ones((8, 6), "float32"), there, "S[0], S[1]")
    with pytest.raises(ConfigError) as raised:
        x + 2 * y
    assert str(raised.value) == (
        "add needs distributed tensors on one mesh, got DeviceMesh((2,), [0, 1]) and"
        " DeviceMesh((2, 2), [1, 2, 3, 4]); bring them to one of these first:"
        "\n  operand 1: x.redistribute(DeviceMesh((2,), [0, 1]), 'R'), which sends 336 bytes or"
        "\n  operand 0: x.redistribute(DeviceMesh((2, 2), [1, 2, 3, 4]), 'R, R'), which sends"
        " 672 bytes"
    )
    assert y.plan(here, "R").nbytes == 336
    np.testing.assert_array_equal((x + y.redistribute(here, "R")).numpy(), np.full((8, 6), 2))
