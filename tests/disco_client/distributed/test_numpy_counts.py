"""numpy's histograms, counts and searches among sorted numbers: as numpy's, of any placement."""

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, DtypeError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "histogram": lambda m, x, y: m.histogram(x),
    "histogram, bins": lambda m, x, y: m.histogram(x, 7),
    "histogram, a range": lambda m, x, y: m.histogram(x, 5, (-4, 11)),
    "histogram, edges": lambda m, x, y: m.histogram(x, [-5, 0, 1.5, 8]),
    "histogram, density": lambda m, x, y: m.histogram(x, 4, density=True),
    "histogram, weights": lambda m, x, y: m.histogram(x, 4, weights=y + 0.5),
    "histogram, none": lambda m, x, y: m.histogram(x[:0]),
    "histogram, one value": lambda m, x, y: m.histogram(x * 0, 3),
    "histogram, edges on the workers": lambda m, x, y: m.histogram(x, m.linspace(-9, 20, 7)),
    "histogram_bin_edges": lambda m, x, y: m.histogram_bin_edges(x, 6),
    "histogram_bin_edges, a range": lambda m, x, y: m.histogram_bin_edges(x, 6, (0, 1)),
    "histogram2d": lambda m, x, y: m.histogram2d(x[:, 0], y[:, 1], 3),
    "histogram2d, edges": lambda m, x, y: m.histogram2d(
        x[:, 0], y[:, 1], [[-9, 0, 9], [-5, 5, 20]]
    ),
    "histogram2d, ranges": lambda m, x, y: m.histogram2d(
        x[:, 0], y[:, 1], [2, 3], [[-9, 9], [0, 20]], density=True
    ),
    "histogramdd": lambda m, x, y: m.histogramdd(x[:, :3], 2),
    "histogramdd, mixed": lambda m, x, y: m.histogramdd(
        x[:, :2], [2, [-9, 0, 20]], weights=y[:, 0]
    ),
    "histogramdd, some ranges": lambda m, x, y: m.histogramdd(x[:, :2], 2, [None, (-3, 3)]),
    "searchsorted": lambda m, x, y: m.searchsorted(np.arange(-4, 9, 2), x),
    "searchsorted, right": lambda m, x, y: m.searchsorted(
        m.sort(y[:, 0]) if m is np else y[:, 0], x, "right"
    ),
    "searchsorted, a number": lambda m, x, y: m.searchsorted(y[:, 0], 3),
    "searchsorted, a sorter": lambda m, x, y: m.searchsorted(
        y[::-1, 0], x[0], sorter=np.arange(7)[::-1]
    ),
    "digitize": lambda m, x, y: m.digitize(x, [-3, 0, 1, 9]),
    "digitize, falling": lambda m, x, y: m.digitize(x, [9, 1, 0, -3], right=True),
    "digitize, on the workers": lambda m, x, y: m.digitize(x, y[:, 0]),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize(
    ("placement", "dtype"), placed(PLACEMENTS, ["float64", "float32", "int16"])
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
        (
            lambda x: np.histogram(x, "auto"),
            ConfigError,
            "number of bins that follows from the data",
        ),
        (lambda x: np.histogram(x, 0), ConfigError, "bins from 1"),
        (lambda x: np.histogram(x, [3, 1]), ConfigError, "edges that increase"),
        (lambda x: np.histogram(x, 3, (4, 1)), ConfigError, "from smaller to larger"),
        (lambda x: np.histogram(x, 3, weights=[1]), ConfigError, "do not fit"),
        (lambda x: np.histogramdd(x[:, 0]), ConfigError, "expected points"),
        (np.bincount, ConfigError, "expected a vector"),
        (lambda x: np.bincount(x[0]), DtypeError, "expected integers"),
        (lambda x: np.bincount(-x[0].astype("int64")), ConfigError, "numbers from 0, got -"),
        (lambda x: np.searchsorted(x, 1), ConfigError, "a vector to search"),
        (lambda x: np.digitize(x, [1, 3, 2]), ConfigError, "rise or fall"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64")[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_the_counts_of_numbers_are_numpys(session, placement, dtype):
    """With and without weights, and with a least length; the result waits for the largest."""
    whole = np.array([3, 0, 5, 3, 3, 1, 0]).astype(dtype)
    weights = np.arange(7) / 4
    for call in (
        lambda m, x, w: m.bincount(x),
        lambda m, x, w: m.bincount(x, minlength=9),
        lambda m, x, w: m.bincount(x[:0], minlength=2),
        lambda m, x, w: m.bincount(x, weights=w),
    ):
        check_call(session, call, [whole, weights], placement)


def test_no_element_moves_to_be_counted(session):
    """Only counts do, and the ends of the range."""
    x = session.distribute(np.arange(30000.0), placement="S[0]")
    found, _ = np.histogram(x, 8)
    assert str(found.placement) == "P[sum]"
    assert np.bincount(x.astype("int64") % 5).tolist() == [6000] * 5
    assert str(np.searchsorted(x, np.arange(4.0)).placement) == "P[sum]"
