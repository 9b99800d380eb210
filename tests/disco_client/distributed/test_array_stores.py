"""Stores of arrays, HDF5, netCDF and Zarr: the workers read their parts of them, and write them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from file_parts import bytes_of_parts
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import (
    BadFile,
    CaptureError,
    ConfigError,
    NotAllowed,
    OutOfBounds,
    ProcessSession,
    connect,
)
from disco_client.distributed import DeviceMesh, from_hdf5, from_netcdf, from_npy, from_zarr

h5py, h5netcdf, zarr = map(pytest.importorskip, ("h5py", "h5netcdf", "zarr"))

WORKER_MODULES = Path(__file__).parents[2] / "worker_modules"
MESHES = [DeviceMesh((2,), [3, 1]), DeviceMesh((3,), range(3)), DeviceMesh((2, 2), range(4))]
REALS = ["int8", "uint16", "int32", "int64", "uint64", "float32", "float64", ">f4", ">i2"]
NUMBERS = [*REALS, "bool", "float16", "complex64", ">c16", ">f2"]
READ = {"hdf5": from_hdf5, "netcdf": from_netcdf, "zarr": from_zarr}
DTYPES = {"hdf5": [*NUMBERS, "bfloat16"], "netcdf": REALS, "zarr": NUMBERS}
FORMATS = list(READ)


def numbers(shape, dtype="float32", seed=2):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.random.default_rng(seed).integers(0, 7, shape).astype(kind)


def write(form, path, array, chunks=None):
    """Writes the array "g/x", as another program does; in chunks it is compressed."""
    if form == "netcdf":
        with h5netcdf.File(path, "w") as file:
            group = file.create_group("g")
            group.dimensions = {f"d{axis}": extent for axis, extent in enumerate(array.shape)}
            more = {"compression": "gzip", "chunks": chunks} if chunks else {}
            group.create_variable("x", tuple(group.dimensions), array.dtype, data=array, **more)
    elif form == "hdf5":
        with h5py.File(path, "w", userblock_size=0 if chunks else 512) as file:
            more = {"compression": "gzip", "shuffle": True, "chunks": chunks} if chunks else {}
            file.create_dataset("g/x", data=array, **more)
    else:
        version = 3 if array.size % 2 else 2
        group = zarr.open_group(path, mode="w", zarr_format=version).create_group("g")
        shape = chunks or tuple(max(1, extent) for extent in array.shape)
        made = group.create_array(
            "x", shape=array.shape, dtype=array.dtype, chunks=shape, overwrite=True
        )
        made[...] = array


@st.composite
def slices(draw, shape):
    """Some of an array, and the axes that are left."""
    items, left = [], 0
    for extent in shape:
        kind = draw(st.sampled_from(["all", "slice", "index"] if extent else ["all", "slice"]))
        if kind == "index":
            items.append(draw(st.integers(-extent, extent - 1)))
            continue
        left += 1
        ends = st.none() | st.integers(-extent - 1, extent + 1)
        items.append(slice(draw(ends), draw(ends)) if kind == "slice" else slice(None))
    if draw(st.booleans()):
        items.append(...)
    return tuple(items), left


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=20)
@given(shape=st.lists(st.integers(0, 6), max_size=4), mesh=st.sampled_from(MESHES), data=st.data())
def test_files_of_other_programs_are_distributed_as_arrays_are(
    workers, tmp_path, form, shape, mesh, data
):
    """In any dtype and chunks, compressed or not, and any part of them, as numpy takes it."""
    array = numbers(shape, data.draw(st.sampled_from(DTYPES[form])))
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype("float32")  # h5py does not write it; a later test lets the workers
    chunked = bool(array.size) and bool(shape) and data.draw(st.booleans())
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape) if chunked else None
    path = tmp_path / f"a-{len(list(tmp_path.iterdir()))}"
    write(form, path, array, chunks)
    items, left = data.draw(slices(shape))
    choices = ["R", "P", *(f"S[{axis}]" for axis in range(left))]
    placement = ", ".join(data.draw(st.tuples(*[st.sampled_from(choices)] * mesh.ndim)))
    file = READ[form](path, "g/x")
    x = workers.distribute(file[items] if items else file, mesh, placement)
    wanted = np.asarray(array[items])
    expected = workers.distribute(wanted.astype(wanted.dtype.newbyteorder("=")), mesh, placement)
    assert (x.shape, x.dtype, x.placement) == (expected.shape, expected.dtype, expected.placement)
    assert np.array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("form", [*FORMATS, "npy"])
@pytest.mark.parametrize(
    "items",
    [
        (slice(3, 9), slice(2, None), 1),
        (-2, ..., slice(1, -1)),
        (..., 3, 0),
        slice(5, 2),
        (slice(1, 8), slice(None), slice(1, 2)),
        (4, 2, 1),
    ],
)
def test_a_part_of_a_file_is_taken_as_numpy_takes_it(workers, tmp_path, form, items):
    """Each worker has its own part of that part."""
    array = np.arange(10 * 5 * 3.0).reshape(10, 5, 3)
    if form == "npy":
        np.save(tmp_path / "a.npy", array)
        file = from_npy(tmp_path / "a.npy")
    else:
        write(form, tmp_path / "a", array, (4, 2, 3))
        file = READ[form](tmp_path / "a", "g/x")
    wanted = np.asarray(array[items])
    placement = "S[0]" if wanted.ndim else "R"
    x = workers.distribute(file[items], None, placement)
    assert np.array_equal(x.numpy(), wanted)
    for worker, part in enumerate(np.array_split(wanted, 4) if wanted.ndim else [wanted] * 4):
        assert np.array_equal(x.shard(worker), part)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=15)
@given(shape=st.lists(st.integers(0, 7), max_size=3), mesh=st.sampled_from(MESHES), data=st.data())
def test_what_is_saved_is_read_by_others_and_by_workers(workers, tmp_path, form, shape, mesh, data):
    """From any placement, with uneven and empty parts; in place of what was saved before."""
    native = [dtype for dtype in DTYPES[form] if not dtype.startswith(">")]
    array = numbers(shape, data.draw(st.sampled_from(native)))
    other = numbers((5,), "int32")
    choices = ["R", "P", *(f"S[{axis}]" for axis in range(len(shape)))]
    placement = ", ".join(data.draw(st.tuples(*[st.sampled_from(choices)] * mesh.ndim)))
    tensors = {
        "g/h/x": workers.distribute(array, mesh, placement),
        "g/h/z": workers.distribute(other, mesh, ", ".join(["R"] * mesh.ndim)),
        "y": workers.distribute(other, mesh, ", ".join(["S[0]"] * mesh.ndim)),
    }
    path = tmp_path / "store"
    workers.save(path, tensors, format=form)
    for name, wanted in (("g/h/x", array), ("g/h/z", other), ("y", other)):
        x = workers.distribute(READ[form](path, name), None, "R")
        assert (x.dtype, x.shape) == (wanted.dtype, wanted.shape)
        assert x.numpy().tobytes() == wanted.tobytes()
        if wanted.dtype != ml_dtypes.bfloat16:
            assert np.array_equal(read_here(form, path, name), wanted)
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def read_here(form, path, name):
    """Reads an array by the format's own library."""
    if form == "zarr":
        return np.asarray(zarr.open_group(path, mode="r")[name][...])
    opened = h5py.File(path) if form == "hdf5" else h5netcdf.File(path)
    with opened as file:
        return np.asarray(file[name][...])


