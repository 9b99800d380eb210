"""Other values in a place of a tensor: as numpy's, of any placement, and of no other tensor."""

import copy

import numpy as np
import pytest
from drawn_tensors import MESHES, indices, same, shapes, tensors
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import disco_server
from disco_client import CaptureError, ConfigError, DtypeError, ThreadedSession
from disco_client.distributed import Placement, PlacementSpec

UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(4) as shared:
        yield shared


@st.composite
def values(draw, shape):
    """An array that numpy broadcasts to a shape."""
    own = [draw(st.sampled_from([1, extent])) for extent in shape]
    own = own[draw(st.integers(0, len(own))) :]
    return 100.0 + np.arange(np.prod(own, dtype=int)).reshape(own)


def assigned(whole, index, how, new):
    """What numpy makes of it; None where it takes no such values there."""
    wanted = whole.copy()
    try:
        if how == "set":
            wanted[index] = new
        else:
            UFUNCS[how].at(wanted, index, np.broadcast_to(new, whole[index].shape))
    except (IndexError, TypeError, ValueError):
        return None
    return wanted


@given(data=st.data())
@settings(max_examples=40)
def test_values_are_assigned_as_numpy_does(session, data):
    """To slices, numbers, positions and masks, of the client or of the workers."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(session, data.draw(shapes()), mesh))
    index = data.draw(indices(whole.shape))
    try:
        shape = whole[index].shape
    except IndexError:  # arrays that do not go together
        with pytest.raises(IndexError):
            x[index]
        return
    new = data.draw(values(shape))
    how = data.draw(st.sampled_from(["set", "add", "min", "max"]))
    wanted = assigned(whole, index, how, new)
    assume(wanted is not None)
    same(x[index], whole[index])
    if new.ndim and data.draw(st.booleans()):
        new = session.distribute(new, mesh, ", ".join(["S[0]", "R"][: mesh.ndim]))
    before, part = x[...], x[index]
    same(getattr(x.at[index], how)(new), wanted)
    same(x, whole)
    if how == "set":
        x[index] = new
        same(x, wanted)
        same(x * 2, wanted * 2)
    same(before, whole)
    same(part, whole[index])


@given(data=st.data())
@settings(max_examples=20)
def test_a_mask_on_the_workers_is_one_of_the_client(session, data):
    """For values that are the same wherever it is true."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(session, data.draw(shapes(least=1)), mesh))
    y = np.arange(1.0, 1 + np.prod(whole.shape[:1])) % 3
    mask = session.distribute(y, mesh, ", ".join(["S[0]", "R"][: mesh.ndim])) > 1
    new = np.arange(np.prod(whole.shape[1:])).reshape(whole.shape[1:])
    same(x.at[mask].add(new), whole + (y > 1).reshape(-1, *[1] * (whole.ndim - 1)) * new)
    whole[y > 1] = new
    x[mask] = new
    same(x, whole)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("placement", ["R", "S[0]", "P"])
def test_values_become_the_dtype_of_the_tensor(session, dtype, placement):
    """As numpy converts them, and numbers that it has not are refused."""
    if placement == "P" and dtype == "bool":
        placement = "S[1]"
    whole = np.zeros((5, 3), "float32" if dtype == "bfloat16" else dtype)
    x = session.distribute(whole, placement=placement).astype(dtype)
    x[1:, 0] = np.array([0.0, 1.0, 2.0, 3.5])
    whole[1:, 0] = np.array([0.0, 1.0, 2.0, 3.5])
    x[0] = True
    whole[0] = True
    x[[4], [2]] = 1
    whole[[4], [2]] = 1
    assert x.dtype == dtype
    np.testing.assert_array_equal(x.numpy().astype(whole.dtype), whole)


def test_a_number_that_the_dtype_has_not_is_refused(session):
    """Not taken modulo anything; the tensor stays as it was."""
    x = session.distribute(np.zeros(4, "uint8"), placement="S[0]")
    for number in (300, -1, 1 << 70, "name", None):
        with pytest.raises(DtypeError, match="cannot become uint8"):
            x[0] = number
    same(x, np.zeros(4, "uint8"))


def test_every_name_of_the_tensor_sees_it_and_no_other_tensor(session):
    """Neither what was made of it before, nor copies, nor what shares its memory."""
    whole = np.arange(12.0).reshape(4, 3)
    x = session.distribute(whole, placement="S[0]")
    name, ref = x, x.ref
    others = [
        x[1:],
        x[:],
        x.T,
        x.reshape(12),
        copy.copy(x),
        x.redistribute("S[0]"),
        np.ravel(x),
        +x,
    ]
    held = [other.numpy() for other in others]
    x[1:, 1] = -1
    whole[1:, 1] = -1
    same(name, whole)
    assert name is x
    for other, before in zip(others, held, strict=True):
        same(other, before)
    np.testing.assert_array_equal(np.concatenate(ref.get_all()), np.arange(12.0).reshape(4, 3))
    assert "setitem" in x.explain()


def test_a_transposed_tensor_is_assigned_values_alone(session):
    """Whichever of the two is assigned them, and when the other is gone, too."""
    whole = np.arange(12.0).reshape(4, 3)
    x = session.distribute(whole, placement="S[0]")
    turned = x.T
    turned[0] = -1
    same(x, whole)
    del x
    turned[1:, 2] = -2
    whole[:, 0], whole[2, 1:] = -1, -2
    same(turned, whole.T)


