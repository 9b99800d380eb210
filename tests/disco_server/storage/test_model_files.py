"""Models of one file and of several, in all formats, and the parts that are read of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from disco_client.wire.arrays import ALIGNMENT
from disco_client.wire.partition import divide
from disco_server.storage.files import FileError, FileNotAllowed
from disco_server.storage.model_files import open_checkpoint

ALL = ("*",)
A = np.arange(48, dtype=np.float32).reshape(6, 8)
B = np.arange(5).astype(ml_dtypes.bfloat16)


def opened(path):
    return open_checkpoint(str(path), ALL)


def read_all(path):
    checkpoint = opened(path)
    arrays = checkpoint.read([(record, None) for record in checkpoint.records])
    names = [record.name for record in checkpoint.records]
    return dict(zip(names, arrays, strict=True))


def write_index(folder, weight_map):
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B, "unused": A}, folder / "two.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def write_cache(folder, name="tensor-cache.json"):
    """What MLC writes: float32 as the upper halves, and plain bytes, in two files."""
    narrow = A.astype(ml_dtypes.bfloat16)
    (folder / "p0.bin").write_bytes(b"pad!" + narrow.tobytes())
    (folder / "p1.bin").write_bytes(B.tobytes())

    def tensor(name, array, stored, offset, form):
        shape, dtype = list(array.shape), array.dtype.name
        fields = {"name": name, "shape": shape, "dtype": dtype, "format": form}
        return fields | {"nbytes": stored.nbytes, "byteOffset": offset}

    def file(name, record):
        size = (folder / name).stat().st_size
        return {"dataPath": name, "format": "raw-shard", "nbytes": size, "records": [record]}

    first = file("p0.bin", tensor("a", A, narrow, 4, "f32-to-bf16"))
    second = file("p1.bin", tensor("b", B, B, 0, "raw"))
    path = folder / name
    path.write_text(json.dumps({"metadata": {}, "records": [first, second]}))
    return path


def same(got, expected):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array)


def test_one_file_and_its_folder(tmp_path):
    """The same tensors either way, 0-d and empty ones included."""
    tensors = {"a": A, "b": B, "c": np.array(3, np.int8), "d": np.zeros((0, 2), np.float16)}
    save_file(tensors, tmp_path / "model.safetensors")
    same(read_all(tmp_path / "model.safetensors"), tensors)
    same(read_all(tmp_path), tensors)


def test_an_index_and_its_folder(tmp_path):
    """Tensors come from their files; what the index does not name is not the model's."""
    path = write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    same(read_all(path), {"a": A, "b": B})
    same(read_all(tmp_path), {"a": A, "b": B})


def test_a_folder_of_files_without_an_index(tmp_path):
    """All of them together; a name in two of them is refused."""
    save_file({"a": A}, tmp_path / "x.safetensors")
    save_file({"b": B}, tmp_path / "y.safetensors")
    same(read_all(tmp_path), {"a": A, "b": B})
    save_file({"b": B}, tmp_path / "z.safetensors")
    with pytest.raises(FileError, match=r"z.safetensors, tensor 'b': it is also in y.safetensors"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["tensor-cache.json", "ndarray-cache.json"])
def test_a_tensor_cache_and_its_folder(tmp_path, name):
    """float32 that was written as its upper halves is widened."""
    path = write_cache(tmp_path, name)
    expected = {"a": A.astype(ml_dtypes.bfloat16).astype(np.float32), "b": B}
    same(read_all(path), expected)
    same(read_all(tmp_path), expected)


WRITE_BY_TVM = """
import sys
import numpy as np
from tvm.contrib.tvmjs import dump_tensor_cache
from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
dump_tensor_cache(tensors, sys.argv[2], sys.argv[3], shard_cap_mb=1, show_progress=False)
"""


@pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="apache-tvm is not installed")
@pytest.mark.parametrize("form", ["raw", "f32-to-bf16"])
def test_what_the_original_wrote_is_read(tmp_path, form):
    """Its own writer, with several data files, as it writes MLC's models."""
    tensors = {
        "big": np.random.default_rng(1).random((600, 1024), np.float32),
        "half": np.arange(12, dtype=np.float16).reshape(3, 4),
        "packed": np.arange(6, dtype=np.uint32),
        "next": A,
    }
    save_file(tensors, tmp_path / "m.safetensors")
    folder = tmp_path / "cache"
    arguments = [str(tmp_path / "m.safetensors"), str(folder), form]
    done = subprocess.run(
        [sys.executable, "-c", WRITE_BY_TVM, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*.bin"))) > 1

    if form != "raw":
        for name in ("big", "next"):
            tensors[name] = tensors[name].astype(ml_dtypes.bfloat16).astype(np.float32)
    same(read_all(folder), tensors)


@pytest.mark.parametrize("make", [write_cache, lambda f: save_file({"a": A}, f / "x.safetensors")])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_are_read_of_every_format(tmp_path, make, axis):
    """A slice of each fused part, along any axis."""
    make(tmp_path)
    checkpoint = opened(tmp_path)
    record = next(record for record in checkpoint.records if record.name == "a")
    whole = checkpoint.read([(record, None)])[0]
    sizes = (2, whole.shape[axis] - 2)
    for index in range(2):
        part = checkpoint.read([(record, (axis, divide(sizes, 2, index)))])[0]
        fused = np.split(whole, [2], axis)
        expected = np.concatenate([np.array_split(f, 2, axis)[index] for f in fused], axis)
        assert np.array_equal(part, expected)
        assert part.flags.c_contiguous
        assert part.flags.writeable


def test_numbers_become_the_dtype_that_is_wanted(tmp_path):
    """Those with floating point; whole numbers stay."""
    tensors = {"a": A, "b": B, "i": np.arange(3, dtype=np.int32)}
    save_file(tensors, tmp_path / "m.safetensors")
    checkpoint = opened(tmp_path)
    got = checkpoint.read([(record, None) for record in checkpoint.records], "float16")
    kinds = {r.name: g.dtype.name for r, g in zip(checkpoint.records, got, strict=True)}
    assert kinds == {"a": "float16", "b": "float16", "i": "int32"}


def rchar():
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize("axis", [0, 1])
def test_only_the_part_s_bytes_are_read(tmp_path, axis):
    """By the kernel's count and by the checkpoint's own, of 16 MiB split four ways."""
    big = np.zeros((64, 1 << 16), np.float32)
    save_file({"big": big}, tmp_path / "m.safetensors")
    checkpoint = opened(tmp_path)
    pieces = divide((big.shape[axis],), 4, 1)
    before = rchar()
    part = checkpoint.read([(checkpoint.records[0], (axis, pieces))])[0]
    read = rchar() - before
    assert part.nbytes * 4 == big.nbytes
    assert checkpoint.bytes_read == part.nbytes
    assert part.nbytes <= read < part.nbytes + 64 * 1024  # /proc's own lines are read too


def test_fingerprints_tell_models_apart(tmp_path):
    """By names, shapes and dtypes, not by numbers or folders."""

    def of(name, tensors):
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "m.safetensors")
        return opened(folder).fingerprint

    one = of("1", {"a": A})
    assert of("2", {"a": A + 1}) == one
    others = [{"b": A}, {"a": A.reshape(-1)}, {"a": A.view(np.int32)}, {"a": A, "b": B}]
    found = {of(f"x{i}", tensors) for i, tensors in enumerate(others)}
    assert len(found | {one}) == 5


def test_a_file_that_shrank_is_an_error(tmp_path):
    """Between its header and its bytes: named, with figures, no signal that kills."""
    save_file({"a": A}, tmp_path / "m.safetensors")
    checkpoint = opened(tmp_path)
    os.truncate(tmp_path / "m.safetensors", 100)
    with pytest.raises(FileError, match=r"tensor 'a': expected 192 bytes .* has 100 bytes"):
        checkpoint.read([(checkpoint.records[0], None)])


def test_what_no_array_can_hold_is_refused(tmp_path):
    """By name, where it is read."""
    header = b'{"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1")
    checkpoint = opened(tmp_path)
    with pytest.raises(FileError, match="tensor 'x': no array can have its dtype F4"):
        checkpoint.read([(checkpoint.records[0], None)])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"weight_map": []}, "expected the file of each tensor under 'weight_map'"),
        ({"weight_map": {"a": 3}}, "tensor 'a': expected the name of its file, got 3"),
        ({"weight_map": {"a": "a\0"}}, "tensor 'a': expected the name of its file"),
        ({"weight_map": {"a": "none"}}, "none: there is no such file here"),
        ({"weight_map": {"q": "one.safetensors"}}, "index.json says it holds 'q'"),
        ({"something": 1}, "expected 'weight_map' .* or 'records'"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path, content, problem):
    """The index, or the file that lacks what the index says."""
    path = write_index(tmp_path, {})
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match=problem):
        opened(path)


