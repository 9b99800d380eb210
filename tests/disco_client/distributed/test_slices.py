"""Slices and concatenations: as numpy's, of any placement, and nothing moves that need not."""

import numpy as np
import pytest
from drawn_tensors import MESHES, items, moved, same, shapes, tensors
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco_client import ThreadedSession
from disco_client.distributed import Placement, PlacementSpec
from disco_client.errors import ConfigError


@pytest.fixture(scope="module")
def threads():
    with ThreadedSession(4) as session:
        yield session


def is_cut_twice(x, index):
    """Whether an axis is cut that several axes of the mesh split: it must be whole first."""
    places = [item for item in index if item is not None and item is not ...]
    cut = [axis for axis, item in enumerate(places) if item != slice(None)]
    return any(x.info.axes.count(axis) > 1 for axis in cut)


@given(data=st.data())
@settings(max_examples=80)
def test_a_slice_is_numpys_and_stays_where_it_is(threads, data):
    """Only the row that a number picks moves, to who lacks it; what is computed of it is right."""
    mesh = threads.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(threads, data.draw(shapes()), mesh))
    index = data.draw(items(whole.shape))
    made, expected = x[index], whole[index]
    same(made, expected)
    if any(isinstance(item, int) for item in index):
        for plan in moved(made)[:1]:
            assert plan.nbytes == plan.bound or is_cut_twice(x, index)
    elif None not in index and not is_cut_twice(x, index):
        assert not moved(made)
    same(made * 2 + made, expected * 2 + expected)
    same(made.sum(), np.asarray(expected.sum()))
    for axis in range(made.ndim):
        same(made.sum(axis), expected.sum(axis))
        same(made[(slice(None),) * axis + (slice(None, None, -1),)], np.flip(expected, axis))


@given(data=st.data())
@settings(max_examples=50)
def test_a_concatenation_is_numpys_and_appends_where_it_is_split(threads, data):
    """However its operands lie; where they are split alike, nothing moves."""
    mesh = threads.mesh(data.draw(st.sampled_from(MESHES)))
    shape = data.draw(shapes(least=1))
    axis = data.draw(st.integers(0, len(shape) - 1))
    extents = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    pairs = [
        data.draw(tensors(threads, (*shape[:axis], extent, *shape[axis + 1 :]), mesh))
        for extent in extents
    ]
    made = np.concatenate([x for x, _ in pairs], axis=axis)
    expected = np.concatenate([whole for _, whole in pairs], axis=axis)
    same(made, expected)
    same(made + 1, expected + 1)
    inner = (slice(None),) * axis + (slice(1, -1),)
    same(made[inner], expected[inner])
    if all(x.info.axes == (axis,) for x, _ in pairs):
        assert not moved(made)


@given(data=st.data())
@settings(max_examples=50)
def test_positions_along_an_axis_are_gathered_as_numpy_does(threads, data):
    """Beside slices, numbers, None and an ellipsis, and wherever the positions lie themselves."""
    mesh = threads.mesh(data.draw(st.sampled_from(MESHES)))
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
    x, whole = data.draw(tensors(threads, shape, mesh))
    index = list(data.draw(items(shape)))
    axis = sum(item is not None and item is not ... for item in index)
    dots = index.index(...) if ... in index else len(index)
    before = sum(item is not None for item in index[:dots])
    assume(axis < len(shape) and axis == before)
    extent = shape[axis]
    ids = np.array(
        data.draw(st.lists(st.integers(-extent, extent - 1), max_size=6)), np.int32
    ).reshape(data.draw(st.sampled_from([(-1,), (-1, 1)])))
    index.insert(dots, ids)
    expected = whole[tuple(index)]
    same(x[tuple(index)], expected)
    index[dots] = ids.tolist()
    same(x[tuple(index)], whole[tuple(index)])
    index[dots] = threads.distribute(ids, mesh, ", ".join(["R"] * mesh.ndim))
    same(x[tuple(index)], expected)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (([0, 1], [1, 0, 1]), r"positions of the shapes \(2,\) and \(3,\) do not go together"),
        ([True] * 19, r"mask of shape \(19,\) is for such axes, got \(20, 2\)"),
        ([20], "position 20 is out of bounds for an axis of 20"),
        ([0.5], "positions of an integer dtype, got float64"),
        (True, "integers, or masks with axes"),
        ("name", "expected numbers, slices, ..., None, positions"),
        ((0, 0, 0), "2 axes cannot be indexed by"),
    ],
)
def test_what_is_no_index_is_refused(threads, index, text):
    """By what came, and the way round."""
    x = threads.distribute(np.ones((20, 2)), placement="S[0]")
    with pytest.raises(ConfigError, match=text):
        x[index]


def test_operands_in_the_same_given_parts_stay_there(threads):
    """Others come to them, or they to the others, whichever moves less."""
    x = threads.distribute(np.arange(40.0).reshape(20, 2), placement="S[0]")
    y, z = x[3:11], x[2:10]
    assert y.placement != z.placement
    assert not moved(y * y - np.sqrt(y))
    assert not moved(y @ np.ones((2, 3)))
    (plan,) = moved(y + z)
    assert plan.nbytes == 2 * y[0].nbytes  # a row across each border between workers
    same(y + z, x.numpy()[3:11] + x.numpy()[2:10])


def test_a_loop_over_batches_makes_few_functions(threads):
    """What a slice takes goes with its command; batches that lie alike are computed alike."""
    x = threads.distribute(np.arange(400.0).reshape(100, 4), placement="S[0]")
    sums = [x[i : i + 5].sum(axis=0) for i in range(0, 100, 5)]
    before = threads.statistics()["issued"]
    again = [x[i : i + 5].sum(axis=0) for i in range(0, 100, 5)]
    # Two commands for each; a function for each would be two more. Freed registers may be some.
    assert threads.statistics()["issued"] - before < 3 * len(again)
    for one, other, i in zip(sums, again, range(0, 100, 5), strict=True):
        same(one, x.numpy()[i : i + 5].sum(axis=0))
        same(other, x.numpy()[i : i + 5].sum(axis=0))


def test_parts_that_overlap_are_refused_by_name(threads):
    """With the placements that would do."""
    spec = PlacementSpec.explicit(0, [(0, 4), (2, 6), (4, 8), (6, 8)])
    x = threads.distribute(np.arange(8.0), placement=Placement([spec]))
    with pytest.raises(ConfigError, match="getitem has no rule for a tensor that lies as"):
        x[1:]
