"""Distributed tensors of any placement, and what stands between their brackets, for hypothesis."""

from itertools import pairwise

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from disco_client.distributed import Placement, PlacementSpec
from disco_client.errors import ConfigError

MESHES = ((4,), (3,), (2, 2), (1,))


@st.composite
def parts(draw, extent, count):
    """Given parts of an axis: each worker has some of its pieces, or none."""
    cuts = sorted(draw(st.lists(st.integers(0, extent), max_size=5)))
    edges = [0, *cuts, extent]
    found = [[] for _ in range(count)]
    for piece in pairwise(edges):
        found[draw(st.integers(0, count - 1))].append(piece)
    return found


@st.composite
def specs(draw, shape, count):
    """How a tensor of some axes lies along an axis of the mesh."""
    kinds = ["R", "P"] + ["S", "given"] * bool(shape)
    kind = draw(st.sampled_from(kinds))
    if kind in "RP":
        return PlacementSpec.replica() if kind == "R" else PlacementSpec.partial("sum")
    axis = draw(st.integers(0, len(shape) - 1))
    if kind == "S":
        return PlacementSpec.sharding(axis)
    return PlacementSpec.explicit(axis, draw(parts(shape[axis], count)))


@st.composite
def tensors(draw, session, shape, mesh):
    """A distributed tensor of this shape, in parts of either order, and the same as an array."""
    whole = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    turned = draw(st.booleans())
    laid = whole.T if turned else whole
    placement = Placement([draw(specs(laid.shape, count)) for count in mesh.shape])
    try:
        x = session.distribute(laid, mesh, placement)
    except ConfigError:  # an axis in given parts is split twice
        assume(False)
    else:
        return (x.T if turned else x), whole


def shapes(least=0):
    return st.lists(st.integers(0, 11), min_size=least, max_size=3).map(tuple)


def slices(extent):
    ends = st.none() | st.integers(-extent - 2, extent + 2)
    return st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, 3, -1, -2]))


@st.composite
def items(draw, shape):
    """What numpy takes between brackets: slices, numbers, None and an ellipsis."""
    found = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        number = st.integers(-extent, extent - 1) if extent else slices(extent)
        found.append(draw(slices(extent) | number))
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), None)
    return (*found, ...) if draw(st.booleans()) else tuple(found)


def same(made, expected):
    got = made.numpy()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def moved(made):
    return [plan for _, plan in made.origin.moves if plan.steps]


@st.composite
def indices(draw, shape):
    """The same with arrays of positions, nested lists of them, and masks."""
    found = []
    axis = 0
    spread = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    while axis < len(shape) and draw(st.integers(0, 5)):
        extent = shape[axis]
        kind = draw(st.sampled_from("nsspm"))
        if kind == "m":
            axes = draw(st.integers(1, len(shape) - axis))
            mask = st.lists(st.booleans(), min_size=int(np.prod(shape[axis : axis + axes])))
            size = int(np.prod(shape[axis : axis + axes]))
            flags = draw(mask.map(lambda given, size=size: given[:size]))
            found.append(np.array(flags, bool).reshape(shape[axis : axis + axes]))
            axis += axes
            continue
        if kind == "s" or not extent:
            found.append(draw(slices(extent)))
        elif kind == "n":
            found.append(draw(st.integers(-extent, extent - 1)))
        else:
            size = int(np.prod(spread))
            ids = st.lists(st.integers(-extent, extent - 1), min_size=size, max_size=size)
            taken = np.array(draw(ids), np.int64).reshape(spread)
            found.append(taken.tolist() if spread and draw(st.booleans()) else taken)
        axis += 1
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), None)
    return (*found, ...) if draw(st.booleans()) else tuple(found)