def test_what_an_index_lacks_is_listed_briefly(tmp_path):
    """A few names and how many more."""
    path = write_index(tmp_path, {f"t{i}": "one.safetensors" for i in range(9)})
    with pytest.raises(FileError, match=r"it holds 't0', 't1', 't2', 't3', 't4' and 4 more$"):
        opened(path)


def test_no_file_leads_out_of_what_may_be_read(tmp_path):
    """Neither the path itself, nor what an index or a tensor cache names."""
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file({"a": A}, tmp_path / "secret.safetensors")
    allowed = (str(inside),)
    for path in (tmp_path, tmp_path / "secret.safetensors", inside / ".." / "secret.safetensors"):
        with pytest.raises(FileNotAllowed):
            open_checkpoint(str(path), allowed)
    index = write_index(inside, {"a": "../secret.safetensors"})
    with pytest.raises(FileNotAllowed):
        open_checkpoint(str(index), allowed)
    index.write_text(json.dumps({"weight_map": {"a": str(tmp_path / "secret.safetensors")}}))
    with pytest.raises(FileNotAllowed):
        open_checkpoint(str(index), allowed)
    cache = json.loads(write_cache(inside).read_text())
    cache["records"][1]["dataPath"] = "../secret.safetensors"
    (inside / "tensor-cache.json").write_text(json.dumps(cache))
    checkpoint = open_checkpoint(str(inside / "tensor-cache.json"), allowed)
    with pytest.raises(FileNotAllowed):
        checkpoint.read([(checkpoint.records[1], None)])


@pytest.mark.parametrize("path", ["", "model", "./model", "/a\0b"])
def test_a_path_is_absolute(path):
    """A worker's own folder means nothing to a program."""
    with pytest.raises(FileError, match="expected an absolute path"):
        open_checkpoint(path, ALL)


def test_a_path_below_the_home_of_another_user_tells_nothing_of_users(tmp_path):
    """Whether there is such a user and where his home is stays unsaid: both get the same words."""
    told = set()
    for user in ("root", "no-such-user-here"):
        with pytest.raises(FileError, match="expected an absolute path") as refused:
            open_checkpoint(f"~{user}/m", (str(tmp_path),))
        told.add(str(refused.value).replace(user, "USER"))
    assert len(told) == 1


def test_a_path_may_begin_with_one_s_own_home(tmp_path, monkeypatch):
    """What counts is where that is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    save_file({"w": A}, tmp_path / "model.safetensors")
    assert [each.name for each in open_checkpoint("~/model.safetensors", ALL).records] == ["w"]
    with pytest.raises(FileNotAllowed):
        open_checkpoint("~", ("/nowhere",))


def test_a_path_that_the_system_refuses_is_a_typed_error():
    """Whatever it is that the system has against it."""
    with pytest.raises(FileError, match="File name too long"):
        open_checkpoint("/" + "x" * 300, ALL)


def test_a_folder_without_weights_says_what_it_should_hold(tmp_path):
    """And a path to nothing that there is nothing."""
    with pytest.raises(FileError, match=r"expected model.safetensors.index.json, .*, found none"):
        opened(tmp_path)
    with pytest.raises(FileError, match="there is no such file here"):
        opened(tmp_path / "none")


@pytest.mark.parametrize("dtype", ["", "float64"])
def test_weights_begin_where_compiled_code_takes_them_as_they_are(tmp_path, dtype):
    """Converted or not, so that no call of a compiled module copies them."""
    tensors = {f"w{size}": np.ones(size, "float32") for size in (1, 33, 100_000)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = opened(tmp_path / "model.safetensors")
    arrays = checkpoint.read([(record, None) for record in checkpoint.records], dtype)
    for array in arrays:
        assert array.ctypes.data % ALIGNMENT == 0
        assert array.sum() == array.size
