"""Values between this process and TVM, through TVM's own registry."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from disco_client import Device, Shape, cpu, cuda
from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.arrays import empty_array
from disco_server.modules.tvm import TvmFunction, find_global, from_tvm, runtime, served, to_tvm


@pytest.fixture
def echo():
    return find_global("testing.echo")


def through_tvm(func):
    """A function of ours as TVM has it, called from here."""
    return TvmFunction(runtime().convert(served(lambda: func)))


def aligned(values, dtype):
    array = empty_array(np.shape(values), np.dtype(dtype))
    array[...] = values
    return array


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        5,
        -(1 << 62),
        2.5,
        "text",
        "",
        b"bytes",
        Shape((2, 3)),
        Shape((-1, 0)),
        Shape(()),
        np.dtype("int8"),
        np.dtype(ml_dtypes.bfloat16),
        np.dtype("bool"),
        cpu(),
        cuda(1),
        Device("rocm", 2),
        [1, ["a", None], Shape((1,))],
        [],
        {"a": [1, {"b": 2.5}]},
    ],
)
def test_a_value_comes_back_as_it_went(echo, value):
    """The same type and the same content."""
    got = echo(value)
    assert got == value
    assert type(got) is type(value)


def test_small_kinds_arrive_as_their_nearest():
    """Tuples as lists, scalars of numpy as Python's numbers, whatever their dtype."""
    seen = through_tvm(lambda *args: [*args, [type(arg).__name__ for arg in args[1:]]])
    scalars = [np.int32(3), np.uint64((1 << 63) - 1), np.bool_(1), np.float32(0.5)]
    scalars += [np.float16(0.5), np.longdouble(0.5), ml_dtypes.bfloat16(0.5), ml_dtypes.int4(-3)]
    numbers = [3, (1 << 63) - 1, True, 0.5, 0.5, 0.5, 0.5, -3]
    names = ["int", "int", "bool", *["float"] * 4, "int"]
    assert seen((1, 2), *scalars) == [[1, 2], *numbers, names]
    assert seen(None, [np.int8(1)])[1] == [1]


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "int64", "uint16", "float16", "float32", "float64"),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ],
)
def test_arrays_share_their_memory_both_ways(echo, dtype):
    """What a function writes is seen here, and the other way round; nothing is copied."""
    array = aligned([[0, 1, 1], [1, 0, 1]], dtype)
    back = echo(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.shares_memory(back, array)
    through_tvm(lambda a: a.fill(1))(array)
    assert array.astype("float32").sum() == 6
    assert back.flags.writeable


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 4)])
def test_shapes_are_kept(echo, shape):
    """Those without an element or a dimension too."""
    array = aligned(np.ones(shape), "float32")
    assert echo(array).shape == shape


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(100, dtype="float32")[1:],
        np.arange(10, dtype=">i4"),
        aligned(np.arange(64), "int8")[3:],
    ],
)
def test_what_lies_askew_is_copied_and_written_back(array):
    """Compiled code takes whole vectors in order; what it writes is not lost."""
    array = array.copy(order="K") if array.flags.owndata else array
    expected = array * 2

    def double(got):
        assert got.flags.c_contiguous
        assert got.ctypes.data % 64 == 0
        got *= 2

    through_tvm(double)(array)
    np.testing.assert_array_equal(array, expected)


def test_what_cannot_be_written_is_copied(echo):
    """And stays as it is."""
    array = aligned([1, 2], "float32")
    array.flags.writeable = False
    got = echo(array)
    assert not np.shares_memory(got, array)
    through_tvm(lambda a: a.fill(7))(array)
    assert array.tolist() == [1, 2]


def test_a_result_outlives_what_made_it(echo):
    """An array holds the memory it looks at, and lets go of it in the end."""
    array = aligned(np.arange(1000), "float32")
    gone = weakref.ref(array.base)
    back = echo(array)
    del array
    gc.collect()
    assert back.sum() == 499500
    del back
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "value",
    [
        *(np.array(["text"]), np.array(["2020"], "datetime64[Y]"), np.array([1j])),
        *(np.datetime64(5, "ns"), np.complex64(1j), np.uint64(1 << 63)),
    ],
)
def test_dtypes_that_tvm_lacks_are_refused(echo, value):
    """By their name."""
    with pytest.raises(EncodingError, match="cannot be passed to TVM"):
        echo(value)
    with pytest.raises(EncodingError, match="TVM has no dtype"):
        to_tvm(np.dtype("datetime64[s]"), [])


def test_functions_travel_too(echo):
    """One of ours can be called from TVM, and one of TVM's from here."""
    apply = through_tvm(lambda func, value: func(value))
    assert apply(lambda value: value + 1, 4) == 5
    assert apply(echo, "x") == "x"
    assert isinstance(echo(echo), TvmFunction)


class OwnError(Exception):
    def __init__(self, text, field):
        super().__init__(text)
        self.field = field


def test_an_error_of_ours_keeps_its_type_through_tvm():
    """Also with fields that TVM knows nothing about."""

    def fail():
        raise OwnError("why", 7)

    with pytest.raises(OwnError, match="why") as raised:
        through_tvm(fail)()
    assert raised.value.field == 7
    assert raised.value.__traceback__ is not None


class ShyError(Exception):
    def __str__(self):
        raise RuntimeError("no comment")


def test_what_has_yet_to_run_is_no_result():
    """Where a function of TVM calls one of ours; nor is an array with a mask passed on."""
    call = TvmFunction(runtime().convert(served(lambda: lambda: (each for each in [1]))))
    with pytest.raises(ConfigError, match=r"returned a generator"):
        call()
    with pytest.raises(EncodingError, match=r"MaskedArray.*mask"):
        TvmFunction(runtime().convert(served(lambda: len)))(np.ma.array([1.0]))


def test_an_error_that_cannot_be_described_goes_through_too():
    """TVM is not asked to print it."""

    def fail():
        raise ShyError

    with pytest.raises(ShyError):
        through_tvm(fail)()


def test_keyword_arguments_are_refused(echo):
    """Functions of TVM have no names for their arguments."""
    with pytest.raises(EncodingError, match="no keyword arguments; got rate"):
        echo(1, rate=2)


def test_an_error_of_tvm_stays_what_it_is():
    """After an error of ours was caught on the way, another one is not taken for it."""
    inner = through_tvm(lambda: (_ for _ in ()).throw(OwnError("first", 1)))

    def outer():
        try:
            inner()
        except OwnError:
            find_global("testing.echo")(1, 2, 3, 4)
            raise ValueError("second") from None

    with pytest.raises(ValueError, match="second"):
        through_tvm(outer)()


def test_what_numpy_cannot_see_stays_tvm_s():
    """Such objects can still be passed on."""
    ffi = runtime()
    tensor = ffi.from_dlpack(aligned(np.zeros(8), "uint8"))
    view = ffi.get_global_func("runtime.TVMTensorCreateView")
    odd = view(tensor, ffi.Shape((2,)), ffi.dtype("float32x1"), 0)
    assert from_tvm(odd).shape == (2,)
    packed = view(tensor, ffi.Shape((8,)), ffi.dtype("int4"), 0)
    assert isinstance(from_tvm(packed), ffi.Tensor)
    assert to_tvm(from_tvm(packed), []) is not None
    assert from_tvm(ffi.dtype("handle")) == "handle"
