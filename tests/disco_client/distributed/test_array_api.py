"""What the Array API standard asks of ``session.numpy`` beyond numpy's functions."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError, ThreadedSession
from disco_client.errors import DtypeError, OutOfBounds

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")
WHOLE = np.random.default_rng(0).integers(-9, 9, (7, 4)).astype("float64")


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


def same(got, want):
    """The same values, shape and dtype."""
    want = np.asarray(want)
    assert tuple(got.shape) == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


def placed(session, placement, whole=WHOLE):
    return session.distribute(whole, placement="S[0]").redistribute(placement)


# The namespace ---------------------------------------------------------------------------


def test_a_namespace_says_what_it_can_do(session):
    """Its capabilities, devices and dtypes, as the standard names them."""
    xp = session.numpy
    found = xp.__array_namespace_info__()
    assert xp.__array_api_version__ == "2025.12"
    assert found.capabilities()["boolean indexing"] is True
    assert found.default_device() == xp.mesh
    assert found.devices() == (xp.mesh,)
    assert found.default_dtypes()["complex floating"] == np.complex128
    assert list(found.dtypes()) == [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    ]
    assert list(found.dtypes(kind="real floating")) == ["float32", "float64"]
    assert list(found.dtypes(kind=("bool", "complex floating"))) == [
        *("bool", "complex64", "complex128")
    ]
    with pytest.raises(ConfigError, match=r"expected kinds of dtypes among bool, .*: 'float'"):
        found.dtypes(kind="float")


def test_functions_have_the_names_and_signatures_of_numpys(session):
    """Programs look at both."""
    xp = session.numpy
    assert inspect.signature(xp.sum) == inspect.signature(np.sum)
    assert xp.exp.__name__ == "exp"
    assert xp.roll.__doc__ == np.roll.__doc__
    assert repr(xp.exp) == "<exp on the workers>"


def test_limits_of_floating_point_dtypes_are_pythons_numbers(session):
    """By a dtype, or by a tensor or array of it; what else numpy says of them is there, too."""
    xp = session.numpy
    for of in (np.float32, "complex64", xp.zeros(2, "float32"), np.zeros(2, "float32")):
        found = xp.finfo(of)
        numbers = (found.eps, found.max, found.min, found.smallest_normal)
        assert [type(each) for each in numbers] == [float] * 4
        want = np.finfo(np.float32)
        assert numbers == (want.eps, want.max, want.min, want.smallest_normal)
        assert (found.bits, found.dtype, found.precision) == (32, np.float32, 6)
        assert repr(found) == repr(want)
        assert not hasattr(found, "_nothing")
    assert xp.iinfo(xp.zeros(2, "uint8")).max == 255
    with pytest.raises(DtypeError, match="expected a floating-point dtype, got int64"):
        xp.finfo("int64")
    with pytest.raises(DtypeError, match="expected an integer dtype, got float64"):
        xp.iinfo(xp.zeros(2))


def test_tensors_stand_for_their_dtypes(session):
    """In what asks for dtypes."""
    xp = session.numpy
    x = xp.zeros(2, "int16")
    assert xp.result_type(x, np.float32, 1.0) == np.float32
    assert np.result_type(x, np.uint16) == np.int32
    assert xp.can_cast(x, "int32") is True
    assert np.can_cast(x, "int8") is False


def test_a_conversion_makes_a_tensor_of_its_own_unless_told_not_to(session):
    """The standard has it as a function."""
    xp = session.numpy
    x = xp.arange(4.0)
    same(xp.astype(x, "int8"), np.arange(4, dtype="int8"))
    assert xp.astype(x, "float64", copy=False) is x
    assert xp.astype(x, "float64") is not x
    there = session.mesh((1,))
    assert xp.astype(x, "int8", device=there).mesh == there


def test_the_device_of_a_tensor_is_its_mesh(session):
    """What is made can be made there, and go there."""
    xp = session.numpy
    there = session.mesh((2,))
    x = xp.asarray(WHOLE)
    assert x.device == x.mesh
    assert x.to_device(x.device) is x
    moved = x.to_device(there)
    assert (moved.device, str(moved.placement)) == (there, "S[0]")
    same(moved, WHOLE)
    flat = session.mesh((3, 1))
    assert str(x.to_device(flat).placement) == "R, R"
    for made in (
        *(xp.zeros(3, device=there), xp.ones(3, device=there), xp.empty(3, device=there)),
        *(xp.full(3, 1, device=there), xp.eye(3, device=there), xp.tri(3, device=there)),
        *(xp.identity(3, device=there), xp.indices((3, 2), device=there)),
        *(xp.arange(3, device=there), xp.linspace(0, 1, 3, device=there)),
        *(xp.asarray([1, 2], device=there), xp.asarray(x, device=there)),
        *(xp.zeros_like(moved, device=there), xp.full_like(x, 1, device=there)),
        *(xp.ones_like(x, device=there), xp.from_dlpack(x, device=there)),
    ):
        assert made.device == there
    with pytest.raises(ConfigError, match=r"expected a mesh as the device, .* got 'cpu'"):
        xp.zeros(2, device="cpu")
    with pytest.raises(ConfigError, match="expected a mesh and no stream, got 'cpu' and None"):
        x.to_device("cpu")


# Arrays of other libraries ---------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_other_libraries_get_a_copy_by_dlpack(session, placement):
    """It is theirs to change."""
    x = placed(session, placement)
    assert x.__dlpack_device__() == (1, 0)
    host = np.from_dlpack(x)
    np.testing.assert_array_equal(host, WHOLE)
    host[...] = 0
    same(x, WHOLE)


def test_tensors_are_made_of_what_speaks_dlpack(session):
    """A tensor is one already."""
    xp = session.numpy
    x = xp.from_dlpack(WHOLE)
    same(x, WHOLE)
    assert xp.from_dlpack(x) is x
    assert xp.from_dlpack(x, copy=True) is not x
    with pytest.raises(ValueError, match="need not be copied"):
        xp.from_dlpack(WHOLE, copy=False)


def test_a_tensor_stays_a_tensor_to_calls(session):
    """Though it speaks DLPack, workers get its parts, and nobody its copy in silence."""
    x = session.distribute(WHOLE, placement="S[0]")
    shape = session.get_global_func("numpy.shape")
    assert shape(x).debug_get_from_remote(0) == (3, 4)
    same(session.distribute(x, placement="S[1]"), WHOLE)


def test_numbers_that_a_dtype_has_not_are_refused(session):
    """As by numpy, where they are none of an array."""
    xp = session.numpy
    same(xp.asarray([1, 2], "uint8"), np.array([1, 2], "uint8"))
    same(xp.asarray(2**64 - 1, "uint64"), np.array(2**64 - 1, "uint64"))
    same(xp.asarray(np.array([300]), "uint8"), np.array([300]).astype("uint8"))
    x = xp.ones(3, "uint8")
    for refused in (
        lambda: xp.asarray([300], "uint8"),
        lambda: xp.asarray(["1"], "uint8"),
        lambda: xp.full(3, -1, "uint8"),
        lambda: np.full_like(x, 256),
    ):
        with pytest.raises(DtypeError, match="cannot become uint8"):
            refused()


# Functions -------------------------------------------------------------------------------


CALLS = {
    "mT": lambda m, x: x.mT if m is not np else m.swapaxes(x, -1, -2),
    "clip": lambda m, x: m.clip(x, -2.0, 3.0),
    "clip below": lambda m, x: m.clip(x, -2.0, None),
    "clip above": lambda m, x: m.clip(x, None, x[0]),
    "std, correction": lambda m, x: (
        m.std(x, axis=0, ddof=1) if m is np else m.std(x, axis=0, correction=1)
    ),
    "var, correction": lambda m, x: m.var(x, ddof=0.5) if m is np else m.var(x, correction=0.5),
    "argmax, keepdims": lambda m, x: m.argmax(x, axis=1, keepdims=True),
    "argmin, all, keepdims": lambda m, x: m.argmin(x, keepdims=True),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_functions_take_what_the_standard_names(session, name, placement):
    """The values are numpy's."""
    x = placed(session, placement)
    got, want = CALLS[name](session.numpy, x), np.asarray(CALLS[name](np, WHOLE))
    assert (tuple(got.shape), got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got.numpy(), want)


