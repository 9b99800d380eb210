"""numpy's functions that compare, count or leave out NaN: as numpy's, of any placement."""

import warnings

import numpy as np
import pytest

from disco_client import ConfigError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P")
NAN, INF = np.nan, np.inf

CALLS = {
    "isclose": lambda m, x, y: m.isclose(x, y),
    "isclose, wider": lambda m, x, y: m.isclose(x, y, rtol=0.5, atol=2),
    "isclose, NaN": lambda m, x, y: m.isclose(x, y, equal_nan=True),
    "isclose, a number": lambda m, x, y: m.isclose(x, 3),
    "allclose": lambda m, x, y: m.allclose(x, y),
    "allclose, NaN": lambda m, x, y: m.allclose(x, x + 0, equal_nan=True),
    "array_equal": lambda m, x, y: m.array_equal(x, x + 0),
    "array_equal, NaN": lambda m, x, y: m.array_equal(x, x + 0, equal_nan=True),
    "array_equal, other shapes": lambda m, x, y: m.array_equal(x, y[:2]),
    "array_equiv": lambda m, x, y: m.array_equiv(y, y + 0),
    "array_equiv, a row": lambda m, x, y: m.array_equiv(y, y[0]),
    "array_equiv, other shapes": lambda m, x, y: m.array_equiv(x, y[:2]),
    "nansum": lambda m, x, y: m.nansum(x, axis=0),
    "nanprod": lambda m, x, y: m.nanprod(x, axis=1, keepdims=True),
    "nanmax": lambda m, x, y: m.nanmax(x, axis=0),
    "nanmin": lambda m, x, y: m.nanmin(x, axis=1),
    "nanmean": lambda m, x, y: m.nanmean(x, axis=0),
    "nanmean, all": lambda m, x, y: m.nanmean(x[:3]),
    "nanvar": lambda m, x, y: m.nanvar(x, axis=1, ddof=1),
    "nanstd": lambda m, x, y: m.nanstd(x, axis=0),
    "nan_to_num": lambda m, x, y: m.nan_to_num(x),
    "nan_to_num, given": lambda m, x, y: m.nan_to_num(x, nan=7, posinf=8, neginf=9),
    "count_nonzero": lambda m, x, y: m.count_nonzero(y),
    "count_nonzero, an axis": lambda m, x, y: m.count_nonzero(y, axis=0, keepdims=True),
    "ptp": lambda m, x, y: m.ptp(y),
    "ptp, an axis": lambda m, x, y: m.ptp(y, axis=1),
    "average": lambda m, x, y: m.average(y, axis=0),
    "average, weights": lambda m, x, y: m.average(y, weights=y * 0 + 2),
    "average, weights of an axis": lambda m, x, y: m.average(y, axis=1, weights=[1, 2, 3]),
    "average, and of how many": lambda m, x, y: m.average(y, axis=0, returned=True)[1],
    "average, and the weights": lambda m, x, y: m.average(
        y, axis=1, weights=[1, 2, 3], returned=True
    )[1],
    "cov": lambda m, x, y: m.cov(y),
    "cov, of columns": lambda m, x, y: m.cov(y, rowvar=False, bias=True),
    "cov, of two": lambda m, x, y: m.cov(y[0], y[1] * 2),
    "cov, weights": lambda m, x, y: m.cov(y, fweights=[1, 2, 3], aweights=[0.5, 1, 2]),
    "corrcoef": lambda m, x, y: m.corrcoef(y.T),
    "average, weights of all": lambda m, x, y: m.average(y, axis=(1, 0), weights=y.T * 0 + 3),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


def numbers(dtype):
    """A matrix with NaN, infinities and a column of nothing else than NaN; and another one."""
    y = np.arange(-6, 9).reshape(5, 3).astype(dtype)
    x = y.copy()
    if np.dtype(dtype).kind == "f":
        x[:, 1] = NAN
        x[1, 0], x[2, 2], x[3, 2] = NAN, INF, -INF
    return x, y


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "bool"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("settled")
def test_the_result_is_numpys(session, name, placement, dtype):
    """Values, shape and dtype; what numpy refuses of a dtype is refused."""
    a, b = numbers(dtype)
    if placement == "P" and dtype == "float32" and not np.isfinite(a).all():
        a = b.copy()
    x, y = (session.distribute(each, placement=placement) for each in (a, b))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = CALLS[name](np, a, b)
    except TypeError:
        with pytest.raises(TypeError):
            CALLS[name](np, x, y)
        return
    got = CALLS[name](np, x, y)
    assert got.shape == np.shape(want)
    assert got.dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[s]"])
def test_times_are_as_numpy_has_them(session, dtype):
    """NaT stays in where numpy leaves it in; where it does not, the dtype is refused."""
    whole = np.array([3, "NaT", 0, -2], dtype)
    x = session.distribute(whole, placement="S[0]")
    for name in ("count_nonzero", "nan_to_num", "ptp"):
        np.testing.assert_array_equal(getattr(np, name)(x).numpy(), getattr(np, name)(whole))
    for equal_nan in (False, True):
        got = np.array_equal(x, x, equal_nan=equal_nan)
        assert got.item() == np.array_equal(whole, whole, equal_nan=equal_nan)
    if dtype.startswith("m"):
        np.testing.assert_array_equal(np.nansum(x).numpy(), np.nansum(whole))
    for name in ("nanmax", "nanmin"):
        with pytest.raises(TypeError, match="takes no"):
            getattr(np, name)(x)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: np.average(x, weights=[1, 2]), "fit neither"),
        (lambda x: np.cov(x, fweights=x[0]), "takes weights that the client knows"),
        (lambda x: np.cov(x, aweights=[1, 2]), "a weight from 0 for each of 3 observations"),
        (lambda x: np.nanmean(x, dtype="float32"), "has the dtype of its operand"),
        (lambda x: np.nan_to_num(x, copy=False), "always makes another one"),
        (lambda x: np.nansum(x, out=x), "cannot write distributed tensors into out"),
    ],
)
def test_what_is_not_served_is_refused(session, call, text):
    """By its name."""
    x = session.distribute(numbers("float64")[1], placement="S[0]")
    with pytest.raises(ConfigError, match=text):
        call(x)
