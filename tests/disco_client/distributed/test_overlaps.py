"""``map_overlap`` and ``fromfunction``: functions of the workers get what numpy would give them."""

import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco_client import ThreadedSession
from disco_client.distributed import DeviceMesh, Placement, PlacementSpec
from disco_client.errors import BadArgument, ConfigError, DtypeError, FunctionNotFound
from disco_server import register_func

MODES = {"reflect": "symmetric", "nearest": "edge", "periodic": "wrap"}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(4) as shared:
        yield shared


def offsets(depths):
    return itertools.product(*(range(-depth, depth + 1) for depth in depths))


@register_func("overlaps.weigh")
def weigh(array, *, depths):
    """A sum of all neighbours, each with a weight of its own; zeros beyond the ends."""
    wide = np.pad(array, [(depth, depth) for depth in depths])
    out = np.zeros_like(array)
    for weight, offset in enumerate(offsets(depths), 1):
        window = tuple(
            slice(depth + at, depth + at + extent)
            for depth, at, extent in zip(depths, offset, array.shape, strict=True)
        )
        out += weight * wide[(*window, ...)]
    return out


@register_func("overlaps.weigh_inner")
def weigh_inner(array, *, depths):
    """The same without the halos."""
    inner = tuple(
        slice(depth, extent - depth) for depth, extent in zip(depths, array.shape, strict=True)
    )
    return weigh(array, depths=depths)[(*inner, ...)]


def expected(whole, depths, boundaries):
    """The same of the whole, by numpy."""
    padded, inner = whole, []
    for axis, (depth, boundary) in enumerate(zip(depths, boundaries, strict=True)):
        widths = [(0, 0)] * whole.ndim
        before = 0 if boundary == "none" else depth
        widths[axis] = (before, before)
        if isinstance(boundary, str):
            if before and whole.size:
                padded = np.pad(padded, widths, MODES[boundary])
        else:
            padded = np.pad(padded, widths, constant_values=boundary)
        inner.append(slice(before, before + whole.shape[axis]))
    return weigh(padded, depths=depths)[(*inner, ...)] if whole.size else whole


@st.composite
def parts(draw, extent, count):
    """Given parts of an axis: each worker has some of its pieces, or none."""
    cuts = sorted(draw(st.lists(st.integers(0, extent), max_size=5)))
    found = [[] for _ in range(count)]
    for piece in pairwise([0, *cuts, extent]):
        found[draw(st.integers(0, count - 1))].append(piece)
    return found


@st.composite
def specs(draw, shape, count):
    """How a tensor lies along an axis of the mesh."""
    kind = draw(st.sampled_from(["S", "S", "given", "R", "P"]))
    if kind in "RP":
        return PlacementSpec.replica() if kind == "R" else PlacementSpec.partial("sum")
    axis = draw(st.integers(0, len(shape) - 1))
    if kind == "S":
        return PlacementSpec.sharding(axis)
    return PlacementSpec.explicit(axis, draw(parts(shape[axis], count)))


MESHES = [((4,), range(4)), ((2, 2), [3, 1, 0, 2]), ((2, 1, 2), range(4)), ((3,), [2, 0, 1])]


@st.composite
def tensors(draw, session):
    """A tensor anywhere, and the same as an array."""
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple))
    mesh = DeviceMesh(*draw(st.sampled_from(MESHES)))
    whole = np.random.default_rng(0).integers(-99, 99, shape)
    try:
        placement = Placement([draw(specs(shape, count)) for count in mesh.shape])
        return session.distribute(whole, mesh, placement), whole
    except ConfigError:  # an axis in given parts is split twice
        assume(False)


def moved(tensor):
    """The plans of what was moved for a tensor, but for values that were to be combined."""
    plans = [plan for _, plan in tensor.origin.moves]
    return [
        plan
        for plan in plans
        if not any(spec.is_partial for spec in plan.before.placement.dim_specs)
    ]


@given(data=st.data())
@settings(max_examples=250)
def test_a_function_of_neighbours_is_that_of_the_whole(session, data):
    """On any placement, with any depths and boundaries; and no more moves than must."""
    x, whole = data.draw(tensors(session))
    depths, boundaries = [], []
    for extent in whole.shape:
        boundary = data.draw(st.sampled_from(["none", *MODES, 0, 7]))
        most = extent if boundary in ("reflect", "periodic") else extent + 3
        depths.append(data.draw(st.integers(0, min(most, 4))))
        boundaries.append(boundary)
    name = "overlaps.weigh"
    trim = "none" in boundaries or data.draw(st.booleans())
    if not trim:
        name = "overlaps.weigh_inner"
    made = session.numpy.map_overlap(name, x, depths, boundaries, trim=trim, depths=depths)
    np.testing.assert_array_equal(made.numpy(), expected(whole, depths, boundaries))
    assert made.dtype == whole.dtype
    assert made.mesh == x.mesh
    assert made.placement == x.placement.combined()
    for plan in moved(made):
        assert plan.nbytes == plan.bound
    np.testing.assert_array_equal(x.numpy(), whole)


