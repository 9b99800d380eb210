"""numpy's functions of each element that are no ufuncs: as numpy's, of any placement."""

from contextlib import suppress

import numpy as np
import pytest
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, DtypeError, RemoteError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "real": lambda m, x, y: m.real(x),
    "imag": lambda m, x, y: m.imag(x),
    "angle": lambda m, x, y: m.angle(x),
    "angle, degrees": lambda m, x, y: m.angle(x, deg=True),
    "isreal": lambda m, x, y: m.isreal(x),
    "iscomplex": lambda m, x, y: m.iscomplex(x),
    "isneginf": lambda m, x, y: m.isneginf(1 / y),
    "isposinf": lambda m, x, y: m.isposinf(1 / y),
    "fix": lambda m, x, y: m.fix(x / 4),
    "sinc": lambda m, x, y: m.sinc(x),
    "i0": lambda m, x, y: m.i0(x),
    "interp": lambda m, x, y: m.interp(y, [-5, 0, 9], [1.0, 0, 3]),
    "interp, ends": lambda m, x, y: m.interp(y, [-5, 0, 9], [1.0, 0, 3], left=-1, right=7),
    "interp, a period": lambda m, x, y: m.interp(y, [1, 3], [1.0, 2], period=5),
    "interp, on the workers": lambda m, x, y: m.interp([0.5, 3], y[:, 0], y[:, 1]),
    "polyval": lambda m, x, y: m.polyval([1, -2, 3], x),
    "polyval, on the workers": lambda m, x, y: m.polyval(x[0], y),
    "isin": lambda m, x, y: m.isin(x, [1, 3, 5]),
    "isin, inverted": lambda m, x, y: m.isin(x, y[:2], invert=True),
    "select": lambda m, x, y: m.select([x == 1, y == 3], [x, y], 7),
    "select, numbers": lambda m, x, y: m.select([x == 1, x == 3], [1, 2.5]),
    "choose": lambda m, x, y: m.choose(np.arange(4) % 2, [x, y]),
    "modf": lambda m, x, y: m.modf(m.real(x) / 4),
    "frexp": lambda m, x, y: m.frexp(m.real(x) / 4),
    "divmod": lambda m, x, y: m.divmod(x, 3),
    "divmod, both": lambda m, x, y: m.divmod(7, m.where(y == 0, 1, y)),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize(
    ("placement", "dtype"), placed(PLACEMENTS, ["float64", "float32", "int16", "complex64"])
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:numpy.fix is deprecated")
@pytest.mark.usefixtures("settled")
def test_the_result_is_numpys(session, name, placement, dtype):
    """Values, shape and dtype, wherever the tensors lie; what numpy refuses is refused."""
    check_call(session, CALLS[name], matrices(dtype), placement)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: np.interp(x, [], []), ConfigError, r"as a table, got \[\(0,\)"),
        (lambda x: np.interp(x, [1, 2], [3]), ConfigError, "two equally long vectors"),
        (lambda x: np.polyval(x, x), ConfigError, "expected a vector"),
        (lambda x: np.choose(x, [x]), DtypeError, "integers to choose by"),
        (lambda x: np.choose(np.arange(4), [x], mode="else"), ConfigError, "as the mode"),
        (lambda x: np.select([x], [x]), DtypeError, "conditions of bool"),
        (lambda x: np.select([x > 0], [x, x]), ConfigError, "as many conditions"),
        (
            lambda x: np.unravel_index(x.astype("int64"), (2, 3), order="K"),
            ConfigError,
            "as the order",
        ),
        (
            lambda x: np.ravel_multi_index((x.astype("int64"),), (2, 3)),
            ConfigError,
            "for each of 2 axes",
        ),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64")[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
def test_positions_are_numpys(session, placement):
    """Of elements in a row along the axes, and the reverse."""
    at = np.arange(12).reshape(3, 4)
    for call in (
        lambda m, x: m.unravel_index(x, (2, 3, 2)),
        lambda m, x: m.unravel_index(x, (4, 3), order="F"),
        lambda m, x: m.ravel_multi_index((x % 3, x % 4), (3, 4)),
        lambda m, x: m.ravel_multi_index((x, x % 4), (3, 4), mode=("clip", "wrap")),
        lambda m, x: m.choose(x % 3, [x, -x, 5]),
        lambda m, x: m.choose(x, [1.5, 2], mode="wrap"),
        lambda m, x: m.choose([0, 1, 2, 1], x),
    ):
        check_call(session, call, [at], placement)


@pytest.mark.parametrize("placement", ["R", "S[0]"])
def test_days_are_numpys(session, placement):
    """Of business, between two dates, and so many later."""
    days = np.datetime64("2024-02-27") + np.arange(9)
    for call in (
        lambda m, x: m.is_busday(x),
        lambda m, x: m.is_busday(x, weekmask="1110000"),
        lambda m, x: m.busday_count(x, np.datetime64("2024-05-01")),
        lambda m, x: m.busday_offset(x, 3, roll="forward"),
    ):
        check_call(session, call, [days], placement)


def test_a_position_that_is_out_of_bounds_raises_where_it_is(session):
    """On the worker, as those of take do."""
    x = session.distribute(np.array([1, 9, 2]), placement="S[0]")
    for call in (lambda: np.unravel_index(x, (2, 3))[0], lambda: np.choose(x, [1, 2, 3])):
        with pytest.raises(RemoteError, match=r"index|invalid"):
            call().numpy()
        with suppress(RemoteError):  # unravel_index fails once for each of its results
            session.sync_all()
