"""``session.numpy``: what is made on the workers is what numpy makes, of any placement."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import ConfigError, ThreadedSession
from disco_client.distributed import PlacementSpec

PLACEMENTS = (None, "R", "S[0]", "P")


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


def same(got, want):
    """The same values, shape and dtype."""
    want = np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


MADE = {
    "zeros": lambda m, **o: m.zeros((5, 2), **o),
    "zeros, an extent": lambda m, **o: m.zeros(7, "int8", **o),
    "ones": lambda m, **o: m.ones((2, 3), np.complex64, **o),
    "full": lambda m, **o: m.full((4, 2), 7, **o),
    "full, a float": lambda m, **o: m.full(5, -0.5, "float32", **o),
    "full, no elements": lambda m, **o: m.full((0, 3), True, **o),
    "full, an array": lambda m, **o: m.full((4, 3), [1, 2, 3], **o),
    "arange": lambda m, **o: m.arange(10, **o),
    "arange, floats": lambda m, **o: m.arange(0.1, 2.3, 0.3, **o),
    "arange, down": lambda m, **o: m.arange(5, -4, -2, **o),
    "arange, none": lambda m, **o: m.arange(3, 3, **o),
    "arange, single": lambda m, **o: m.arange(0.1, 9, 0.7, dtype="float32", **o),
    "arange, small": lambda m, **o: m.arange(9, dtype="uint8", **o),
    "linspace": lambda m, **o: m.linspace(-1, 2, 11, **o),
    "linspace, open": lambda m, **o: m.linspace(0, 1, 7, endpoint=False, **o),
    "linspace, one": lambda m, **o: m.linspace(3, 4, 1, **o),
    "linspace, none": lambda m, **o: m.linspace(3, 4, 0, **o),
    "linspace, integers": lambda m, **o: m.linspace(0, 9, 5, dtype="int32", **o),
    "linspace, complex": lambda m, **o: m.linspace(0, 1j, 5, **o),
    "linspace, equal ends": lambda m, **o: m.linspace(2.5, 2.5, 5, **o),
    "eye": lambda m, **o: m.eye(5, **o),
    "eye, oblong": lambda m, **o: m.eye(3, 5, 1, dtype="int16", **o),
    "eye, far from the diagonal": lambda m, **o: m.eye(3, k=1 << 63, **o),
    "identity": lambda m, **o: m.identity(4, **o),
    "tri": lambda m, **o: m.tri(4, 6, -1, **o),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_on_the_workers_is_numpys(session, name, placement):
    """Values, shape and dtype; and it lies as asked for, without a byte from the client."""
    options = {} if placement is None else {"placement": placement}
    made = MADE[name](session.numpy, **options)
    same(made, MADE[name](np))
    first = made.placement.dim_specs[0]
    wanted = "S[0]" if placement is None else placement
    assert str(first) == {"P": "P[sum]"}.get(wanted, wanted)


@given(
    start=st.integers(-50, 50) | st.floats(-50, 50, width=32),
    step=st.sampled_from([1, 2, -3, 0.1, -0.7, 1 / 3]),
    count=st.integers(0, 40),
    dtype=st.sampled_from([None, "float32", "float64", "int32", "float16"]),
    data=st.data(),
)
@settings(max_examples=150)
def test_a_range_is_numpys_to_the_last_bit(session, start, step, count, dtype, data):
    """For any start, step and placement, uneven parts among them."""
    stop = start + step * count
    want = np.arange(start, stop, step, dtype=dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(want)), min_size=2, max_size=2)))
    ends = [0, *cuts, len(want)]
    parts = data.draw(st.permutations([(ends[i], ends[i + 1]) for i in range(3)]))
    spec = PlacementSpec.explicit(0, parts)
    made = session.numpy.arange(start, stop, step, dtype, placement=str(spec))
    same(made, want)


CALLS = {
    "ones_like": lambda m, x: m.ones_like(x),
    "ones_like, dtype": lambda m, x: m.ones_like(x, dtype="int8"),
    "empty_like": lambda m, x: m.isfinite(m.empty_like(x, dtype="int64")),
    "full_like": lambda m, x: m.full_like(x, 2.5),
    "full_like, dtype": lambda m, x: m.full_like(x, 2, "int32"),
    "tril": lambda m, x: m.tril(x),
    "tril, below": lambda m, x: m.tril(x, -2),
    "triu": lambda m, x: m.triu(x),
    "triu, above": lambda m, x: m.triu(x, 1),
    "tril, of three axes": lambda m, x: m.tril(x[:, :, None] + x[0, :3]),
    "tril, of a row": lambda m, x: m.tril(x[0]),
    "meshgrid": lambda m, x: m.meshgrid(x[:, 0], x[0])[1],
    "meshgrid, ij": lambda m, x: m.meshgrid(x[:, 0], x[0], x[1], indexing="ij")[0],
    "meshgrid, sparse": lambda m, x: m.meshgrid(x[:, 0], x[0], sparse=True)[0],
}


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_made_after_another_tensor_is_numpys(session, name, placement):
    """Values, shape and dtype, wherever that one lies."""
    whole = np.random.default_rng(0).integers(-9, 9, (7, 4)).astype("float64")
    plain = session.distribute(whole, placement="S[0]")
    same(CALLS[name](np, plain.redistribute(placement)), CALLS[name](np, whole))


def test_indices_of_a_grid_are_numpys(session):
    """One grid after the other, or sparse ones."""
    xp = session.numpy
    same(xp.indices((3, 4)), np.indices((3, 4)))
    for got, want in zip(
        xp.indices((3, 4), sparse=True), np.indices((3, 4), sparse=True), strict=True
    ):
        same(got, want)


def test_functions_take_what_is_no_tensor_yet(session):
    """Arrays, lists and numbers come to the workers first; dtypes and constants are numpy's."""
    xp = session.numpy
    same(xp.exp([0.0, 1.0]), np.exp([0.0, 1.0]))
    same(xp.add(2, xp.arange(3)), np.arange(3) + 2)
    same(xp.sum([[1, 2], [3, 4]], axis=0), [4, 6])
    same(xp.concatenate([[1, 2], [3]]), [1, 2, 3])
    same(xp.linalg.trace(np.eye(3)), 3.0)
    assert xp.float32 is np.float32
    assert xp.pi == np.pi
    assert xp.asarray(np.ones(4)).placement.dim_specs[0].axis == 0
    assert str(xp.asarray(3.0).placement) == "R"
    x = xp.asarray([1.0, 2.0])
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True) is not x
    same(xp.asarray(x, "int32"), np.array([1, 2], "int32"))
    assert xp.asarray(x, copy=False) is x
    for each, options in (([1.0], {}), (x, {"dtype": "int32"}), (x, {"placement": "R"})):
        with pytest.raises(ValueError, match="need not be copied"):
            xp.asarray(each, copy=False, **options)