def test_only_halos_move(session):
    """Two rows to each worker in the middle, and what is beyond the ends comes from no other."""
    x = session.numpy.asarray(np.ones((400, 64)))
    made = session.numpy.map_overlap("overlaps.weigh", x, {0: 1}, "nearest", depths=(1, 0))
    assert made.origin.name == "map_overlap"
    (plan,) = moved(made)
    assert plan.nbytes == 6 * 64 * 8
    assert plan.cost == 2 * 64 * 8
    assert "1,024 bytes to a worker" in made.explain()
    around = session.numpy.map_overlap("overlaps.weigh", x, {0: 1}, "periodic", depths=(1, 0))
    assert sum(plan.nbytes for plan in moved(around)) == 8 * 64 * 8


@pytest.mark.parametrize(("placement", "depth"), [("R", 2), ("S[1]", {0: 2}), ("P", 1)])
def test_along_an_axis_that_is_not_split_nothing_moves(session, placement, depth):
    """Copies compute the same, and partial values are combined first."""
    whole = np.arange(35).reshape(7, 5)
    x = session.distribute(whole, placement=placement)
    depths = (2, 0) if depth == {0: 2} else (depth, depth)
    made = session.numpy.map_overlap("overlaps.weigh", x, depth, "reflect", depths=depths)
    np.testing.assert_array_equal(made.numpy(), expected(whole, depths, ["reflect"] * 2))
    assert not moved(made)
    assert ("allreduce" in made.explain()) == (placement == "P")


def test_a_neighbour_with_too_few_rows_is_not_the_last_to_be_asked(session):
    """The next but one has the others."""
    whole = np.arange(12.0).reshape(12, 1)
    spec = PlacementSpec.explicit(0, [(0, 5), (5, 6), (6, 6), (6, 12)])
    x = session.distribute(whole, placement=Placement([spec]))
    made = session.numpy.map_overlap("overlaps.weigh", x, (3, 0), 0.0, depths=(3, 0))
    np.testing.assert_array_equal(made.numpy(), expected(whole, (3, 0), (0.0, 0.0)))
    (plan,) = moved(made)
    assert {(3, 0), (0, 3), (0, 1), (3, 1), (1, 0), (1, 3)} == set(plan.traffic)
    assert plan.ratio == 1


@register_func("overlaps.mean")
def mean(array):
    return (np.roll(array, 1, 0) + np.roll(array, -1, 0)) / 2


@register_func("overlaps.same")
def same(array):
    return array


@register_func("overlaps.write")
def write(array):
    array[0] = 0
    return array


def test_the_dtype_of_the_result_is_what_the_call_says(session):
    """By default that of the tensor; what would be lost in it is refused by the worker."""
    xp = session.numpy
    whole = np.arange(8)
    x = xp.asarray(whole)
    made = xp.map_overlap("overlaps.mean", x, 1, "nearest", dtype="float32")
    padded = np.pad(whole, 1, "edge")
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made.numpy(), (padded[:-2] + padded[2:]) / 2)
    with pytest.raises(BadArgument, match="returned float64, expected int64; dtype= says"):
        xp.map_overlap("overlaps.mean", x, 1, "nearest").numpy()


@pytest.mark.parametrize("placement", ["R", "S[0]"])
def test_a_part_is_read_only_and_no_result_has_its_memory(session, placement):
    """Wherever it lies: what is assigned to a result later is not the tensor's."""
    xp = session.numpy
    x = xp.asarray(np.arange(8.0), placement=placement)
    made = xp.map_overlap("overlaps.same", x, 1)
    made[0] = 9.0
    np.testing.assert_array_equal(x.numpy(), np.arange(8.0))
    assert made.numpy()[0] == 9
    with pytest.raises(Exception, match="read-only"):
        xp.map_overlap("overlaps.write", x, 1).numpy()


def test_a_function_that_returns_another_shape_is_refused(session):
    """Its name and both shapes are said."""
    xp = session.numpy
    x = xp.asarray(np.arange(8.0))
    with pytest.raises(BadArgument, match=r"weigh_inner returned .* \(2,\), expected \(4,\)"):
        xp.map_overlap("overlaps.weigh_inner", x, 1, 0.0, depths=(1,)).numpy()
    with pytest.raises(BadArgument, match=r"weigh returned .* \(4,\), expected \(2,\)"):
        xp.map_overlap("overlaps.weigh", x, 1, 0.0, trim=False, depths=(1,)).numpy()
    with pytest.raises(FunctionNotFound, match=r"overlaps\.none"):
        xp.map_overlap("overlaps.none", x, 1).numpy()


