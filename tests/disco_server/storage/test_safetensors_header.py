"""Headers of safetensors files: real ones from the format's own library, and malformed ones."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save, save_file

from disco_server.storage.files import DataFile, FileError
from disco_server.storage.safetensors import read_header

GOOD = {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]}


def safetensors_bytes(header, data=b""):
    """A file of that format, whatever the header is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def read(path):
    with DataFile(path, ("*",)) as file:
        return read_header(file)


def test_what_the_library_wrote_is_read(tmp_path):
    """Names, shapes, dtypes and bytes; metadata are no tensor."""
    tensors = {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones((3,), ml_dtypes.bfloat16),
        "c": np.array(7, np.int64),
        "d": np.zeros((0, 5), np.float16),
        "e": np.array([True, False]),
        "f": np.ones((5, 1), ml_dtypes.float8_e4m3fn),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "np"})
    records = {record.name: record for record in read(path)}
    raw = path.read_bytes()
    assert records.keys() == tensors.keys()
    for name, tensor in tensors.items():
        record = records[name]
        assert (record.shape, record.dtype) == (tensor.shape, tensor.dtype.name)
        assert raw[record.offset : record.offset + record.nbytes] == tensor.tobytes()


def test_dtypes_that_share_bytes_are_known_but_cannot_be_loaded(write):
    """So that the others of the file still can."""
    header = {"x": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    (record,) = read(write(safetensors_bytes(header, b"12")))
    assert (record.dtype, record.stored) == ("", "F4")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "expected a safetensors file, this one has 0 bytes"),
        (b"1234567", "expected a safetensors file, this one has 7 bytes"),
        (b"\xff" * 16, "expected a header within its 16 bytes, it says 18446744073709551615"),
        (safetensors_bytes(b"{}")[:-1], "expected a header within its 9 bytes, it says 2"),
        (safetensors_bytes(b"[]"), "expected a JSON object"),
        (safetensors_bytes(b"{}", b"x"), "its tensors have 0 bytes, the file has 1 for them"),
        (safetensors_bytes({"x": GOOD}, b"123"), "tensor 'x': expected bytes between"),
        (safetensors_bytes({"x": GOOD}, b"12345"), "its tensors have 4 bytes, the file has 5"),
        (safetensors_bytes({"x": 3}), "tensor 'x': expected its dtype, shape and data_offsets"),
        (safetensors_bytes({"x": {**GOOD, "dtype": "U9"}}), "expected a dtype such as 'F32', got"),
        (safetensors_bytes({"x": {**GOOD, "dtype": []}}), "expected a dtype such as 'F32', got"),
        (safetensors_bytes({"x": {**GOOD, "shape": [2, -2]}}), "expected a shape"),
        (safetensors_bytes({"x": {**GOOD, "shape": [2, 3]}}), r"U8\[2, 3\] does not fit its 4"),
        (safetensors_bytes({"x": {**GOOD, "shape": [1 << 62, 1 << 62]}}), "expected a shape"),
        (safetensors_bytes({"x": {**GOOD, "data_offsets": [4, 0]}}), "expected data_offsets"),
        (safetensors_bytes({"x": {**GOOD, "data_offsets": [0]}}), "expected data_offsets"),
        (safetensors_bytes({"x": {**GOOD, "data_offsets": [0, 4.0]}}), "expected data_offsets"),
        (
            safetensors_bytes({"x": GOOD, "y": {**GOOD, "data_offsets": [2, 6]}}, b"123456"),
            "tensor 'y': its bytes overlap those of 'x'",
        ),
        (
            safetensors_bytes({"x": GOOD, "y": {**GOOD, "data_offsets": [6, 10]}}, b"0123456789"),
            "its tensors have 8 bytes, the file has 10",
        ),
    ],
)
def test_a_malformed_file_is_refused_by_name(write, content, problem):
    """File, tensor, and what is wrong, before anything is read or allocated."""
    path = write(content)
    with pytest.raises(FileError, match=problem) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))


def library_accepts(path):
    try:
        with safe_open(path, "np") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except SafetensorError:
        return None


def ours_accepts(path):
    try:
        return {record.name: list(record.shape) for record in read(path)}
    except FileError:
        return None


@given(data=st.data())
@settings(max_examples=300)
def test_damaged_files_are_refused_like_the_library_does(tmp_path, data):
    """Whatever is changed: an answer or a typed error, never more than the library accepts."""
    raw = bytearray(save({"one": np.arange(4, dtype=np.int16), "two": np.ones((2, 3), np.float32)}))
    end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["change", "cut", "insert", "digit"]))
        at = data.draw(st.integers(0, min(end, len(raw)) - 1)) if raw else 0
        if kind == "cut":
            del raw[data.draw(st.integers(0, len(raw))) :]
        elif kind == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=3))
        elif raw:
            digits = [i for i, byte in enumerate(raw[8:end], 8) if chr(byte).isdigit()]
            where = data.draw(st.sampled_from(digits)) if kind == "digit" and digits else at
            raw[where] = data.draw(st.sampled_from(b'0123456789-{}[]",:eE.tfn \x00\xff'))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw)
    got = ours_accepts(path)
    assert got is None or got == library_accepts(path)


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=3)


@given(tensors=st.dictionaries(names, shapes, max_size=5), pad=st.integers(0, 9))
def test_good_files_are_read_as_the_library_does(tmp_path, tensors, pad):
    """Any names that JSON can write, any shapes, padded headers."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    path = tmp_path / "good.safetensors"
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(safetensors_bytes(text, bytes(at)))
    sendable = all(not 0xD800 <= ord(letter) < 0xE000 for name in tensors for letter in name)
    assert ours_accepts(path) == (tensors if sendable else None)
    if sendable:
        assert library_accepts(path) == tensors
