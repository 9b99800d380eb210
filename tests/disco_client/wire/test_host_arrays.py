"""Arrays of other libraries, as DLPack passes them."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from disco_client.errors import EncodingError
from disco_client.wire.codec import EncodedValue, decode_value, encode_value
from disco_client.wire.host_arrays import as_destination, as_host_array
from disco_server.modules.tvm import runtime


class Exporter:
    """An array of a library that is not numpy, with numpy's memory.

    Args:
        array: The memory.
        old: Whether the library knows only DLPack before 1.0.
        device: Where it says that the memory is.
    """

    requires_grad = False

    def __init__(self, array, *, old=False, device=(1, 0)):
        self.array, self.old, self.device = array, old, device

    def __dlpack__(self, **asked):
        if asked and self.old:
            raise TypeError(asked)
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.device


class Grown(np.ndarray):
    """An array that weak references may name."""


def tensor_of_tvm(array, shape, dtype):
    """An array's memory as a tensor of TVM."""
    pytest.importorskip("tvm_ffi")
    ffi = runtime()
    view = ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(ffi.from_dlpack(array), ffi.Shape(shape), ffi.dtype(dtype), 0)


@pytest.mark.parametrize("old", [False, True], ids=["dlpack-1", "before"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)[::2],
        np.array([True, False]),
        np.arange(5, dtype="uint16"),
        np.array([1 + 2j], "complex64"),
        np.array(7, "int8"),
        np.zeros((0, 3), "float16"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_the_memory_of_another_library_is_an_array(array, old):
    """Not copied, of any layout, and writable."""
    for take in (as_host_array, as_destination):
        taken = take(Exporter(array, old=old))
        assert type(taken) is np.ndarray
        assert (taken.dtype, taken.strides) == (array.dtype, array.strides)
        assert np.shares_memory(taken, array) or not array.size
        np.testing.assert_array_equal(taken, array)


def test_the_memory_lives_as_long_as_the_array():
    """The other library's array is kept by it, and let go with it."""
    array = np.arange(3).view(Grown)
    alive = weakref.ref(array)
    taken = as_host_array(Exporter(array))[1:]
    del array
    gc.collect()
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "int64"])
def test_a_tensor_of_tvm_keeps_its_dtype(dtype):
    """Also those that numpy's own reading of DLPack refuses, on the wire too."""
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    source = np.arange(4).astype(wanted)
    tensor = tensor_of_tvm(np.zeros(4, f"u{wanted.itemsize}"), (4,), dtype)
    as_destination(tensor)[...] = source
    taken = as_host_array(tensor)
    assert (taken.dtype, taken.tolist()) == (wanted, source.tolist())
    encoded = EncodedValue()
    encode_value(encoded, [tensor])
    (came,) = decode_value(encoded)
    assert (came.dtype, came.tolist()) == (wanted, source.tolist())


def _constant():
    array = np.zeros(2)
    array.flags.writeable = False
    return array


class Recording(Exporter):
    """A tensor that records gradients."""

    requires_grad = True


class Pieces(Exporter):
    """An array that cannot pass its memory, but copies itself."""

    def __dlpack__(self, **_asked):
        raise BufferError("in two pieces")

    def __array__(self, dtype=None, copy=None):
        return self.array


class Lost(Exporter):
    """An array that cannot be read at all."""

    __dlpack__ = Pieces.__dlpack__


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Recording(np.zeros(2)), r"requires grad.* \.detach\(\)"),
        (Exporter(np.zeros(2), device=(2, 1)), r"on cuda:1; copy it to the CPU"),
        (Exporter(np.zeros(2), device=(8, 0)), r"on device type 8:0; copy it to the CPU"),
        (Lost(np.zeros(2)), "in two pieces"),
    ],
    ids=["grad", "gpu", "other-device", "unreadable"],
)
def test_what_is_no_host_array_is_refused_with_the_way_on(array, message):
    """As a source and as a destination, and inside a value."""
    for take in (as_host_array, as_destination, lambda it: encode_value(EncodedValue(), [it])):
        with pytest.raises(EncodingError, match=message):
            take(array)


def test_a_dtype_of_less_than_a_byte_is_refused():
    """Numpy has none."""
    tensor = tensor_of_tvm(np.zeros(4, "uint8"), (8,), "int4")
    with pytest.raises(EncodingError, match="code 0 of 4 bits"):
        as_host_array(tensor)


def test_what_cannot_be_changed_is_no_destination():
    """A read-only array, and one that was only copied; as a source both serve."""
    for array in (Exporter(_constant()), Pieces(np.zeros(2)), _constant(), [0.0, 0.0], "text"):
        with pytest.raises(EncodingError, match="expected a writable array"):
            as_destination(array)
    for array in (Exporter(_constant()), Pieces(np.zeros(2))):
        assert as_host_array(array).tolist() == [0, 0]


def test_an_array_that_cannot_be_printed_is_a_destination():
    """As numpy cannot print times without a unit, and nothing has to be said of it."""
    array = np.zeros(1, "M8")
    assert as_destination(array) is array
