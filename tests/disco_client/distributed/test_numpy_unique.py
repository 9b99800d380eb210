"""Distributed tensors as sets: each value once, with numpy's indices, inverse and counts."""

import numpy as np
import pytest
from drawn_tensors import MESHES, same, shapes, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import CaptureError, ConfigError, ThreadedSession

DTYPES = ("int64", "uint8", "bool", "float32", "float64", "complex64", "datetime64[D]")


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(4) as shared:
        yield shared


@given(data=st.data())
@settings(max_examples=30)
def test_values_once_are_numpys(session, data):
    """With where each is first, where among them each element is, and how often each is there."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    x, whole = data.draw(tensors(session, data.draw(shapes()), mesh))
    x, whole = x % 4, whole % 4
    if data.draw(st.booleans()):
        x, whole = np.where(x == 3, np.nan, x), np.where(whole == 3, np.nan, whole)
    equal_nan = data.draw(st.booleans())
    made = np.unique(x, True, True, True, equal_nan=equal_nan)
    wanted = np.unique(whole, True, True, True, equal_nan=equal_nan)
    for got, want in zip(made, wanted, strict=True):
        same(got, want.reshape(got.shape))
    same(np.unique(x, equal_nan=equal_nan), wanted[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
def test_every_dtype_has_its_values_once(session, dtype, placement):
    """Halves of the range, negative numbers and dates alike."""
    whole = (np.arange(12).reshape(4, 3) % 5).astype(dtype)
    x = session.distribute(whole, placement=placement)
    same(np.unique(x), np.unique(whole))
    made, wanted = (np.unique(each, False, True, True) for each in (x, whole))
    for got, want in zip(made, wanted, strict=True):
        same(got, want.reshape(got.shape))
    same(np.union1d(x, whole[:2]), np.union1d(whole, whole[:2]))


def test_what_moves_is_what_the_workers_have_once(session):
    """A million elements of few values cost no more than those."""
    x = session.distribute(np.arange(10_000) % 3, placement="S[0]")
    made = np.unique(x)
    same(made, np.arange(3))
    assert sum(plan.nbytes for _, plan in made.origin.moves) <= 4 * 4 * 3 * 8


def test_rows_and_programs_are_refused(session):
    """By name; shapes of a captured program must not depend on data."""
    x = session.distribute(np.ones((4, 2)), placement="S[0]")
    with pytest.raises(ConfigError, match="takes no axis"):
        np.unique(x, axis=0)
    with pytest.raises(CaptureError), session.capture():
        np.unique(x)
