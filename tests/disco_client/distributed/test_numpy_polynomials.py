"""numpy's convolutions of vectors, and polynomials: as numpy's, of any placement."""

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "convolve": lambda m, x, y: m.convolve(x[:, 0], [1, 2, 3]),
    "convolve, same": lambda m, x, y: m.convolve(x[:, 0], y[:3, 1], "same"),
    "convolve, valid": lambda m, x, y: m.convolve([1, 2, 3], x[:, 0], "valid"),
    "correlate": lambda m, x, y: m.correlate(x[:, 0], [1, 2, 3]),
    "correlate, full": lambda m, x, y: m.correlate(x[:, 0], y[:4, 0], "full"),
    "correlate, the longer last": lambda m, x, y: m.correlate([1, 2], x[:, 0], "same"),
    "vander": lambda m, x, y: m.vander(x[:, 0]),
    "vander, columns": lambda m, x, y: m.vander(x[:, 0], 3, increasing=True),
    "polyadd": lambda m, x, y: m.polyadd(x[:, 0], [1, 2]),
    "polyadd, longer": lambda m, x, y: m.polyadd([1, 2, 3, 4, 5], x[0]),
    "polysub": lambda m, x, y: m.polysub(x[:, 0], y[:3, 0]),
    "polyder": lambda m, x, y: m.polyder(x[:, 0]),
    "polyder, twice": lambda m, x, y: m.polyder(x[:, 0], 2),
    "polyint": lambda m, x, y: m.polyint(x[:, 0]),
    "polyint, constants": lambda m, x, y: m.polyint(x[:, 0], 2, [3, 4]),
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
        (lambda x: np.convolve(x, [1]), ConfigError, r"expected a vector"),
        (lambda x: np.convolve(x[0], []), ConfigError, r"that have elements"),
        (lambda x: np.convolve(x[0], [1], "else"), ConfigError, r"expected one of full"),
        (np.vander, ConfigError, r"expected a vector"),
        (lambda x: np.polyder(x[0], -1), ConfigError, r"an order from 0"),
        (lambda x: np.polyint(x[0], 3, [1, 2]), ConfigError, r"expected 3 constants"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64")[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)
