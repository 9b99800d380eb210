"""Array-likes: which lose nothing as plain arrays, and what is said of the others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client import EncodingError
from disco_client.wire.array_likes import ArrayRefused, loss_of, plain_array, refuse_loss
from disco_client.wire.host_arrays import as_destination, as_host_array, as_numbers


class With(np.ndarray):
    """An array with attributes."""


def array_with(**attributes):
    array = np.arange(3.0).view(With)
    vars(array).update(attributes)
    return array


class Like:
    """Something of another library of which numpy makes an array."""

    def __init__(self, array=(1.0, 2.0), **attributes):
        self._array = array
        vars(self).update(attributes)

    def __array__(self, dtype=None, copy=None):
        """The array."""
        return self._array if isinstance(self._array, np.ndarray) else np.array(self._array)


class WithColumns(Like):
    """A table whose columns are its attributes, too."""

    dtypes = ()

    def __getattr__(self, name):
        if name in ("unit", "mask"):
            return Like()
        raise AttributeError(name)

    def items(self):
        """The columns."""
        return [("unit", Like()), ("mask", Like())]


class Arrow(Like):
    """A column that counts what it lacks."""

    null_count = 1

    def fill_null(self, value):
        """Fills it."""


class NAType:
    """What stands for what is missing."""


class Nullable(Like):
    """A column of a dtype that knows NA."""

    def __init__(self, lacks):
        super().__init__()
        self.dtype = type("Int64", (), {"na_value": NAType()})()
        self._lacks = lacks

    def isna(self):
        """Whether each is missing."""
        return np.array([False, self._lacks])

    def fillna(self, value):
        """Fills it."""


class Sparse:
    """Has no array."""

    def todense(self):
        """Makes one."""


class Touchy:
    """Raises for whatever it is asked."""

    @property
    def unit(self):
        """Raises."""
        raise RuntimeError("not now")


class Raising:
    """Cannot be made an array."""

    def __array__(self, dtype=None, copy=None):
        """Raises."""
        raise RuntimeError("densify me first")


REFUSED = {
    "mask": (np.ma.array([1.0, 2.0], mask=[0, 1]), r"numpy\.ma.*MaskedArray.*mask.*\.filled\("),
    "masked without axes": (np.ma.array(3.0, mask=True), "MaskedArray.*mask"),
    "masked, empty": (np.ma.array([]), "MaskedArray.*mask"),
    "masked record": (np.ma.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), "MaskedArray"),
    "mask of others": (array_with(mask=np.zeros(3)), "With.*mask"),
    "unit": (array_with(unit="m"), "With.*its unit would be lost"),
    "units": (array_with(units="m"), "With.*its units would be lost"),
    "like, unit": (Like(unit="m"), "Like.*its unit would be lost"),
    "like, mask": (Like(np.ma.array([1.0])), "MaskedArray.*mask"),
    "like, quantity": (Like(array_with(unit="m")), "With.*unit"),
    "nulls": (Arrow(), r"Arrow.*NA.*\.fill_null\("),
    "NA": (Nullable(lacks=True), r"Nullable.*NA.*\.fillna\(value\).*na_value"),
    "sparse": (Sparse(), r"Sparse.*sparse.*\.todense\(\)"),
    "raises": (Raising(), "Raising: densify me first"),
    "structured": (np.zeros(2, [("a", "i4")]), r"numpy\.ndarray.*structured.*x\['a'\]"),
    "records": (np.rec.array([(1,)], dtype=[("a", "i4")]), r"recarray.*structured.*x\['a'\]"),
    "bytes without a name": (np.zeros(2, "V4"), "numeric dtype.*V4.*numpy.ndarray"),
    "objects": (np.array([1, None]), "Python's objects"),
    "list": ([1.0, np.ma.masked], r"at \[1\]: .*MaskedConstant"),
    "tuple of lists": (([1.0], [array_with(unit="m")]), r"at \[1\]\[0\]: .*With.*unit"),
    "ragged": ([[1], [2, 3]], "expected what numpy makes an array of, got list"),
    "None": ([1, None], "expected an array of numbers"),
}
KEPT = {
    "plain": np.arange(3.0),
    "metadata": array_with(info="about it", unit=None, mask=None),
    "no attribute but a method": array_with(unit=len),
    "records of a plain dtype": np.arange(3.0).view(np.recarray),
    "bfloat16": np.zeros(2, ml_dtypes.bfloat16),
    "times": np.array(["2020"], "M8[s]"),
    "like": Like(),
    "like with the unit of its dtype": Like(
        np.array([5], "m8[ms]"), unit="ms", dtype=np.dtype("m8[ms]")
    ),
    "table": WithColumns(),
    "nothing lacks": Nullable(lacks=False),
    "scalar": np.float32(2),
    "number": 2.5,
    "list": [[1, 2.5], (np.float32(1), True)],
    "list of arrays": [np.zeros(2), np.ones(2)],
    "strings": ["a", "b"],
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_lose_its_meaning_is_refused(what):
    """By its type, with what would be lost, where it is, and the way round."""
    value, match = REFUSED[what]
    with pytest.raises(ArrayRefused, match=match):
        plain_array(value)
    with pytest.raises(EncodingError, match=match):
        as_host_array(value)


@pytest.mark.parametrize("what", KEPT)
def test_what_loses_nothing_is_a_plain_array(what):
    """The one that numpy makes of it."""
    found = plain_array(KEPT[what])
    assert type(found) is np.ndarray
    assert found.dtype == np.asarray(KEPT[what]).dtype
    np.testing.assert_array_equal(found, np.asarray(KEPT[what]))
    refuse_loss(KEPT[what])


def test_an_array_keeps_its_memory():
    """Nothing is copied, of a subclass either."""
    array, held = np.zeros(3), array_with()
    assert plain_array(array) is array
    assert np.shares_memory(plain_array(held), held)
    assert np.shares_memory(as_destination(held), held)


def test_what_is_no_array_has_nothing_to_lose():
    """Nor does an object that does not answer."""
    for value in (object(), Touchy(), None, "text", 5, {}, len):
        assert loss_of(value) == ""
        refuse_loss(value)


def test_a_list_without_an_end_is_refused():
    """As one that nests deeper than arrays have axes."""
    endless = [1.0]
    endless.append(endless)
    with pytest.raises(ArrayRefused):
        plain_array(endless)


@pytest.mark.parametrize("what", ["mask", "unit", "records", "structured"])
def test_nothing_is_copied_into_what_means_more(what):
    """A destination is refused as a source is."""
    with pytest.raises(ArrayRefused):
        as_destination(REFUSED[what][0])


def test_numbers_are_arrays_of_their_own_dtype():
    """Of Python's and of numpy's, and of none that could not travel."""
    for value, dtype in (
        (True, "bool"),
        (3, "int64"),
        (2.5, "float64"),
        (np.float16(2), "float16"),
        (np.uint64(2**63), "uint64"),
        (np.complex64(1j), "complex64"),
        (np.datetime64(5, "ms"), "M8[ms]"),
        (ml_dtypes.bfloat16(2), "bfloat16"),
    ):
        found = as_numbers(value)
        assert (found.dtype, found.shape) == (np.dtype(dtype), ())
        assert found[()] == value
    for value in (None, "text", b"", 2**63, np.str_("a"), np.bytes_(b"a"), [1], np.array([None])):
        assert as_numbers(value) is None
