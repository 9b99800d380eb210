"""What every format's reader shares."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from disco_server.storage.files import (
    FileError,
    Record,
    check_layout,
    find_dtype,
    first_twice,
    is_count,
    parse_json,
    read_shape,
)

PATH = Path("/files/model")


def record(name, offset, nbytes):
    return Record(name, (nbytes,), "uint8", "uint8", PATH, offset, nbytes)


def test_dtypes_are_those_that_arrays_can_have():
    """Numpy's and ml_dtypes' numbers, nothing that holds objects or text."""
    assert find_dtype("float16") == np.float16
    assert find_dtype("bfloat16") == ml_dtypes.bfloat16
    assert find_dtype("float8_e8m0fnu") == ml_dtypes.float8_e8m0fnu
    assert [find_dtype(name) for name in ("int3", "object", "U8", "V4", "")] == [None] * 5


@pytest.mark.parametrize("value", [-1, 1 << 63, True, 1.0, "1", None])
def test_a_count_is_an_integer_that_a_file_may_have(value):
    """JSON has numbers of every size and kind."""
    assert not is_count(value)
    assert is_count(0)
    assert is_count((1 << 63) - 1)


def test_a_shape_is_a_list_of_counts():
    """And its product a number of elements that can exist."""
    assert read_shape([2, 3]) == (2, 3)
    assert read_shape([]) == ()
    assert read_shape([0, 1 << 60]) == (0, 1 << 60)
    for wrong in (None, 3, "23", [1.5], [-1], [True], [1] * 65, [1 << 40, 1 << 40, 0]):
        assert read_shape(wrong) is None


def test_tensors_lie_inside_their_file_and_apart():
    """Empty ones may lie anywhere inside."""
    check_layout(PATH, [record("b", 12, 4), record("a", 8, 4), record("e", 10, 0)], 8, 16)
    with pytest.raises(FileError, match=r"/files/model, tensor 'a': .* between 8 and 16, got 4 to"):
        check_layout(PATH, [record("a", 4, 4)], 8, 16)
    with pytest.raises(FileError, match="got 12 to 20"):
        check_layout(PATH, [record("a", 12, 8)], 8, 16)
    with pytest.raises(FileError, match="tensor 'b': its bytes overlap those of 'a'"):
        check_layout(PATH, [record("b", 11, 4), record("a", 8, 4)], 8, 16)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "expected JSON"),
        (b"{", "expected JSON"),
        (b"\xff{}", "expected JSON"),
        ("{}".encode("utf-16"), "expected JSON"),
        (b"[1]", "expected a JSON object, got a list"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is there twice"),
        (b'{"a": "\\ud800"}', "expected JSON"),
        (b'{"a":' + b"[" * 200_000, "expected JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "expected JSON"),
    ],
)
def test_json_is_read_strictly(text, problem):
    """What two readers could understand differently, or none can send on, is refused."""
    with pytest.raises(FileError, match=f"^/files/model: {problem}"):
        parse_json(PATH, text)


def test_json_of_an_object_is_a_dict():
    """From bytes and from text."""
    assert parse_json(PATH, b'{"a": [1]}') == parse_json(PATH, '{"a": [1]}') == {"a": [1]}


def test_the_first_name_that_comes_again_is_found():
    """Or none."""
    assert first_twice(["a", "b", "b", "a"]) == "b"
    assert first_twice("abc") is None
