"""Tables, quantities and sparse matrices of other libraries; `make interop` installs these."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import disco_client as di


def needs(library):
    """Skips what needs a library that is not installed."""
    missing = find_spec(library) is None
    return pytest.mark.skipif(missing, reason=f"needs {library}: `make interop`")


def column(values, dtype):
    return import_module("pandas").Series(values, dtype=dtype)


def table(values, dtype):
    return import_module("pandas").DataFrame({"unit": [1.0, 2.0], "a": column(values, dtype)})


def meters():
    return np.ones(2) * import_module("astropy.units").m


def masked_meters():
    return import_module("astropy.utils.masked").Masked(meters(), mask=[True, False])


def pint_meters(value):
    return value * import_module("pint").UnitRegistry().m


def sparse(kind):
    return getattr(import_module("scipy.sparse"), kind)(np.eye(2))


REFUSED = {
    "pandas": {
        "Int64": (lambda: column([1, None], "Int64"), "Series.*NA.*fillna.*na_value"),
        "Float64": (lambda: column([1.5, None], "Float64"), "Series.*NA"),
        "boolean": (lambda: column([True, None], "boolean"), "Series.*NA"),
        "string": (lambda: column(["a", None], "string"), "Series.*NA"),
        "extension array": (lambda: column([1, None], "Int64").array, "IntegerArray.*NA"),
        "index": (lambda: import_module("pandas").Index([1, None], dtype="Int64"), "Index.*NA"),
        "table": (lambda: table([1, None], "Int64"), "DataFrame.*NA"),
        "objects": (lambda: column([1, "a"], object), "Python's objects"),
        "zone": (
            lambda: import_module("pandas").date_range("2020", periods=2, tz="UTC"),
            "Python's objects",
        ),
    },
    "astropy": {
        "quantity": (meters, "Quantity.*unit.*to_value"),
        "one of it": (lambda: meters()[0], "Quantity.*unit.*to_value"),
        "in a list": (lambda: [meters(), meters()], r"at \[0\]: .*Quantity.*unit"),
        "mask": (masked_meters, "MaskedQuantity.*mask.*filled"),
    },
    "pint": {
        "quantity": (lambda: pint_meters(np.ones(2)), "Quantity.*units.*m_as"),
        "number": (lambda: pint_meters(3), "Quantity.*units.*m_as"),
    },
    "scipy": {
        "matrix": (lambda: sparse("csr_matrix"), "csr_matrix.*sparse.*toarray"),
        "array": (lambda: sparse("coo_array"), "coo_array.*sparse.*toarray"),
    },
}
TAKEN = {
    "NaN": lambda: column([1.0, None], "float64"),
    "nothing lacks": lambda: column([1, 2], "Int64"),
    "table": lambda: table([1, 2], "int64"),
    "times": lambda: import_module("pandas").date_range("2020", periods=2),
    "categories": lambda: import_module("pandas").Categorical([1, 2]),
    "sparse": lambda: import_module("pandas").arrays.SparseArray([0.0, 1.0]),
}


@pytest.fixture(scope="module")
def session():
    """One worker, as a thread."""
    with di.ThreadedSession(1) as session:
        yield session


@pytest.mark.parametrize("library", [pytest.param(each, marks=needs(each)) for each in REFUSED])
def test_what_would_lose_its_meaning_is_refused(session, library):
    """As a host array, an argument and an operand, by the name of its type."""
    x = session.distribute(np.ones(2), session.mesh(), "R")
    echo = session.get_global_func("builtins.list")
    for make, match in REFUSED[library].values():
        value = make()
        with pytest.raises(di.EncodingError, match=match):
            session.broadcast(value)
        with pytest.raises(di.EncodingError, match=match):
            session.distribute(value, session.mesh(), "R")
        with pytest.raises(di.EncodingError):
            echo([value])
        with pytest.raises((di.EncodingError, TypeError)):
            x.__add__(value) + 1
        with pytest.raises(di.EncodingError):
            np.add(x, value) if isinstance(value, np.ndarray) else session.scatter(value)


@needs("pandas")
@pytest.mark.parametrize("what", TAKEN)
def test_what_loses_nothing_is_taken(session, what):
    """As ``numpy.asarray`` takes it."""
    value = TAKEN[what]()
    found = session.copy_to_worker_0(value).numpy()
    assert type(found) is np.ndarray
    assert found.dtype == np.asarray(value).dtype
    np.testing.assert_array_equal(found, np.asarray(value))
