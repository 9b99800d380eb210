"""The small types of the language, and the names under which dtypes travel."""

from __future__ import annotations

import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from disco_client import ConfigError, Device, DtypeError, Opaque, Shape, cpu, cuda, rocm
from disco_client.wire.values import (
    as_device,
    checked_dtype,
    device_of,
    dtype_from_name,
    dtype_name,
    extents_of,
)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", cpu()),
        ("cuda", cuda(0)),
        ("cuda:3", cuda(3)),
        ("rocm(1)", rocm(1)),
        (" cpu:0 ", cpu(0)),
    ],
)
def test_a_device_is_read_from_its_common_spellings(text, device):
    """The kind alone means index 0; colon and brackets are the same."""
    assert Device.parse(text) == device
    assert Device.parse(str(device)) == device


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0:1", "CPU"])
def test_other_spellings_of_a_device_are_refused(text):
    """The message shows what came and what would be right."""
    with pytest.raises(ConfigError, match="'cuda:0'") as refused:
        Device.parse(text)
    assert repr(text) in str(refused.value)


def foreign(**attributes):
    """An object with these attributes."""
    return SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("value", "device"),
    [
        (foreign(dlpack_device_type=lambda: 2, index=1), cuda(1)),
        (foreign(device_type=1, device_id=0, index=5), cpu()),
        (foreign(device_type=10, index=3), rocm(3)),
        (foreign(type="cpu", index=None), cpu()),
        (foreign(type="cuda", index=2), cuda(2)),
        (cuda(4), cuda(4)),
    ],
    ids=["dlpack", "ids", "index", "no-index", "named", "own"],
)
def test_devices_of_other_libraries_are_devices(value, device):
    """By DLPack's number of their kind, or by its name, as torch has it."""
    assert as_device(value) == device_of(value) == device


@pytest.mark.parametrize(
    "value",
    [
        5,
        "cuda",
        [1],
        SimpleNamespace,
        foreign(type="cuda"),
        foreign(type="x", index=0),
        np.zeros(2),
    ],
    ids=repr,
)
def test_other_objects_are_no_devices(value):
    """Nor are texts, which only an argument that must be a device reads."""
    assert as_device(value) is None
    if not isinstance(value, str):
        with pytest.raises(ConfigError, match="expected a device such as 'cpu' or 'cuda:0'"):
            device_of(value)


def test_a_device_that_no_worker_has_is_refused():
    """With the kinds that there are; None is each worker's own."""
    with pytest.raises(ConfigError, match="of kind cpu, cuda, rocm"):
        as_device(foreign(device_type=8, index=0))
    assert device_of(None) is None
    assert device_of("rocm:1") == rocm(1)


def test_a_shape_is_a_tuple_of_integers_of_any_kind():
    """Numpy's integers become Python's, and nothing negative or fractional comes in."""
    shape = Shape([np.int64(2), 3, np.uint8(4)])
    assert shape == (2, 3, 4)
    assert all(type(dim) is int for dim in shape)
    assert repr(shape) == "Shape([2, 3, 4])"
    assert Shape() == ()


@pytest.mark.parametrize(
    ("dims", "error"),
    [
        *(([2.0], DtypeError), ([True], DtypeError), (["2"], DtypeError)),
        ([np.ones(2)], DtypeError),
    ],
)
def test_a_wrong_dimension_is_refused_with_what_came(dims, error):
    """Before anything is sent."""
    with pytest.raises(error, match=re.escape(repr(dims[0]))):
        Shape(dims)


def test_a_shape_holds_negative_numbers_and_an_array_refuses_them():
    """As the original's, which are also lists of parents in a tree; extents are zero or more."""
    assert list(Shape([-1, 0, 0])) == [-1, 0, 0]
    assert extents_of([0, 2]) == Shape([0, 2])
    for refuse in (extents_of, lambda shape: checked_dtype(shape, "int8")):
        with pytest.raises(ConfigError, match="dimensions of zero or more, got -3"):
            refuse([2, -3])


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.dtype(kind) for kind in "?bBhHiIlLefdFD"),
        np.dtype(ml_dtypes.bfloat16),
        np.dtype(ml_dtypes.float8_e4m3fn),
        np.dtype(ml_dtypes.int4),
        np.dtype("datetime64[ns]"),
        np.dtype("U5"),
        np.dtype("S3"),
    ],
    ids=str,
)
def test_a_dtype_comes_back_from_its_name(dtype):
    """What travels as a name is the same dtype on the other side."""
    assert dtype_from_name(dtype_name(dtype)) == dtype


@pytest.mark.parametrize("dtype", [object, [("a", "i4")], ("f4", (2,)), "M8[s], O", "V8"], ids=str)
def test_dtypes_without_plain_elements_have_no_name(dtype):
    """Python objects, records, sub-arrays and bare bytes are refused."""
    with pytest.raises(ConfigError):
        dtype_name(np.dtype(dtype))


@pytest.mark.parametrize("name", ["float33", "", 5.5, "[('a', 'i4')]", "i4,i4"])
def test_what_names_no_dtype_is_refused(name):
    """With a message that shows it."""
    with pytest.raises(ConfigError):
        dtype_from_name(name)


def test_an_opaque_says_where_its_object_is():
    """Its text is for people."""
    assert str(Opaque("builtins.object", "<object>")) == (
        "<builtins.object on the worker: <object>>"
    )
