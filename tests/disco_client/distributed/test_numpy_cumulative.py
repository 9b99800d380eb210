"""numpy's running sums and products: as numpy's, of any placement."""

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "cumsum": lambda m, x, y: m.cumsum(x, axis=0),
    "cumprod": lambda m, x, y: m.cumprod(y[:4] % 3, axis=0),
    "cumprod, an axis": lambda m, x, y: m.cumprod(x, axis=1),
    "cumprod, a dtype": lambda m, x, y: m.cumprod(y[0], dtype="float64"),
    "nancumsum": lambda m, x, y: m.nancumsum(x, axis=0),
    "nancumprod": lambda m, x, y: m.nancumprod(x[:3], axis=1),
    "nancumsum, all": lambda m, x, y: m.nancumsum(x),
    "cumulative_sum": lambda m, x, y: m.cumulative_sum(x, axis=0, include_initial=True),
    "cumulative_prod": lambda m, x, y: m.cumulative_prod(x[0], include_initial=True),
    "maximum.accumulate": lambda m, x, y: np.maximum.accumulate(x),
    "minimum.accumulate": lambda m, x, y: np.minimum.accumulate(x, axis=1),
    "add.accumulate": lambda m, x, y: np.add.accumulate(x),
    "multiply.accumulate": lambda m, x, y: np.multiply.accumulate(x[:4], axis=0),
    "unwrap": lambda m, x, y: m.unwrap(y * 1.7, axis=0),
    "unwrap, a period": lambda m, x, y: m.unwrap(y * 3, period=4),
    "unwrap, an odd period": lambda m, x, y: m.unwrap(y * 3, period=7, axis=0),
    "unwrap, discont": lambda m, x, y: m.unwrap(y * 2.5, discont=4),
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
        (lambda x: np.cumsum(x, axis=2), ConfigError, "no axis 2"),
        (np.cumulative_sum, ConfigError, "expected an axis"),
        (lambda x: np.cumprod(x, out=x), ConfigError, "cannot write"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64", nan=True)[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)
