"""Headers of safetensors files, read by the library of the format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from disco_server.storage.files import DataFile
from disco_server.storage.safetensors import lay_out, read_header, stored_as

PLAIN = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]
OTHERS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4"]
PIECES = ["complex128", "M8[s]", "longdouble"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name)) if name in OTHERS else np.dtype(name)


def write(path, arrays):
    tensors = [(name, array.dtype, array.shape) for name, array in arrays.items()]
    layout = lay_out(tensors, {"of": "a test"})
    content = bytearray(layout.nbytes)
    content[: len(layout.head)] = layout.head
    for array, offset in zip(arrays.values(), layout.offsets, strict=True):
        content[offset : offset + array.nbytes] = array.tobytes()
    path.write_bytes(content)
    return layout


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS, *PIECES])
def test_every_dtype_has_a_place(tmp_path, name):
    """In a file that the format's library and our reader take, byte for byte."""
    dtype = dtype_of(name)
    bits = np.arange(6 * dtype.itemsize, dtype=np.uint8) % 2
    arrays = {"x": bits.view(dtype).reshape(2, 3), "none": np.zeros((0, 2), dtype)}
    arrays["a"] = np.zeros(3, "u1")
    layout = write(tmp_path / "x.safetensors", arrays)
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert set(file.keys()) == {"x", "none", "a"}
        assert file.metadata() == {"of": "a test"}
        _, more = stored_as(dtype)
        assert file.get_slice("x").get_shape() == [2, 3, *more]
        if name in PLAIN:
            assert np.array_equal(file.get_tensor("x"), arrays["x"])
    with DataFile(tmp_path / "x.safetensors", ("*",)) as file:
        records = {record.name: record for record in read_header(file)}
        assert file.read(6 * dtype.itemsize, layout.offsets[0]) == bits.tobytes()
    assert records["x"].offset == layout.offsets[0]
    assert layout.offsets[0] % min(dtype.itemsize, 8) == 0
