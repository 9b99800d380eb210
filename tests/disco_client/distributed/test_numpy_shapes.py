"""numpy's functions that order, repeat or shift elements: as numpy's, of any placement."""

import numpy as np
import pytest

from disco_client import ConfigError, ThreadedSession
from disco_client.distributed import PlacementSpec

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "given")

CALLS = {
    "moveaxis": lambda m, x: m.moveaxis(x, 0, -1),
    "moveaxis, several": lambda m, x: m.moveaxis(x, [0, 1], [-1, -2]),
    "rollaxis": lambda m, x: m.rollaxis(x, 2),
    "rollaxis, to the end": lambda m, x: m.rollaxis(x, 0, 3),
    "rollaxis, from the end": lambda m, x: m.rollaxis(x, -1, -2),
    "swapaxes": lambda m, x: m.swapaxes(x, 0, 2),
    "linalg.matrix_transpose": lambda m, x: m.linalg.matrix_transpose(x),
    "flip": lambda m, x: m.flip(x),
    "flip, an axis": lambda m, x: m.flip(x, (0, -1)),
    "flipud": lambda m, x: m.flipud(x),
    "fliplr": lambda m, x: m.fliplr(x),
    "rot90": lambda m, x: m.rot90(x),
    "rot90, back": lambda m, x: m.rot90(x, -1, (0, 2)),
    "rot90, half": lambda m, x: m.rot90(x, 2),
    "rot90, three": lambda m, x: m.rot90(x, 7, axes=(1, 0)),
    "rot90, none": lambda m, x: m.rot90(x, 4),
    "roll": lambda m, x: m.roll(x, 3, axis=0),
    "roll, flat": lambda m, x: m.roll(x, -7),
    "roll, several": lambda m, x: m.roll(x, (1, -2), axis=(0, 1)),
    "roll, one by several axes": lambda m, x: m.roll(x, 1, axis=(0, 2)),
    "roll, none": lambda m, x: m.roll(x, 7, axis=0),
    "diff": lambda m, x: m.diff(x),
    "diff, twice": lambda m, x: m.diff(x, 2, axis=0),
    "diff, of all and more": lambda m, x: m.diff(x, 9, axis=0),
    "diff, none": lambda m, x: m.diff(x, 0),
    "diff, with edges": lambda m, x: m.diff(x, axis=0, prepend=0, append=x[:2]),
    "broadcast_to": lambda m, x: m.broadcast_to(x, (2, *x.shape)),
    "broadcast_to, an axis": lambda m, x: m.broadcast_to(x[:, :1], x.shape),
    "broadcast_arrays": lambda m, x: m.broadcast_arrays(x, x[0], x[:, :1])[1],
    "atleast_1d": lambda m, x: m.atleast_1d(x.sum()),
    "atleast_2d": lambda m, x: m.atleast_2d(x[0, :, 0]),
    "atleast_3d": lambda m, x: m.atleast_3d(x[:, :, 0]),
    "atleast_3d, a row": lambda m, x: m.atleast_3d(x[:, 0, 0]),
    "append": lambda m, x: m.append(x, x[:2], axis=0),
    "append, flat": lambda m, x: m.append(x, [1.0, 2.0]),
    "copy": lambda m, x: m.copy(x),
}


@pytest.fixture(scope="module")
def threads():
    with ThreadedSession(3) as session:
        yield session


@pytest.fixture(scope="module")
def whole():
    return np.random.default_rng(0).integers(-9, 9, (7, 4, 3)).astype("float64")


def lay(session, array, placement):
    if placement == "given":
        spec = PlacementSpec.explicit(0, [[(0, 1), (5, 7)], [], [(1, 5)]])
        x = session.distribute(array, placement="S[0]")
        return x.redistribute(str(spec))
    return session.distribute(array, placement=placement)


def same(got, want):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_numpys(threads, whole, name, placement):
    """Values, shape and dtype; and the name of the call is what explain says."""
    x = lay(threads, whole, placement)
    same(CALLS[name](np, x), CALLS[name](np, whole))


def test_what_is_ordered_anew_stays_where_it_is(threads, whole):
    """A flip and a roll along the axis that is split, a difference but for a row at each border."""
    x = threads.distribute(whole, placement="S[0]")
    for made in (np.flip(x, 0), np.roll(x, 2, axis=0), np.append(x, x, axis=0), np.rot90(x, 2)):
        assert not [plan for _, plan in made.origin.moves if plan.steps], made.explain()
    moved = sum(plan.nbytes for _, plan in np.diff(x, axis=0).origin.moves)
    assert moved == 2 * x[0].nbytes


def test_of_booleans_a_difference_says_where_they_change(threads):
    """As in numpy, which subtracts no booleans."""
    array = np.array([True, True, False, True])
    same(np.diff(threads.distribute(array, placement="S[0]")), np.diff(array))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: np.moveaxis(x, [0, 1], [0]), "as many axes to move as places"),
        (lambda x: np.rollaxis(x, 0, 5), "expected a start from -3 to 3, got 5"),
        (lambda x: np.rot90(x, 1, (0, 1, 2)), "expected two axes"),
        (lambda x: np.rot90(x, 1, (0, 0)), "named twice"),
        (lambda x: np.flip(x, 3), "no axis 3"),
        (lambda x: np.fliplr(x[:, 0, 0]), "fliplr needs more axes than"),
        (lambda x: np.roll(x, 0.5, axis=0), "roll: expected integers, got"),
        (lambda x: np.diff(x, -1), "expected an order from 0, got -1"),
        (lambda x: np.diff(x.sum()), "diff needs at least one axis"),
        (lambda x: np.broadcast_to(x, (7, 4, 2)), "broadcast_to: .* cannot become .7, 4, 2."),
        (lambda x: np.broadcast_to(x, (3,)), "cannot become"),
        (lambda x: np.broadcast_arrays(x, x[:3]), "cannot be broadcast together"),
        (lambda x: np.broadcast_arrays(x, [1.0]), "takes distributed tensors alone"),
    ],
)
def test_what_numpy_refuses_is_refused(threads, whole, call, text):
    """By what was expected and what came."""
    x = threads.distribute(whole, placement="S[0]")
    with pytest.raises(ConfigError, match=text):
        call(x)