def test_limits_have_numpys_names_too(session):
    """And what is to be clipped may be no tensor yet."""
    xp = session.numpy
    same(xp.clip([1, 5, 9], a_min=2, a_max=6), [2, 5, 6])
    with pytest.raises(ConfigError, match="takes a ddof or a correction, not both"):
        xp.var(xp.ones(3), ddof=1, correction=1)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_elements_are_repeated_by_counts_on_the_workers(session, placement):
    """They are fetched, because the shape depends on them."""
    x = placed(session, placement)
    counts = session.numpy.asarray([1, 0, 2, 3])
    same(np.repeat(x, counts, axis=1), np.repeat(WHOLE, [1, 0, 2, 3], axis=1))
    same(np.repeat(x, counts[2]), np.repeat(WHOLE, 2))


# Positions -------------------------------------------------------------------------------


INDEXES = {
    "two arrays": lambda t: np.s_[t([0, 6, -1]), t([1, -4, 3])],
    "broadcast": lambda t: np.s_[t([[0], [5]]), t([1, 0, 3])],
    "behind an ellipsis": lambda t: np.s_[..., t([0, 2]), t([1, 1]), 0],
    "apart": lambda t: np.s_[t([0, 2]), :, t([1, 0])],
    "apart, a number": lambda t: np.s_[0, 1:3, t([1, 0])],
    "with a number": lambda t: np.s_[t([0, 2]), -1, t([1, 0])],
    "a new axis": lambda t: np.s_[None, t([0, 2]), t([1, 0])],
    "a slice behind": lambda t: np.s_[t([0, 2]), t([1, 0]), 1:],
    "a slice in front": lambda t: np.s_[1:, t([2, 3]), t([1, 0])],
    "none": lambda t: np.s_[t(np.zeros(0, int)), t(np.zeros(0, int))],
    "of no axes": lambda t: np.s_[t(2)],
    "of no axes, behind": lambda t: np.s_[1:, t(-1)],
    "several of no axes": lambda t: np.s_[t(2), t(-1), t(0)],
    "small": lambda t: np.s_[t(np.array([6, 0], "int8")), t(np.array([3, 0], "uint8"))],
}


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[2]", "P", "S[0: 0-1, 1-5, 5-7]"])
@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("where", ["host", "workers"])
def test_positions_along_several_axes_gather_as_in_numpy(session, name, where, placement):
    """Host arrays or tensors, beside numbers, slices and new axes."""
    whole = np.arange(7 * 4 * 2.0).reshape(7, 4, 2)
    x = placed(session, placement, whole)
    mine = session.numpy.asarray if where == "workers" else np.asarray
    same(x[INDEXES[name](mine)], whole[INDEXES[name](np.asarray)])