@pytest.mark.parametrize("form", FORMATS)
def test_many_chunks_of_several_workers_are_written(workers, tmp_path, form):
    """Chunks that lie in two parts get both, where the workers cannot share evenly."""
    array = np.arange(3 * (1 << 20) + 7, dtype="float64").reshape(-1, 5)
    mesh = DeviceMesh((3,), [2, 0, 3])
    workers.save(tmp_path / "s", {"x": workers.distribute(array, mesh, "S[0]")}, format=form)
    assert np.array_equal(read_here(form, tmp_path / "s", "x"), array)


# What is read --------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch):
    """Four child processes that know the tests' functions."""
    monkeypatch.syspath_prepend(str(WORKER_MODULES))
    with ProcessSession(4) as opened:
        opened.import_python_module("disco_test_shards")
        yield opened


ROWS = (32, 1 << 20)
"""128 MiB of float32, of which four workers have 32 MiB each."""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize(
    ("form", "chunks", "placement"),
    [
        ("hdf5", None, "S[0]"),
        ("hdf5", None, "S[1]"),
        ("hdf5", (2, 1 << 17), "S[0]"),
        ("hdf5", (2, 1 << 17), "S[1]"),
        ("netcdf", (4, 1 << 18), "S[0]"),
        ("zarr", (2, 1 << 17), "S[0]"),
        ("zarr", (8, 1 << 18), "S[1]"),
    ],
)
def test_no_worker_reads_more_than_its_part(session, tmp_path, form, chunks, placement):
    """By the kernel's count; where parts consist of whole chunks, or there are none."""
    array = np.arange(ROWS[0] * ROWS[1], dtype="float32").reshape(ROWS)
    if form == "zarr":
        zarr.create_array(tmp_path / "a", name="g/x", data=array, chunks=chunks, compressors=None)
    else:
        with h5py.File(tmp_path / "a", "w") as file:
            file.create_dataset("g/x", data=array, chunks=chunks)
    file = READ[form](tmp_path / "a", "g/x")
    session.distribute(file[:1, :1], None, "R").numpy()  # loads the library
    part = array.nbytes // 4
    for read in bytes_of_parts(session, file, array, placement):
        assert part <= read < part * 1.1


