"""One tensor of a file, read in parts."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from disco_server.storage.files import FileError, FileNotAllowed
from disco_server.storage.model_files import open_npy, open_safetensors

A = np.arange(24, dtype=np.float32).reshape(4, 6)
BOUNDS = ((1, 3), (2, 6))
PART = A[1:3, 2:6]


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


@pytest.mark.parametrize(
    "array",
    [A, np.asfortranarray(A), A.astype(">f4"), np.asfortranarray(A.astype(">i8")), A > 5],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_the_part_of_an_npy_file(write, array, version):
    """In either order of axes and of bytes; it comes in C order and in the machine's."""
    file = open_npy(str(write(npy(array, version), "a.npy")), ("*",))
    assert (file.shape, file.dtype) == (array.shape, array.dtype.name)
    part = file.read(BOUNDS, ("*",))
    assert np.array_equal(part, array[1:3, 2:6])
    assert part.dtype.isnative
    assert part.flags.c_contiguous


def test_a_tensor_of_safetensors_files(tmp_path):
    """By its name, from a file or a folder."""
    save_file({"a": A.astype(ml_dtypes.bfloat16), "b": A}, tmp_path / "m.safetensors")
    for path in (tmp_path, tmp_path / "m.safetensors"):
        file = open_safetensors(str(path), "a", ("*",))
        assert (file.shape, file.dtype) == ((4, 6), "bfloat16")
        assert np.array_equal(file.read(BOUNDS, ("*",)).astype("f4"), PART)
    with pytest.raises(FileError, match="it has no tensor 'c'; it has '"):
        open_safetensors(str(tmp_path), "c", ("*",))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "expected an array of numbers as .npy"),
        (b"PK\x03\x04 an archive of several", "expected an array of numbers as .npy"),
        (npy(A)[:-1], r"expected 224 bytes for float32\[4, 6\], the file has 223"),
        (npy(A)[:30], "expected an array of numbers as .npy"),
        (npy(A.astype(ml_dtypes.bfloat16)), "expected a plain numeric dtype"),
        (npy(np.zeros(2, "i4,f4")), "expected a plain numeric dtype"),
        (npy(np.zeros(2, "i4,f4"), (3, 0)), "expected format 1.0 or 2.0"),
        (npy(np.array([None])), "expected a plain numeric dtype"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(write, content, text):
    """With the file's name."""
    with pytest.raises(FileError, match=text) as raised:
        open_npy(str(write(content, "a.npy")), ("*",))
    assert "a.npy" in str(raised.value)


def test_only_what_is_allowed_is_read(write):
    """The flag is named; also where the rules are others than when it was opened."""
    path = write(npy(A), "a.npy")
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        open_npy(str(path), ())
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        open_npy(str(path), ("*",)).read(BOUNDS, ())
