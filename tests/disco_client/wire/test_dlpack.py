"""Arrays of other libraries as numpy's, by DLPack, and numpy's for other libraries."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from disco_client.errors import EncodingError
from disco_client.wire.codec import EncodedValue, decode_value, encode_value
from disco_client.wire.dlpack import exported, speaks_dlpack, view


class Library:
    """An array of a library that shares numpy's memory, and says of it what the test wants."""

    def __init__(self, array, device=(1, 0), options=True, capsule=None):
        self.array, self.device, self.options, self.capsule = array, device, options, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if options and not self.options:
            raise TypeError("unexpected keyword arguments")
        return self.capsule or exported(self.array).__dlpack__(**options)


def numbers():
    return np.arange(6, dtype="float32").reshape(2, 3)


def test_a_view_is_of_the_same_memory():
    """In both directions, whatever the strides."""
    array = np.arange(24.0).reshape(2, 3, 4)[:, ::-2, 1:].T
    seen = view(Library(array))
    assert np.shares_memory(seen, array)
    np.testing.assert_array_equal(seen, array)
    seen[0, 0, 0] = 99
    assert array[0, 0, 0] == 99


@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint64", "float16", "complex64"),
        *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    ],
)
def test_every_dtype_is_kept(dtype, shape):
    """Those of ml_dtypes too, which numpy does not write; also without elements."""
    array = np.ones(shape, getattr(ml_dtypes, dtype, dtype))
    seen = view(Library(array))
    assert (seen.dtype, seen.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(seen, array)


def test_memory_lives_as_long_as_its_view():
    """And no longer."""
    array = numbers()
    gone = weakref.ref(array)
    seen = view(Library(array))
    del array
    gc.collect()
    assert gone() is not None
    assert seen.sum() == 15
    del seen
    gc.collect()
    assert gone() is None


class Frozen(Library):
    """An array whose library gives numpy memory to read alone."""

    def __array__(self, *_args, **_options):
        frozen = self.array.view()
        frozen.flags.writeable = False
        return frozen


def test_memory_is_read_only_where_its_library_says_so():
    """Before DLPack 1 it can only say so to numpy, as jax does."""
    frozen = numbers()
    frozen.flags.writeable = False
    assert view(Library(numbers())).flags.writeable
    assert not view(Library(frozen)).flags.writeable
    assert view(Library(numbers(), options=False)).flags.writeable
    assert not view(Frozen(numbers(), options=False)).flags.writeable


class Recorded:
    """A tensor whose computation is recorded."""

    requires_grad = True
    __dlpack__ = __dlpack_device__ = None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Library(numbers(), device=(2, 0)), r"Library on cuda:0; copy it to the CPU"),
        (
            Library(numbers(), capsule="none"),
            "__dlpack__ of a .*Library to return a capsule, .*str",
        ),
        (Library(numbers().astype("U")), "Library cannot be shared: "),
        (Library(None, device=None), "Library does not say where it is: TypeError"),
        (Recorded(), r"Recorded that requires grad .* \.detach\(\)"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_words(value, reason):
    """With the type's name."""
    assert speaks_dlpack(value)
    with pytest.raises(EncodingError, match=reason):
        view(value)


def test_numpys_own_arrays_are_no_arrays_of_others():
    """Nor are its subclasses, nor what is no array."""
    others = (
        numbers(),
        np.ma.array([1, 2]),
        np.float32(1),
        5,
        None,
        [1],
        Library,
    )
    assert not any(map(speaks_dlpack, others))


def test_values_may_hold_arrays_of_other_libraries():
    """They arrive as numpy's."""
    encoded = EncodedValue()
    array = np.ones(3, ml_dtypes.bfloat16)
    encode_value(encoded, {"a": [Library(array), 5]})
    found, five = decode_value(encoded)["a"]
    assert (type(found), found.dtype, five) == (np.ndarray, array.dtype, 5)
