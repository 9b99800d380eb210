"""Numbers are counted in equal bins as numpy's histogram counts them, also those at an edge."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disco_client.wire.equal_bins import count_equal_bins

ENDS = st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float) | st.sampled_from([1e300, 5e-324, 1e16])


@given(ENDS, ENDS, st.integers(1, 200), st.integers(0, 2**31), st.sampled_from([0, 1, 1000, 70000]))
def test_counts_are_those_of_numpy(one, other, bins, seed, size):
    """Whatever the ends, for numbers anywhere between them, beyond them, at edges and nan."""
    ends = min(one, other), max(one, other)
    draw = np.random.default_rng(seed)
    low, high = ends
    x = low + (high - low) * draw.random(size)
    if seed % 2 and low < high:
        x = draw.choice(np.linspace(low, high, bins + 1), size)
        x = np.nextafter(x, draw.choice([-np.inf, x.max(initial=0), np.inf], size))
    if seed % 3 and low < high:
        x = np.clip(x, low, np.nextafter(high, low))
    elif seed % 5 == 0:
        x = np.append(x, np.nan)
    found = count_equal_bins(x, bins, ends)
    if found is not None:
        with np.errstate(all="ignore"):
            assert np.array_equal(found, np.histogram(x, bins, ends)[0])


def test_a_common_histogram_is_counted():
    """Of float64 between two ends the counts are found; of other dtypes numpy must find them."""
    x = np.random.default_rng(0).random(100_000)
    assert np.array_equal(count_equal_bins(x, 64, (0, 1)), np.histogram(x, 64, (0, 1))[0])
    assert count_equal_bins(x.astype("float32"), 64, (0, 1)) is None
    assert count_equal_bins(x, 64, (1, 1)) is None