def test_chunks_that_nobody_wrote_have_the_fill_value(workers, tmp_path):
    """Of a dataset in chunks, of one without, and of an array of Zarr."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        chunked = file.create_dataset("c", (6, 4), "i4", chunks=(2, 2), fillvalue=7)
        chunked[:2, :2] = 1
        file.create_dataset("w", (6, 4), "i4", fillvalue=9)
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(6, 4), dtype="i4", chunks=(2, 2), fill_value=5
    )
    array[4:, 2:] = 3
    expected = np.full((6, 4), 7)
    expected[:2, :2] = 1
    found = workers.distribute(from_hdf5(tmp_path / "a.h5", "c"), None, "S[0]")
    assert np.array_equal(found.numpy(), expected)
    assert (workers.distribute(from_hdf5(tmp_path / "a.h5", "w"), None, "S[0]").numpy() == 9).all()
    found = workers.distribute(from_zarr(tmp_path / "a.zarr"), None, "S[1]")
    expected = np.full((6, 4), 5)
    expected[4:, 2:] = 3
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize(
    ("stored", "attributes", "dtype"),
    [
        ("int16", {"scale_factor": np.float32(0.5)}, "float32"),
        ("int16", {"scale_factor": np.float64(0.5), "add_offset": np.float64(3)}, "float64"),
        ("int32", {"add_offset": np.float32(2), "_FillValue": np.int32(4)}, "float64"),
        ("int8", {"_FillValue": np.int8(-1), "missing_value": np.int8([2, 3])}, "float32"),
        ("uint8", {"missing_value": np.int64(1000)}, "float32"),
        ("float64", {"_FillValue": np.float64(4)}, "float64"),
        ("float32", {"_FillValue": np.float32(np.nan)}, "float32"),
        ("int16", {"units": "m", "valid_min": np.int16(3)}, "int16"),
    ],
)
def test_packed_variables_are_unpacked(workers, tmp_path, stored, attributes, dtype):
    """Scaled, moved, with NaN for what is missing; from_hdf5 has what the file has."""
    raw = np.array([[-1, 2, 3], [4, 5, 6]]).astype(stored)
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"y": 2, "x": 3}
        fill = attributes.get("_FillValue")
        variable = file.create_variable("v", ("y", "x"), stored, data=raw, fillvalue=fill)
        for key, value in attributes.items():
            if key != "_FillValue":
                variable.attrs[key] = value
    expected = raw.astype(dtype)
    expected *= np.asarray(attributes.get("scale_factor", 1), dtype)
    expected += np.asarray(attributes.get("add_offset", 0), dtype)
    for key in ("_FillValue", "missing_value"):
        for value in np.ravel(attributes.get(key, [])):
            expected[raw == value] = np.nan
    found = workers.distribute(from_netcdf(tmp_path / "a.nc", "v"), None, "S[1]")
    assert found.dtype == dtype
    assert np.array_equal(found.numpy(), expected, equal_nan=dtype.startswith("float"))
    plain = workers.distribute(from_hdf5(tmp_path / "a.nc", "v"), None, "S[1]")
    assert np.array_equal(plain.numpy(), raw)


def test_bytes_that_netcdf_calls_unsigned_are_unsigned(workers, tmp_path):
    """As the attribute says that stands in for a type which the classic format has not."""
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 3}
        data = np.int8([-1, -2, 3])
        variable = file.create_variable("v", ("x",), "i1", data=data, fillvalue=np.int8(-2))
        variable.attrs["_Unsigned"] = "true"
    found = workers.distribute(from_netcdf(tmp_path / "a.nc", "v"), None, "S[0]").numpy()
    assert np.array_equal(found, np.float32([255, np.nan, 3]), equal_nan=True)


# What cannot be ------------------------------------------------------------------------------


def test_what_is_no_part_of_a_file_is_refused_here(workers, tmp_path):
    """Steps, masks, two parts of parts; and numbers outside the tensor, when it is known."""
    np.save(tmp_path / "a.npy", np.ones((4, 3)))
    file = from_npy(tmp_path / "a.npy")
    for items in (slice(None, None, 2), None, [0], True, (..., ...), slice(0.5)):
        with pytest.raises(ConfigError, match="take a part, got"):
            file[items]
    with pytest.raises(ConfigError, match="was taken already"):
        file[0][0]
    with pytest.raises(TypeError, match="not iterable"):
        list(file)
    with pytest.raises(OutOfBounds, match="index 4 is outside axis 0, of extent 4"):
        workers.distribute(file[4], None, "R")
    with pytest.raises(OutOfBounds, match="at most 2 indices, got 3"):
        workers.distribute(file[0, 0, 0], None, "R")
    for make in (from_hdf5, from_netcdf):
        with pytest.raises(ConfigError, match="expected the name of a tensor"):
            make("a.h5", "")
    with pytest.raises(ConfigError, match="expected the name of an array"):
        from_zarr("a.zarr", 3)


def refused_hdf5(file):
    """Datasets without numbers, each with what the error has to say."""
    file["text"] = "words"
    file["fixed"] = np.array([b"ab", b"cd"])
    file["rows"] = np.zeros(2, "i4,f4")
    file["things"] = np.array([file.ref], h5py.ref_dtype)
    file["nothing"] = h5py.Empty("f4")
    file["blocks"] = np.zeros(3, np.dtype(("f4", (2, 2))))
    return {
        "text": "tensor 'text': expected numbers, its dtype is strings",
        "fixed": "tensor 'fixed': expected numbers, its dtype is strings",
        "rows": "tensor 'rows': expected numbers, its dtype is .*f0.*i4",
        "things": "tensor 'things': expected numbers, its dtype is object",
        "nothing": "tensor 'nothing': it has no numbers",
        "group": "tensor 'group': it is a group, not a dataset; the file has 'group/inner'",
        "group/iner": "it has no dataset 'group/iner'; it has 'group/inner'",
        "text/x": "it has no dataset 'text/x'",
    }


def test_what_is_wrong_with_an_hdf5_file_names_it(workers, tmp_path):
    """No file, none of HDF5, cut short; without such a dataset, or one of strings and the like."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/inner"] = np.arange(3)
        texts = refused_hdf5(file)
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[:-100])
    (tmp_path / "other.h5").write_bytes(b"words" * 1000)
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(100))
    for name, text in texts.items():
        for read in (from_hdf5, from_netcdf):
            with pytest.raises(BadFile, match=text):
                workers.distribute(read(tmp_path / "a.h5", name), None, "R")
    for name, text in (
        ("none.h5", "there is no such file here"),
        ("cut.h5", "cut.h5: expected an HDF5 file: .*truncated"),
        ("other.h5", "other.h5: expected an HDF5 file"),
        ("old.nc", "nccopy -k nc4 converts it"),
    ):
        with pytest.raises(BadFile, match=text):
            workers.distribute(from_hdf5(tmp_path / name, "x"), None, "R")
    workers.sync_all()


