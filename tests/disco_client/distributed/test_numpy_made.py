"""``session.numpy``: names that make tensors of none, and those that numpy does not dispatch."""

import numpy as np
import pytest
from numpy_examples import agrees

from disco_client import ConfigError, DtypeError, ThreadedSession

MADE = {
    "logspace": lambda m: m.logspace(0, 3, 7),
    "logspace, open": lambda m: m.logspace(0, 3, 7, endpoint=False, base=2, dtype="float32"),
    "geomspace": lambda m: m.geomspace(1, 1000, 7),
    "geomspace, down": lambda m: m.geomspace(-256, -1, 9),
    "geomspace, integers": lambda m: m.geomspace(1, 256, 9, dtype="int64"),
    "geomspace, open": lambda m: m.geomspace(2, 9, 5, endpoint=False),
    "geomspace, one": lambda m: m.geomspace(2, 9, 1),
    "bartlett": lambda m: m.bartlett(8),
    "blackman": lambda m: m.blackman(7),
    "hamming": lambda m: m.hamming(1),
    "hanning": lambda m: m.hanning(0),
    "kaiser": lambda m: m.kaiser(9, 4.5),
    "tril_indices": lambda m: m.tril_indices(4),
    "tril_indices, above": lambda m: m.tril_indices(4, 2, 3),
    "tril_indices, below": lambda m: m.tril_indices(5, -2),
    "tril_indices, none": lambda m: m.tril_indices(3, -5),
    "triu_indices": lambda m: m.triu_indices(4, 1, 6),
    "triu_indices, all": lambda m: m.triu_indices(3, -9),
    "triu_indices, of nothing": lambda m: m.triu_indices(0),
    "diag_indices": lambda m: m.diag_indices(4, 3),
    "asanyarray": lambda m: m.asanyarray([[1, 2], [3, 4]], "float32"),
    "ascontiguousarray": lambda m: m.ascontiguousarray(3.0),
    "asfortranarray": lambda m: m.asfortranarray([1, 2]),
    "asarray_chkfinite": lambda m: m.asarray_chkfinite([1.0, 2]),
    "require": lambda m: m.require([1, 2], "float64", ["C", "W"]),
    "frombuffer": lambda m: m.frombuffer(b"abcdef", "uint8", offset=1),
    "fromiter": lambda m: m.fromiter((each**2 for each in range(5)), "int32"),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize("placement", [None, "R", "S[0]"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_numpys(session, name, placement):
    """Values, shape and dtype, of any placement."""
    xp = session.numpy if placement is None else session.numpy(placement=placement)
    got, want = MADE[name](xp), MADE[name](np)
    assert agrees(got, want), f"got {got!r}, expected {want!r}"


def test_a_call_names_a_placement(session):
    """As those of zeros and the like do."""
    assert str(session.numpy.hanning(9, placement="R").placement) == "R"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.logspace([0, 1], 3), ConfigError, "numbers as its ends"),
        (lambda m: m.geomspace(0, 3), ConfigError, "leads to 0"),
        (lambda m: m.geomspace(-1, 3), ConfigError, "different signs"),
        (lambda m: m.geomspace([1, 2], 3), ConfigError, "geomspace on the workers takes"),
        (lambda m: m.hanning("a"), DtypeError, "a number of points"),
        (lambda m: m.hanning(), ConfigError, "missing"),
        (lambda m: m.require([1], requirements="F"), ConfigError, "C order"),
        (lambda m: m.asanyarray([1], like=3), ConfigError, "has no like"),
        (lambda m: m.asarray_chkfinite([1, np.nan]), ValueError, "infs or NaNs"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name."""
    with pytest.raises(error, match=text):
        call(session.numpy)


def test_what_the_client_answers(session):
    """By dtypes and shapes, or as text of the values, which are fetched."""
    xp = session.numpy
    whole = np.arange(6.0).reshape(2, 3)
    x = session.distribute(whole, placement="S[1]")
    assert np.result_type(x, np.int8) == np.result_type(whole, np.int8)
    assert np.can_cast(x, "complex64") == np.can_cast(whole, "complex64")
    assert np.common_type(x, x.astype("complex64")) == np.complex128
    assert np.min_scalar_type(x) == np.dtype("float64")
    with pytest.raises(ConfigError, match="follows from it"):
        np.min_scalar_type(x[0, 0])
    assert (np.iscomplexobj(x), np.isrealobj(x)) == (False, True)
    assert (xp.isscalar(x), xp.isscalar(3), xp.isfortran(x)) == (False, True, False)
    assert (xp.iterable(x), xp.iterable(x[0, 0]), xp.iterable([1])) == (True, False, True)
    assert np.einsum_path("ij,kj->ik", x, x) == np.einsum_path("ij,kj->ik", whole, whole)
    for name in ("array2string", "array_repr", "array_str"):
        assert getattr(np, name)(x) == getattr(np, name)(whole)
    assert xp.format_float_positional(x[1, 1], precision=3) == "4."
    assert xp.base_repr(x.astype("int64")[1, 2], 3) == "12"
    got = np.apply_over_axes(np.sum, x, [0, -1])
    np.testing.assert_array_equal(got.numpy(), np.apply_over_axes(np.sum, whole, [0, -1]))
    with pytest.raises(ConfigError, match="expected a result of 2 or 1 axes"):
        np.apply_over_axes(lambda a, _: a[None], x, 0)


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P"])
def test_methods_of_ufuncs_are_numpys(session, placement):
    """``outer``, and ``matvec`` and the like where numpy has them."""
    a, b = np.arange(12.0).reshape(4, 3), np.arange(3.0) + 1j
    x, v = session.distribute(a, placement=placement), session.distribute(b, placement="S[0]")
    np.testing.assert_allclose(np.subtract.outer(x, v).numpy(), np.subtract.outer(a, b))
    np.testing.assert_allclose(np.add.outer(x, 2).numpy(), np.add.outer(a, 2))
    for name, ours, theirs in (
        ("matvec", (x, v), (a, b)),
        ("matvec", (x, x[:, None]), (a, a[:, None])),
        ("vecmat", (v, x.T), (b, a.T)),
        ("vecmat", (x[:, None, :], x.T), (a[:, None, :], a.T)),
        ("vecdot", (x, v), (a, b)),
    ):
        if hasattr(np, name):
            ufunc = getattr(np, name)
            np.testing.assert_allclose(ufunc(*ours).numpy(), ufunc(*theirs))
