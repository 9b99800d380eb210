"""What is taken by the truth of elements: as numpy's, and it stays where it is."""

import asyncio

import numpy as np
import pytest
from drawn_tensors import MESHES, moved, same, shapes, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import CaptureError, ConfigError, ThreadedSession, WouldBlock
from disco_client.distributed import Placement, PlacementSpec


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(4) as shared:
        yield shared


@given(data=st.data())
@settings(max_examples=50)
def test_a_mask_takes_what_numpy_takes(session, data):
    """Of the client or of the workers, of all axes or of the first ones."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(session, data.draw(shapes(least=1)), mesh))
    axes = data.draw(st.integers(1, whole.ndim))
    size = int(np.prod(whole.shape[:axes]))
    flags = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    mask = np.array(flags, bool).reshape(whole.shape[:axes])
    specs = ", ".join(["S[0]", "R"][: mesh.ndim])
    for each in (mask, session.distribute(mask, mesh, specs)):
        made = x[each]
        same(made, whole[mask])
        same(made + made, whole[mask] * 2)
        same(np.sum(made, axis=0), np.sum(whole[mask], axis=0))
    rows = mask.reshape(-1)[: whole.shape[-1]]
    same(np.compress(rows, x, axis=-1), np.compress(rows, whole, axis=-1))
    if whole.size:
        same(np.compress([True, False], x), np.compress([True, False], whole))
    if axes == whole.ndim:
        same(np.extract(mask, x), np.extract(mask, whole))


@given(data=st.data())
@settings(max_examples=50)
def test_positions_of_what_is_not_zero_are_numpys(session, data):
    """In the order of the elements, however they lie."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(session, data.draw(shapes(least=1)), mesh))
    x, whole = x % 3, whole % 3
    for made, wanted in zip(np.nonzero(x), np.nonzero(whole), strict=True):
        same(made, wanted)
    same(np.flatnonzero(x), np.flatnonzero(whole))
    same(np.argwhere(x), np.argwhere(whole))
    (first, *_) = np.where(x > 1)
    same(first, np.where(whole > 1)[0])
    same(x[np.nonzero(x)], whole[np.nonzero(whole)])


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
def test_a_mask_beside_other_things_takes_what_numpy_takes(session, placement):
    """Numbers, slices and positions; and values are assigned there."""
    whole = np.arange(24.0).reshape(6, 4)
    x = session.distribute(whole, placement=placement)
    rows, columns = whole[:, 0] % 3 > 0, whole[0] > 1
    mine = [session.distribute(each, placement="S[0]") for each in (rows, columns)]
    same(x[mine[0], 1], whole[rows, 1])
    same(x[1:3, mine[1]], whole[1:3, columns])
    same(x[:, columns], whole[:, columns])
    x[:, mine[1]] = [[10, 20]]
    whole[:, columns] = [[10, 20]]
    x[mine[0], 0] = np.arange(4)
    whole[rows, 0] = np.arange(4)
    same(x, whole)
    values = np.arange(np.count_nonzero(whole > 9))
    x[x > 9] = values
    whole[whole > 9] = values
    same(x, whole)


def test_an_empty_mask_takes_nothing(session):
    """Of axes that are longer, as numpy has it; and nothing is assigned."""
    whole = np.arange(6.0).reshape(3, 2)
    x = session.distribute(whole, placement="S[0]")
    for shape in ((0,), (0, 2), (3, 0)):
        mask = np.zeros(shape, bool)
        for each in (mask, session.distribute(mask, placement="R")):
            same(x[each], whole[mask])
            x[each] = 7
    same(x, whole)


@pytest.mark.parametrize("placement", ["R", "S[0]", "P"])
def test_a_mask_without_axes_takes_all_or_nothing(session, placement):
    """With an axis in front that says which; and assigns to all elements, or to none."""
    whole = np.arange(6.0).reshape(3, 2)
    x = session.distribute(whole, placement=placement)
    for position in (0, 5):
        mask, flag = x[position // 2, position % 2] > 3, np.asarray(whole.flat[position] > 3)
        same(x[mask], whole[flag])
        same(x[flag], whole[flag])
        y, wanted = x.at[mask].set(7), whole.copy()
        wanted[flag] = 7
        same(y, wanted)
    number = session.distribute(np.asarray(5.0))
    number[number > 3] = 1
    same(number, np.asarray(1.0))


def test_nothing_moves_where_the_mask_lies_beside_the_rows(session):
    """The parts are as unequal as the truth, which explain says."""
    whole = np.arange(40.0).reshape(20, 2)
    x = session.distribute(whole, placement="S[0]")
    made = x[x[:, 0] < 12]
    same(made, whole[:6])
    assert not moved(made)
    assert made.shape_on(0) == (5, 2)
    assert made.shape_on(3) == (0, 2)
    assert "parts of 5, 1, 0, 0 along axis 0" in made.explain()


def test_a_mask_of_the_client_is_not_waited_for(session):
    """So that it works in a captured program; one of the workers is refused there by name."""
    whole = np.arange(40.0).reshape(20, 2)
    x = session.distribute(whole, placement="S[0]")
    mask = np.arange(20) % 3 == 0
    with session.capture() as program:
        program.output(x[mask] * 2)
    same(program(), whole[mask] * 2)
    with pytest.raises(CaptureError, match=r"numpy\.where\(mask, x, 0\)"), session.capture():
        x[x[:, 0] > 3]


@pytest.mark.parametrize(
    ("take", "text"),
    [
        (lambda x: x[x[:5] > 0], r"mask of shape \(5,\) is for such axes, got \(20,\)"),
        (lambda x: np.nonzero(x[0]), r"numpy\.atleast_1d"),
        (lambda x: np.compress([[True]], x), "a condition of one axis"),
        (lambda x: np.compress([True] * 21, x), "condition of 21 is longer than axis 0"),
        (lambda x: np.compress([True], x, out=np.ones(1)), "into out"),
    ],
)
def test_what_is_no_mask_is_refused(session, take, text):
    """By what was expected and what came."""
    with pytest.raises(ConfigError, match=text):
        take(session.distribute(np.arange(20.0), placement="S[0]"))


def test_parts_that_overlap_are_refused_by_name(session):
    """With the placements that would do."""
    spec = PlacementSpec.explicit(0, [(0, 4), (2, 6), (4, 8), (6, 8)])
    x = session.distribute(np.arange(8.0), placement=Placement([spec]))
    with pytest.raises(ConfigError, match="taking by a mask has no rule for a tensor that lies as"):
        x[np.arange(8) > 1]


def test_in_an_event_loop_what_a_mask_takes_is_awaited():
    """By the line that the error names; for a mask of the client's nothing is waited for."""
    whole = np.arange(20.0)

    async def program():
        async with await asyncio.to_thread(ThreadedSession, 2) as session:
            x = session.distribute(whole, placement="S[0]")
            known = x[whole > 3]
            with pytest.raises(WouldBlock, match=r"await asyncio.to_thread\(x.__getitem__, mask\)"):
                _ = x[x > 3]
            found = await asyncio.to_thread(x.__getitem__, x > 3)
            (places,) = await asyncio.to_thread(np.nonzero, x > 17)
            return await known, await found, await places

    for found, wanted in zip(asyncio.run(program()), (whole[4:], whole[4:], [18, 19]), strict=True):
        np.testing.assert_array_equal(found, wanted)
