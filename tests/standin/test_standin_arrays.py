"""The stand-in's arrays refuse what the library's refuse."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest


def test_nothing_turns_into_numpy_silently(cupy):
    """Only `get` makes an array of the host."""
    array = cupy.arange(3)
    for convert in (np.asarray, np.array, lambda a: np.ones(3) + a, lambda a: a + np.ones(3)):
        with pytest.raises(TypeError):
            convert(array)
    assert not isinstance(array, np.ndarray)
    with pytest.raises(TypeError, match=r"Please use `\.get\(\)`"):
        array.__array__()


def test_arrays_of_numpy_are_not_assigned(cupy):
    """On the right of an assignment to a slice there are arrays of the device, or scalars."""
    array = cupy.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"non-scalar numpy\.ndarray"):
        array[:] = np.ones((2, 3), np.float32)
    array[0] = cupy.arange(3)
    array[1, 1:] = 7
    array[1, 0] = np.float64(2)

    assert array.tolist() == [[0, 1, 2], [2, 7, 7]]


def test_in_place_arithmetic_refuses_numpy(cupy):
    """So does what is written into an array by an operator."""
    array = cupy.zeros(3)
    with pytest.raises(TypeError, match="Unsupported type"):
        array += np.ones(3)
    array += 2
    array *= cupy.full(3, 3)

    assert array.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "dtype", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"]
)
def test_dtypes_of_kernels_are_taken(cupy, dtype):
    """Those that C++ on a device has."""
    host = np.array([0, 1, 1], dtype)

    assert cupy.asarray(host).get().tobytes() == host.tobytes()


def test_bfloat16_is_taken(cupy):
    """It computes, too."""
    array = cupy.ones(3, ml_dtypes.bfloat16) + cupy.ones(3, ml_dtypes.bfloat16)

    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype(np.float32).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "dtype", [object, "S3", "U2", "M8[s]", ">f4", ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
)
def test_other_dtypes_are_refused(cupy, dtype):
    """Neither allocated nor copied from the host."""
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.empty(3, dtype)
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.asarray(np.zeros(3, dtype))


def test_a_view_may_have_a_dtype_that_no_kernel_takes(cupy):
    """Its bytes can be copied, nothing can be computed."""
    host = np.arange(4, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn)
    array = cupy.asarray(host.view(np.uint8)).view(host.dtype)

    assert array.get().tobytes() == host.tobytes()
    with pytest.raises(ValueError, match="Unsupported dtype"):
        array + array


def test_numpys_functions_come_back_with_arrays_of_the_device(cupy):
    """By numpy's own protocols."""
    array = cupy.arange(6, dtype=np.float32).reshape(2, 3)
    for result in (
        np.matmul(array, array.T),
        np.exp(array),
        np.concatenate([array, array]),
        np.add.reduce(array),
        np.linalg.norm(array),
        array.sum(),
        array[0, 1],
    ):
        assert type(result) is cupy.ndarray
    assert np.array_equal(np.matmul(array, array.T).get(), [[5, 14], [14, 50]])


def test_views_share_memory_with_their_base(cupy):
    """And lie where they should."""
    array = cupy.zeros((4, 4), np.int32)
    view = array[1:3, ::2]
    view[...] = 5

    assert view.data.ptr == array.data.ptr + 16
    assert view.base is array
    assert array.sum().item() == 20
    assert cupy.shares_memory(array, view)
    assert not view.flags.owndata
    assert not view.flags["C_CONTIGUOUS"]
    assert array.T.flags.f_contiguous
    assert not hasattr(array.flags, "writeable")


def test_fresh_memory_is_junk(cupy):
    """Who forgets to fill an array finds no zeros."""
    assert cupy.empty(4, np.uint8).tolist() == [0xCB] * 4


def test_an_empty_array_has_no_address(cupy):
    """As in the library, where its pointer is zero."""
    array = cupy.empty((0, 3), np.float32)

    assert array.data.ptr == 0
    assert array.get().shape == (0, 3)


def test_device_addresses_are_no_host_addresses(cupy):
    """No buffer of the host is there."""
    array = cupy.arange(4, dtype=np.uint8)

    assert array.data.ptr > 1 << 60
    assert array.__cuda_array_interface__["data"] == (array.data.ptr, False)


def test_memory_is_limited(cupy, monkeypatch):
    """What does not fit is refused as by the library, and comes back when it was let go."""
    monkeypatch.setenv("STANDIN_MEMORY", "4096")
    array = cupy.zeros(3000, np.uint8)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="Out of memory allocating 2,048"):
        cupy.zeros(2000, np.uint8)
    assert cupy.get_default_memory_pool().used_bytes() == 3072
    del array

    assert cupy.zeros(2000, np.uint8).device.mem_info == (2048, 4096)


def test_arrays_go_through_pickle_and_copy(cupy):
    """By way of the host, and on the device."""
    array = cupy.arange(3)

    assert pickle.loads(pickle.dumps(array)).tolist() == [0, 1, 2]
    assert copy.deepcopy(array).data.ptr != array.data.ptr


def test_arrays_of_another_device_are_refused(cupy):
    """There is no peer access; a copy to the current device is possible."""
    array = cupy.arange(3)
    with cupy.cuda.Device(1):
        with pytest.raises(ValueError, match="Peer access is unavailable"):
            array + 1
        moved = array.copy()

    assert moved.device == cupy.cuda.Device(1)
    assert moved.get().tolist() == [0, 1, 2]


def test_comparing_with_what_is_no_number(cupy):
    """None equals no element; a list is refused."""
    array = cupy.arange(2)

    assert (array == None).tolist() == [False, False]  # noqa: E711
    assert (array != None).tolist() == [True, True]  # noqa: E711
    with pytest.raises(TypeError):
        array == [0, 1]  # noqa: B015
    with pytest.raises(TypeError):
        array < "a"  # noqa: B015
    with pytest.raises(ValueError, match="ambiguous"):
        bool(array)


def test_the_module_of_an_array_is_found(cupy):
    """By the library's own function."""
    assert cupy.get_array_module(cupy.zeros(1)) is cupy
    assert cupy.get_array_module(np.zeros(1)) is np