@disco_server.register_func("tests.assignment.address")
def where(part):
    """Where a worker's part lies in its memory."""
    return part.ctypes.data


def address(session, ref):
    found = session.get_global_func("tests.assignment.address")
    return session.call_packed(found, ref).get(1)


@pytest.mark.parametrize(
    "index",
    [
        np.s_[1:3],
        np.s_[5, 0],
        np.s_[[0, 7], [1, 1]],
        np.s_[[1, 2]],
        np.arange(16).reshape(8, 2) > 3,
    ],
    ids=["slice", "number", "pairs", "rows", "mask"],
)
def test_the_memory_is_the_same_where_nobody_else_has_it(session, index):
    """And another one where somebody does."""
    x = session.distribute(np.zeros((8, 2)), placement="S[0]") + 1
    where = address(session, x.ref)
    x[index] = 1
    assert address(session, x.ref) == where
    keeper = x.ref
    x[index] = 2
    assert address(session, x.ref) != where
    del keeper
    where = address(session, x.ref)
    other = x[:]
    x[index] = 3
    assert address(session, x.ref) != where
    assert other.shape == (8, 2)


def test_of_equal_positions_the_last_counts_and_all_are_added(session):
    """As in numpy, and as ``numpy.add.at`` does."""
    x = session.distribute(np.zeros(6), placement="S[0]")
    ids = [1, 5, 1, -1, 1]
    x[ids] = [1, 2, 3, 4, 5]
    same(x, np.array([0.0, 5, 0, 0, 0, 4]))
    same(x.at[ids].add(1), np.array([0.0, 8, 0, 0, 0, 6]))
    on_workers = session.distribute(np.array(ids), placement="S[0]")
    same(x.at[on_workers].add([1, 2, 3, 4, 5]), np.array([0.0, 14, 0, 0, 0, 10]))
    same(x.at[on_workers].get(), np.array([5.0, 4, 5, 4, 5]))


def test_a_captured_program_makes_another_tensor(session):
    """One that changed would change again each time the program runs."""
    x = session.distribute(np.zeros((8, 2)), placement="S[0]")
    with pytest.raises(CaptureError, match=r"x = x\.at\[items\]\.set\(value\)"), session.capture():
        x[0] = 1
    with session.capture() as program:
        y = x.at[0].set(1).at[:, 1].add(2).at[[3, 4]].max(7)
        program.output(y)
    for _ in range(2):
        made = program()
        wanted = np.zeros((8, 2))
        wanted[0], wanted[:, 1] = 1, wanted[:, 1] + 2
        wanted[:, 1][0] = 3
        wanted[[3, 4]] = 7
        same(made, wanted)
    same(x, np.zeros((8, 2)))


@pytest.mark.parametrize(
    ("index", "value", "text"),
    [
        (np.s_[1:3], np.ones(3), r"values of shape \(3,\) cannot be broadcast to \(2, 2\)"),
        (np.s_[[0, 1]], np.ones((3, 2)), r"of shape \(3, 2\) cannot be broadcast to \(2, 2\)"),
        (np.s_[8], 1, "index 8 is out of bounds for an axis of 8"),
        (np.s_[[8]], 1, "position 8 is out of bounds for an axis of 8"),
        (np.s_[0, 0, 0], 1, "2 axes cannot be indexed by"),
        (np.ones(7, bool), 1, r"mask of shape \(7,\) is for such axes, got \(8, 2\)"),
        ("name", 1, "expected numbers, slices"),
    ],
)
def test_what_does_not_fit_is_refused(session, index, value, text):
    """By what was expected and what came, and the tensor stays as it was."""
    x = session.distribute(np.zeros((8, 2)), placement="S[0]")
    with pytest.raises(ConfigError, match=text):
        x[index] = value
    with pytest.raises(ConfigError, match=text):
        x.at[index].add(value)
    same(x, np.zeros((8, 2)))


def test_positions_on_the_workers_are_checked_there(session):
    """One that is out of bounds fails when the result is used."""
    x = session.distribute(np.zeros(8), placement="S[0]")
    beyond = session.distribute(np.array([0, 8]), placement="R")
    with pytest.raises(Exception, match="position 8 is out of bounds for an axis of 8"):
        x.at[beyond].set(1).numpy()
    with pytest.raises(ConfigError, match="integers, or masks"):
        x[session.distribute(np.array([0.5]), placement="R")] = 1


def test_parts_that_overlap_all_get_the_values(session):
    """Each worker that has the place."""
    spec = PlacementSpec.explicit(0, [(0, 4), (2, 6), (4, 8), (6, 8)])
    x = session.distribute(np.arange(8.0), placement=Placement([spec]))
    x[3:6] = [10, 20, 30]
    wanted = np.array([0.0, 1, 2, 10, 20, 30, 6, 7])
    for worker, (start, stop) in enumerate(((0, 4), (2, 6), (4, 8), (6, 8))):
        np.testing.assert_array_equal(x.shard(worker), wanted[start:stop])


def test_only_values_move_and_only_to_who_has_the_place(session):
    """What a row costs does not depend on the tensor."""
    x = session.distribute(np.zeros((4000, 8)), placement="S[0]")
    row = session.distribute(np.ones(8), placement="S[0]")
    x[17] = row
    (plan,) = [plan for _, plan in x.origin.moves if plan.steps]
    assert plan.nbytes <= 4 * row.nbytes
    x[5] = 0
    assert "nothing moved" in x.explain()
