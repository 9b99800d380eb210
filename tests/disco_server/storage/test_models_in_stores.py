"""Models in a store and on a web server: found by URL, and read in parts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from object_servers import copy_file
from safetensors.numpy import save_file

from disco_client.wire.partition import divide
from disco_server.storage.array_saves import begin_save
from disco_server.storage.files import FileError, FileNotAllowed
from disco_server.storage.hdf5 import open_hdf5
from disco_server.storage.model_files import open_checkpoint, open_npy
from disco_server.storage.zarr_arrays import open_zarr

A = np.arange(48, dtype=np.float32).reshape(6, 8)
B = np.arange(5, dtype=np.int64)


@pytest.fixture
def model(bucket, tmp_path):
    """A model of two files with an index; its URL."""
    save_file({"a": A}, tmp_path / "one.safetensors")
    save_file({"b": B}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file in tmp_path.iterdir():
        copy_file(file, f"{bucket}/models/m/{file.name}")
    return f"{bucket}/models/m"


def arrays_of(url, allowed=("*",)):
    checkpoint = open_checkpoint(url, allowed)
    found = checkpoint.read([(record, None) for record in checkpoint.records])
    return {r.name: a.tolist() for r, a in zip(checkpoint.records, found, strict=True)}


def test_a_model_is_found_by_its_url(model, s3_address, tmp_path):
    """Its folder, its index, one of its files; on a web server its index or a file."""
    whole = {"a": A.tolist(), "b": B.tolist()}
    index = "model.safetensors.index.json"
    for url in (model, f"{model}/", f"{model}/{index}"):
        assert arrays_of(url) == whole
    assert arrays_of(f"{model}/two.safetensors") == {"b": B.tolist()}
    on_web = model.replace("s3://", f"http://{s3_address}/")
    for name in (index, "one.safetensors", "two.safetensors"):
        copy_file(tmp_path / name, f"{model}/{name}", public=True)
    assert arrays_of(f"{on_web}/{index}") == whole
    with pytest.raises(FileError, match="there is no such file here"):
        arrays_of(f"{on_web}/none")


def test_files_of_a_folder_without_an_index_are_one_model(model, bucket, tmp_path):
    """And a URL below which nothing is, is none."""
    for name in ("one", "two"):
        copy_file(tmp_path / f"{name}.safetensors", f"{bucket}/plain/{name}.safetensors")
    assert arrays_of(f"{bucket}/plain") == {"a": A.tolist(), "b": B.tolist()}
    with pytest.raises(FileError, match=r"expected model.safetensors.index.json, .* found none"):
        arrays_of(f"{bucket}/nothing")


def test_an_index_leads_nowhere_else(model, bucket, tmp_path):
    """Neither to what lies beside the allowed place, nor to another bucket."""
    copy_file(tmp_path / "one.safetensors", f"{bucket}/secret.safetensors")
    for name in ("../../secret.safetensors", f"{bucket}/secret.safetensors", "/etc/passwd"):
        index = tmp_path / "index.json"
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        copy_file(index, f"{model}/index.json")
        with pytest.raises(FileNotAllowed, match="--allow-read"):
            arrays_of(f"{model}/index.json", (f"{bucket}/models",))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_takes_its_own_bytes(bucket, tmp_path, axis):
    """A quarter along the first axis; along the last one what lies between short rows as well."""
    array = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)
    save_file({"x": array}, tmp_path / "x.safetensors")
    copy_file(tmp_path / "x.safetensors", f"{bucket}/x.safetensors")
    checkpoint = open_checkpoint(f"{bucket}/x.safetensors", ("*",))
    (record,) = checkpoint.records
    for worker in range(4):
        before = checkpoint.bytes_read
        ((start, stop),) = divide([1 << 10], 4, worker)
        (part,) = checkpoint.read([(record, (axis, ((start, stop),)))])
        assert np.array_equal(part, array[start:stop] if axis == 0 else array[:, start:stop])
        assert checkpoint.bytes_read - before < array.nbytes // (4 if axis == 0 else 1) + 4096


def test_an_array_is_read_from_a_store(bucket, tmp_path):
    """As numpy wrote it."""
    np.save(tmp_path / "x.npy", A)
    copy_file(tmp_path / "x.npy", f"{bucket}/x.npy")
    file = open_npy(f"{bucket}/x.npy", (bucket,))
    assert np.array_equal(file.read(((2, 4), (0, 8)), (bucket,)), A[2:4])


def test_a_dataset_is_read_from_a_store(bucket, tmp_path):
    """One in chunks, by the library, and one in one piece, by its offset; Zarr has folders only."""
    library = pytest.importorskip("h5py", reason="h5py, which reads HDF5, is not installed")
    with library.File(tmp_path / "x.h5", "w") as content:
        content.create_dataset("chunks", data=A, chunks=(2, 8))
        content.create_dataset("whole", data=A)
    copy_file(tmp_path / "x.h5", f"{bucket}/x.h5")
    for name in ("chunks", "whole"):
        file = open_hdf5(f"{bucket}/x.h5", name, (bucket,))
        assert np.array_equal(file.read(((2, 4), (0, 8)), (bucket,)), A[2:4])
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        open_hdf5(f"{bucket}/x.h5", "whole", (f"{bucket}/other",))
    with pytest.raises(FileError, match="Zarr is read from folders"):
        open_zarr(f"{bucket}/x.zarr", "", (bucket,))
    with pytest.raises(FileError, match="format 'hdf5' is saved in folders"):
        begin_save("hdf5", f"{bucket}/y.h5", (bucket,), "0" * 16, leads=True)