REFUSED = {
    "a function of the program": ((weigh, 1), ConfigError, "register_func"),
    "a negative depth": (("f", -1), ConfigError, "depth from 0 for axis 0, got -1"),
    "a depth that is no integer": (("f", 1.5), ConfigError, "got 1.5"),
    "too few depths": (("f", (1,)), ConfigError, "a depth for each of 2 axes, got 1"),
    "too many boundaries": (("f", 1, ["none"] * 3), ConfigError, "a boundary for each of 2"),
    "an axis that is not there": (("f", {2: 1}), ConfigError, "axis 2"),
    "another boundary": (("f", 1, "wrap"), ConfigError, "'periodic' or a number, got 'wrap'"),
    "a list of numbers": (("f", 1, [[1], "none"]), ConfigError, "or a number"),
    "a depth beyond the whole": (("f", 5, "reflect"), ConfigError, "at most 4 for axis 0"),
    "a number that ints lack": (("f", 1, 0.5), DtypeError, "int64 has no boundary 0.5"),
    "a number that is too large": (("f", 1, 1 << 63), DtypeError, "int64 has no boundary 922"),
    "a complex number": (("f", 1, 1j), DtypeError, "int64 has no boundary 1j"),
    "a number that is none": (("f", 1, np.nan), DtypeError, "int64 has no boundary nan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_at_the_call(session, case):
    """With what was expected, and what came."""
    x = session.numpy.asarray(np.arange(20).reshape(4, 5))
    arguments, kind, text = REFUSED[case]
    function, *rest = arguments
    with pytest.raises(kind, match=text):
        session.numpy.map_overlap(function, x, *rest)
    with pytest.raises(ConfigError, match="trim=False"):
        session.numpy.map_overlap("f", x, 1, trim=False)


def test_boundaries_are_numbers_of_the_tensors_dtype(session):
    """Also where equal numbers differ, or none equals itself."""
    xp = session.numpy
    x = xp.asarray(np.zeros(4, "float32"))
    for value in (0.0, -0.0, np.nan, 1, np.float64(2.5)):
        got = xp.map_overlap("overlaps.before", x, 1, value).numpy()
        want = np.array([value, 0, 0, 0], "float32")
        assert (got.dtype, got.tobytes()) == (want.dtype, want.tobytes())


@register_func("overlaps.before")
def before(array):
    return np.roll(array, 1)


# From indices.


@register_func("overlaps.table")
def table(row, column, scale=1):
    return row * 10 + column * scale


@register_func("overlaps.number")
def number(*indices):
    return 3


@register_func("overlaps.cut")
def cut(row, column):
    return row[:, :1]


@register_func("overlaps.rows")
def rows(row, column):
    return row


@pytest.mark.parametrize(
    "placement", [None, "R", "S[0]", "S[1]", "P", "S[0: 0-1+3-4, 1-3, -, 4-5]"]
)
@pytest.mark.parametrize("dtype", [float, "int32", "complex64"])
def test_what_is_made_of_indices_is_numpys(session, placement, dtype):
    """By a worker's function, which has the indices of its part, and by one of the program."""
    xp = session.numpy
    want = np.fromfunction(table, (5, 3), dtype=dtype, scale=2)
    for function in ("overlaps.table", session.get_global_func("overlaps.table"), table):
        made = xp.fromfunction(function, (5, 3), dtype=dtype, placement=placement, scale=2)
        assert made.dtype == want.dtype
        np.testing.assert_array_equal(made.numpy(), want)
    assert made.shape == want.shape


def test_a_function_of_indices_may_return_a_number_or_its_indices(session):
    """A number is that of each element; an array of indices becomes an array of its own."""
    xp = session.numpy
    made = xp.fromfunction("overlaps.number", 6, dtype="int64")
    np.testing.assert_array_equal(made.numpy(), np.full(6, 3))
    assert xp.fromfunction("overlaps.number", (), result_dtype="int8").item() == 3
    np.testing.assert_array_equal(
        xp.fromfunction("overlaps.number", (0, 2)).numpy(), np.ones((0, 2))
    )
    made = xp.fromfunction("overlaps.rows", (4, 2))
    made[0, 0] = 7
    np.testing.assert_array_equal(made.numpy(), [[7, 0], [1, 1], [2, 2], [3, 3]])


def test_results_of_another_shape_or_dtype_are_refused(session):
    """By the worker, with the name of the function; a function that is none at once."""
    xp = session.numpy
    with pytest.raises(BadArgument, match=r"cut returned .* \(1, 1\), expected \(1, 3\)"):
        xp.fromfunction("overlaps.cut", (4, 3)).numpy()
    with pytest.raises(BadArgument, match="returned float64, expected int32; result_dtype="):
        xp.fromfunction("overlaps.rows", (4, 3), result_dtype="int32").numpy()
    made = xp.fromfunction("overlaps.rows", (4, 3), dtype="int32", result_dtype="float32")
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made.numpy(), np.indices((4, 3))[0])
    with pytest.raises(ConfigError, match="expected a function of the workers"):
        xp.fromfunction(3, (4, 3))