def test_a_namespace_is_all_that_a_program_need_keep():
    """Its session lives as long; others of the same session keep it, too."""
    xp = ThreadedSession(2).numpy(placement="R")
    assert xp.arange(3).sum().item() == 3


def test_a_namespace_is_asked_as_any_object_is(session):
    """By copies, and by whoever looks for names that modules have."""
    xp = session.numpy
    same(copy.copy(xp).ones(2), np.ones(2))
    for name in ("__all__", "__wrapped__", "_repr_html_", "sctypeDict", "linalg_error"):
        assert not hasattr(xp, name)


def test_a_namespace_is_for_a_mesh_and_a_placement(session):
    """Of a tensor it is that of its mesh."""
    mesh = session.mesh((3, 1), ("dp", "tp"))
    xp = session.numpy(mesh=mesh, placement="R, S[1]")
    x = xp.ones((4, 2))
    assert (x.mesh, str(x.placement)) == (mesh, "R, S[1]")
    assert str(xp.ones(4).placement) == "R, R"
    again = x.__array_namespace__(api_version="2024.12")
    assert str(again.zeros(4).placement) == "S[0], R"
    assert str(session.numpy(mesh=mesh).zeros((4, 2)).placement) == "S[0], R"
    last = session.numpy(placement="S[-1]")
    assert [str(last.zeros(shape).placement) for shape in ((), (4, 2))] == ["R", "S[1]"]
    assert repr(xp) == f"<numpy on {mesh!r}, 'R, S[1]'>"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda xp: xp.sort, AttributeError, "has no sort"),
        (lambda xp: xp.linalg.svd, AttributeError, "has no linalg.svd"),
        (lambda xp: xp(placement="R, R"), ConfigError, "a spec for each axis"),
        (lambda xp: xp.arange(1, 2, 0), ConfigError, "a step that is not 0"),
        (lambda xp: xp.arange(1j), TypeError, "expected real numbers"),
        (lambda xp: xp.arange(2, dtype=bool), TypeError, "expected a dtype of numbers, got bool"),
        (lambda xp: xp.linspace(0, 1, -1), ConfigError, "a count from 0, got -1"),
        (lambda xp: xp.linspace([0], 1), ConfigError, "takes numbers as its ends"),
        (lambda xp: xp.zeros((-1,)), ConfigError, "dimensions of zero or more, got -1"),
        (lambda xp: xp.zeros(2.5), TypeError, "shape: expected integers"),
        (lambda xp: xp.zeros(2, "no dtype"), ConfigError, "no dtype"),
        (lambda xp: xp.full((2, 2), [1, 2, 3]), ConfigError, "cannot be broadcast together"),
        (lambda xp: np.full_like(xp.zeros(2), [1, 2]), ConfigError, "takes one value"),
        (lambda xp: np.ones_like(xp.zeros(2), shape=3), ConfigError, "has its shape"),
        (lambda xp: np.tril(xp.zeros(())), ConfigError, "needs at least one axis"),
        (lambda xp: np.meshgrid(xp.zeros(2), [1]), ConfigError, "distributed tensors alone"),
    ],
)
def test_what_cannot_be_made_is_refused(session, call, error, text):
    """By what was expected and what came."""
    with pytest.raises(error, match=text):
        call(session.numpy)