def test_an_hdf5_file_leads_to_no_other_file(workers, tmp_path):
    """Neither by links nor by storage elsewhere; links inside it are followed, but not for ever."""
    secret = np.arange(4.0)
    (tmp_path / "secret.bin").write_bytes(secret.tobytes())
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = secret
    outside = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", shape=(4,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["here/x"] = secret
        file["inside"] = h5py.SoftLink("/here")
        file["here/again"] = h5py.SoftLink("x")
        file["loop"] = h5py.SoftLink("/loop")
        file["outside"] = h5py.ExternalLink("secret.h5", "/")
        file["hidden"] = h5py.SoftLink("/outside/x")
        parts = [(str(tmp_path / "secret.bin"), 0, 32)]
        file.create_dataset("external", (4,), "f8", external=parts)
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = outside
        file.create_virtual_dataset("virtual", layout)
    path = tmp_path / "a.h5"
    found = workers.distribute(from_hdf5(path, "/inside/again"), None, "S[0]")
    assert np.array_equal(found.numpy(), secret)
    for name, text in (
        ("outside/x", "a link to another file is not followed"),
        ("hidden", "a link to another file is not followed"),
        ("loop", "more than 16 links"),
        ("external", "its numbers lie in other files"),
        ("virtual", "its numbers lie in other files"),
    ):
        with pytest.raises(BadFile, match=f"tensor '{name}': {text}"):
            workers.distribute(from_hdf5(path, name), None, "R")


