"""numpy's reductions: with a mask, a first value, and the axes kept, of any placement."""

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, DtypeError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "sum, where": lambda m, x, y: m.sum(x, where=x > 0),
    "sum, where along an axis": lambda m, x, y: m.sum(x, axis=1, where=y > 2, keepdims=True),
    "sum, a row as the mask": lambda m, x, y: m.sum(
        x, axis=0, where=np.array([True, False, True, True])
    ),
    "sum, initial": lambda m, x, y: m.sum(x, axis=0, initial=3),
    "sum, both": lambda m, x, y: m.sum(x, initial=2, where=x > 0, dtype="complex128"),
    "prod": lambda m, x, y: m.prod(x[:2], axis=0, initial=2, where=y[:2] != 0),
    "max": lambda m, x, y: m.max(x, axis=1, initial=4),
    "max, where": lambda m, x, y: m.max(x, axis=0, initial=-5, where=x < 3),
    "max, of nothing": lambda m, x, y: m.max(x[:0], axis=0, initial=7),
    "min": lambda m, x, y: m.min(x, initial=-20, where=y > 0, keepdims=True),
    "amax": lambda m, x, y: m.amax(x, axis=(0, 1), keepdims=True),
    "amin": lambda m, x, y: m.amin(x, 1),
    "any": lambda m, x, y: m.any(x, axis=0, where=y > 5),
    "all": lambda m, x, y: m.all(x, axis=1, where=y > 5, keepdims=True),
    "mean": lambda m, x, y: m.mean(x, axis=0, where=y > 0),
    "mean, all": lambda m, x, y: m.mean(x, where=y > 0, keepdims=True),
    "var": lambda m, x, y: m.var(x, axis=1, ddof=1, where=y != 3),
    "std": lambda m, x, y: m.std(x, axis=0, where=y > -5, keepdims=True),
    "var, none left": lambda m, x, y: m.var(x, axis=1, ddof=1, where=np.arange(4) < 1),
    "argmax, kept": lambda m, x, y: m.argmax(y, axis=0, keepdims=True),
    "argmin, all kept": lambda m, x, y: m.argmin(y, keepdims=True),
    "nanargmax": lambda m, x, y: m.nanargmax(x, axis=1),
    "nanargmin": lambda m, x, y: m.nanargmin(x, keepdims=True),
    "nansum": lambda m, x, y: m.nansum(x, axis=0, where=y > 0, initial=1),
    "nanprod": lambda m, x, y: m.nanprod(x, axis=1, initial=2),
    "nanmax": lambda m, x, y: m.nanmax(x, axis=0, initial=0, where=y < 9),
    "nanmin": lambda m, x, y: m.nanmin(x, axis=1, keepdims=True),
    "nanmean": lambda m, x, y: m.nanmean(x, axis=1, where=y > 0),
    "nanvar": lambda m, x, y: m.nanvar(x, axis=1, ddof=1, where=y > -4),
    "nanstd": lambda m, x, y: m.nanstd(x, axis=0, ddof=6),
    "add.reduce": lambda m, x, y: np.add.reduce(x, axis=1, where=y > 0, initial=1),
    "maximum.reduce": lambda m, x, y: np.maximum.reduce(x, initial=2),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize(
    ("placement", "dtype"), placed(PLACEMENTS, ["float64", "float32", "int16", "bool"])
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("settled")
def test_the_result_is_numpys(session, name, placement, dtype):
    """Values, shape and dtype, wherever the tensors lie; what numpy refuses is refused."""
    check_call(session, CALLS[name], matrices(dtype, nan=True), placement)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: np.sum(x, where=np.arange(4)), DtypeError, "a mask of bool"),
        (lambda x: np.sum(x, where=np.ones((2, 7, 4), bool)), ConfigError, "is no mask of"),
        (lambda x: np.max(x, where=x > 0), ConfigError, "needs an initial value"),
        (lambda x: np.sum(x, initial=np.ones(4)), ConfigError, "a number as the initial value"),
        (lambda x: np.var(x, mean=x), ConfigError, "finds the mean itself"),
        (lambda x: np.argmax(x, axis=2), ConfigError, "no axis 2"),
        (lambda x: np.mean(x, out=x), ConfigError, "cannot write"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64", nan=True)[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)
