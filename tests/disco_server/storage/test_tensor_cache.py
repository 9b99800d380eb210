"""tensor-cache.json: what is read of it, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.storage.files import FileError
from disco_server.storage.model_files import read_tensor_cache

PATH = Path("/models/m/tensor-cache.json")
TENSOR = {
    "name": "param_0",
    "shape": [2, 3],
    "dtype": "float16",
    "format": "raw",
    "nbytes": 12,
    "byteOffset": 4,
}
FILE = {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": 64, "records": [TENSOR]}
CACHE = {"metadata": {"ParamSize": 1}, "records": [FILE]}


def changed(file=(), tensor=()):
    """The metadata with other fields of the file, or of its one tensor."""
    return {"records": [{**FILE, "records": [{**TENSOR, **dict(tensor)}], **dict(file)}]}


def read(cache):
    return read_tensor_cache(PATH, json.dumps(cache))


def test_tensors_are_found_beside_the_json():
    """With dtype, shape, file and place."""
    (record,) = read(CACHE)
    assert (record.name, record.shape, record.dtype) == ("param_0", (2, 3), "float16")
    assert (record.file, record.offset, record.nbytes) == (
        Path("/models/m/params_shard_0.bin"),
        4,
        12,
    )


def test_narrow_records_of_float32_are_bfloat16_in_the_file():
    """Of other dtypes the same word means plain bytes, as the original writes it."""
    (record,) = read(changed(tensor={"dtype": "float32", "format": "f32-to-bf16"}))
    assert (record.dtype, record.stored) == ("float32", "bfloat16")
    (record,) = read(changed(tensor={"format": "f32-to-bf16"}))
    assert (record.dtype, record.stored) == ("float16", "float16")


def test_dtypes_that_arrays_cannot_have_are_kept_for_a_later_word():
    """The others of the file can still be loaded."""
    (record,) = read(changed(tensor={"dtype": "int3"}))
    assert (record.dtype, record.stored) == ("", "int3")


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ({}, "expected a list of data files"),
        ({"records": {}}, "expected a list of data files"),
        ({"records": [3]}, "expected a data file under 'dataPath', got None"),
        (changed(file={"dataPath": ""}), "expected a data file under 'dataPath'"),
        (changed(file={"dataPath": "a\0b"}), "expected a data file under 'dataPath'"),
        (changed(file={"format": "zip"}), "expected format 'raw-shard' of 'params_shard_0.bin'"),
        (changed(file={"nbytes": -1}), "expected the nbytes of 'params_shard_0.bin'"),
        (changed(file={"nbytes": 15}), "tensor 'param_0': expected bytes between 0 and 15"),
        (changed(file={"records": None}), "expected a list of the tensors in"),
        (changed(file={"records": [4]}), "expected the name of a tensor in"),
        (changed(file={"records": [TENSOR, TENSOR]}), "tensor 'param_0': its bytes overlap"),
        (
            changed(file={"records": [TENSOR, TENSOR | {"byteOffset": 32}]}),
            "tensor 'param_0': it is there twice",
        ),
        (changed(tensor={"name": ""}), "expected the name of a tensor"),
        (changed(tensor={"shape": [2.0]}), "tensor 'param_0': expected a shape"),
        (changed(tensor={"byteOffset": None}), "expected byteOffset and nbytes"),
        (changed(tensor={"nbytes": "12"}), "expected byteOffset and nbytes"),
        (changed(tensor={"nbytes": 13}), r"float16\[2, 3\] does not fit its 13 bytes"),
        (changed(tensor={"dtype": 7}), "expected a dtype such as 'float16', got 7"),
        (changed(tensor={"format": "lz4"}), "expected format 'raw' or 'f32-to-bf16', got 'lz4'"),
    ],
)
def test_malformed_metadata_are_refused_by_name(cache, problem):
    """The JSON file, the tensor, and what is wrong."""
    with pytest.raises(FileError, match=problem) as refused:
        read(cache)
    assert str(refused.value).startswith(str(PATH))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["file", "tensor"]),
    st.sampled_from(sorted(FILE | TENSOR)),
    json_values,
)
def test_any_value_in_any_field_is_read_or_refused(where, field, value):
    """Never another kind of error."""
    cache = copy.deepcopy(CACHE)
    place = cache["records"][0]
    (place if where == "file" else place["records"][0])[field] = value
    try:
        records = read(cache)
    except FileError:
        return
    assert all(record.offset + record.nbytes <= place["nbytes"] for record in records)