def test_what_is_wrong_with_a_zarr_store_names_it(workers, tmp_path):
    """No folder, no array, strings, metadata or chunks that are none."""
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w")
    group.create_array("run/rain", data=np.arange(6.0), compressors=None, chunks=(3,))
    zarr.create_array(path / "words", data=np.array(["a", "bc"]), zarr_format=2)
    (path / "bad").mkdir()
    (path / "bad" / "zarr.json").write_text('{"node_type": "array", "zarr_format": 3}')
    for name, text in (
        ("run/ran", "it has no array 'run/ran'; it has 'run/rain'"),
        ("run", "it has no array 'run'; it has 'run/rain'"),
        ("../a.zarr/words", r"it has no array '\.\./a.zarr/words'"),
        ("", "it is no array, name one that it holds; it has"),
        ("words", "tensor 'words': expected numbers, its dtype is <U2"),
        ("bad", "tensor 'bad': expected a Zarr array"),
    ):
        with pytest.raises(BadFile, match=text):
            workers.distribute(from_zarr(path, name), None, "R")
    with pytest.raises(BadFile, match="expected the folder of a Zarr array or group"):
        workers.distribute(from_zarr(tmp_path / "none"), None, "R")
    chunk = path / "run" / "rain" / "c" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    x = workers.distribute(from_zarr(path, "run/rain"), None, "S[0]")
    with pytest.raises(BadFile, match="tensor 'run/rain': cannot be read"):
        x.numpy()


def test_a_zarr_store_runs_nothing_and_leads_nowhere(daemons, tmp_path):
    """Chunks are not unpickled, and links are followed only where reading is allowed."""
    store, secret = tmp_path / "open" / "a.zarr", tmp_path / "secret"
    store.parent.mkdir()
    secret.write_bytes(np.arange(4.0).tobytes())
    group = zarr.open_group(store, mode="w", zarr_format=2)
    more = {"filters": None, "compressors": None, "chunks": (4,)}
    group.create_array("linked", data=np.zeros(4) + 1, **more)
    (store / "linked" / "0").unlink()
    (store / "linked" / "0").symlink_to(secret)
    for codec in ("pickle", "base64"):
        group.create_array(codec, data=np.zeros(4) + 1, **more)
        metadata = store / codec / ".zarray"
        text = metadata.read_text()
        metadata.write_text(text.replace('"filters": null', f'"filters": [{{"id": "{codec}"}}]'))
        assert codec in metadata.read_text()
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1", "--allow-read", store.parent)
    with connect(controller.address, num_workers=1) as session:
        with pytest.raises(BadFile, match="'pickle'"):
            session.distribute(from_zarr(store, "pickle"), None, "R")
        with pytest.raises(BadFile, match="its codec 'base64' is none that may be used"):
            session.distribute(from_zarr(store, "base64"), None, "R")
        linked = session.distribute(from_zarr(store, "linked"), None, "R")
        with pytest.raises(NotAllowed, match="--allow-read"):
            linked.numpy()
        x = session.distribute(np.ones(3), placement="R")
        with pytest.raises(NotAllowed, match="--allow-save"):
            session.save(store.parent / "new", {"x": x}, format="zarr")