@given(data=st.data())
def test_any_positions_along_several_axes_gather_as_in_numpy(session, data):
    """Of tensors of any shape, in any order among slices and numbers."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    whole = np.arange(float(np.prod(shape))).reshape(shape)
    wide = data.draw(st.lists(st.integers(1, 3), max_size=2))
    items = []
    for extent in shape:
        kind = data.draw(st.sampled_from(["array", "array", "tensor", "number", "slice"]))
        inside = st.integers(-extent, extent - 1)
        if kind in ("array", "tensor"):
            count = int(np.prod(wide))
            flat = data.draw(st.lists(inside, min_size=count, max_size=count))
            found = np.array(flat, dtype="int64").reshape(wide)
            items.append((kind, found))
        else:
            items.append((kind, data.draw(inside if kind == "number" else st.slices(extent))))
    placement = data.draw(st.sampled_from(["R", "S[0]", "S[1]", "P"]))
    x = placed(session, placement, whole)
    mine = [session.numpy.asarray(each) if kind == "tensor" else each for kind, each in items]
    same(x[tuple(mine)], whole[tuple(each for _, each in items)])


def test_positions_beyond_an_axis_are_refused(session):
    """At the call where the client knows them, else by the workers."""
    x = session.numpy.asarray(WHOLE)
    with pytest.raises(OutOfBounds, match="position 4 is out of bounds for an axis of 4"):
        x[[0, 1], [0, 4]]
    with pytest.raises(DtypeError, match=r"positions as arrays of integers.* tensor of float64"):
        x[x[0], x[0]]
    gathered = x[[0, 1], session.numpy.asarray([0, 4])]
    with pytest.raises(Exception, match="out of bounds"):
        gathered.numpy()
