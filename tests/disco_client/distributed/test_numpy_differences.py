"""numpy's differences of neighbours, and integrals: as numpy's, of any placement."""

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, DtypeError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "gradient": lambda m, x, y: m.gradient(x),
    "gradient, an axis": lambda m, x, y: m.gradient(x, axis=0),
    "gradient, a distance": lambda m, x, y: m.gradient(x, 0.5, axis=1),
    "gradient, distances": lambda m, x, y: m.gradient(x, 2, 0.25),
    "gradient, second order": lambda m, x, y: m.gradient(x, axis=0, edge_order=2),
    "gradient, places": lambda m, x, y: m.gradient(x, [0, 1, 3, 4, 8, 9, 11], axis=0),
    "gradient, places, second order": lambda m, x, y: m.gradient(
        x, [0, 1, 3, 4.5], axis=1, edge_order=2
    ),
    "gradient, even places": lambda m, x, y: m.gradient(x, np.arange(7) * 2, [0, 1, 2, 4]),
    "gradient, two elements": lambda m, x, y: m.gradient(x[:2], axis=0),
    "ediff1d": lambda m, x, y: m.ediff1d(x),
    "ediff1d, ends": lambda m, x, y: m.ediff1d(x, to_begin=7, to_end=[1, 2]),
    "trapezoid": lambda m, x, y: m.trapezoid(x),
    "trapezoid, an axis": lambda m, x, y: m.trapezoid(x, dx=0.5, axis=0),
    "trapezoid, places": lambda m, x, y: m.trapezoid(x, x=[0, 1, 3, 7]),
    "trapezoid, on the workers": lambda m, x, y: m.trapezoid(x, y, axis=0),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize(
    ("placement", "dtype"), placed(PLACEMENTS, ["float64", "float32", "int16", "complex64"])
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("settled")
def test_the_result_is_numpys(session, name, placement, dtype):
    """Values, shape and dtype, wherever the tensors lie; what numpy refuses is refused."""
    check_call(session, CALLS[name], matrices(dtype), placement)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: np.gradient(x, edge_order=3), ConfigError, r"1 or 2"),
        (lambda x: np.gradient(x > 0), DtypeError, r"expected numbers"),
        (lambda x: np.gradient(x, 1, 2, 3), ConfigError, r"one for each of 2 axes"),
        (lambda x: np.gradient(x, [1, 2], axis=0), ConfigError, r"places of 7 elements"),
        (lambda x: np.gradient(x[:1], axis=0), ConfigError, r"has no 2 elements"),
        (lambda x: np.gradient(x, x[0], axis=1), ConfigError, r"the client knows"),
        (lambda x: np.ediff1d(x.astype("int16"), to_end=1.5), DtypeError, r"does not become"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64")[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)