def test_what_cannot_be_saved_is_refused_before_anything_is_written(workers, tmp_path):
    """Formats and names that are none, and dtypes that a format has not, with what it has."""
    x = workers.distribute(np.ones(4, "f2"), placement="R")
    small = workers.distribute(np.ones(4, ml_dtypes.float8_e4m3fn), placement="R")
    for tensors, form, text in (
        ({"x": x}, "csv", "expected the format 'disco' or one of 'hdf5', 'netcdf', 'zarr'"),
        ({"x": x}, None, "expected the format"),
        ({"x": x}, "netcdf", "'x' has dtype float16, which format 'netcdf' does not have"),
        ({"x": small}, "hdf5", "'x' has dtype float8_e4m3fn"),
        ({"x": x, "x/y": x}, "hdf5", "'x' cannot be an array and the group of 'x/y'"),
        ({"a/../b": x}, "zarr", "expected the name of an array"),
        ({"zarr.json": x}, "zarr", "expected the name of an array"),
        ({"/x": x}, "hdf5", "expected the name of an array"),
        ({}, "hdf5", "expected tensors by name"),
    ):
        with pytest.raises(ConfigError, match=text):
            workers.save(tmp_path / "s", tensors, format=form)
    with workers.capture(), pytest.raises(CaptureError):
        workers.save(tmp_path / "s", {"x": x}, format="hdf5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", FORMATS)
def test_a_save_that_fails_leaves_what_was_there(session, tmp_path, form):
    """Where a worker's disk refuses, and where another thing is in the place."""
    before = np.arange(4.0)
    path = tmp_path / "s"
    session.save(path, {"x": session.distribute(before, placement="S[0]")}, format=form)
    large = session.distribute(np.random.default_rng(1).random((8, 1 << 17)), placement="S[0]")
    limit = session.get_global_func("tests.limit_files")
    limit(2, 1 << 16)
    with pytest.raises(BadFile, match="cannot be written"):
        session.save(path, {"large": large}, format=form)
    limit(2, -1)
    assert np.array_equal(read_here(form, path, "x"), before)
    assert [each.name for each in tmp_path.iterdir()] == ["s"]
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadFile, match=f"what is here is not of format '{form}'"):
        session.save(tmp_path / "notes", {"large": large}, format=form)
    assert (tmp_path / "notes").read_text() == "mine"
    poisoned = large + session.distribute(np.ones((8, 1)), placement="R")
    session.get_global_func("tests.limit_files")  # the session goes on
    session.save(path, {"sum": poisoned}, format=form)
    assert read_here(form, path, "sum").shape == (8, 1 << 17)


def test_workers_without_a_folder_in_common_are_told(daemons, tmp_path):
    """A worker that does not see what worker 0 made says so, by the folder."""
    controller = daemons.controller()
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        more = ("--allow-save", "*", "--name", folder.name, "--work-dir", folder)
        daemons.worker(controller.address, "--slots", "1", *more)
    with connect(controller.address, num_workers=2) as session:
        x = session.distribute(np.arange(8.0), placement="S[0]")
        with pytest.raises(BadFile, match="which this worker does not see: a store needs a folder"):
            session.save("/proc/self/cwd/../../../s.h5", {"x": x}, format="hdf5")
        session.sync_all()
    assert not [each for folder in folders for each in folder.glob("*.h5*")]


@pytest.mark.parametrize(
    ("library", "form", "extra"),
    [("h5py", "hdf5", "hdf5"), ("h5py", "netcdf", "hdf5"), ("zarr", "zarr", "zarr")],
)
def test_a_worker_that_lacks_a_library_says_what_to_install(
    session, tmp_path, library, form, extra
):
    """For reading and for saving."""
    with h5py.File(tmp_path / "file", "w") as made:
        made["x"] = np.arange(3)
    zarr.create_array(tmp_path / "folder", name="x", data=np.arange(3))
    session.get_global_func("tests.lose_library")(library)
    session.get_global_func("tests.lose_library")("h5netcdf")
    there = READ[form](tmp_path / ("folder" if form == "zarr" else "file"), "x")
    with pytest.raises(BadFile, match=rf"pip install 'disco-runtime\[{extra}\]'"):
        session.distribute(there, None, "R")
    x = session.distribute(np.ones(3), placement="R")
    with pytest.raises(BadFile, match=rf"pip install 'disco-runtime\[{form}\]'"):
        session.save(tmp_path / "new", {"x": x}, format=form)
    session.sync_all()
