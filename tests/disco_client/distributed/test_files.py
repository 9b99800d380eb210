"""Tensors of files, of which each worker reads its own part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from file_parts import bytes_of_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from disco_client import BadFile, CaptureError, ConfigError, NotAllowed, ProcessSession, connect
from disco_client.distributed import DeviceMesh, from_npy, from_safetensors

WORKER_MODULES = Path(__file__).parents[2] / "worker_modules"
MESHES = [DeviceMesh((2,), [3, 1]), DeviceMesh((3,), range(3)), DeviceMesh((2, 2), range(4))]
ROWS = 32
LARGE = (ROWS, 1 << 20)
"""128 MiB of float32, of which four workers have 32 MiB each."""


def numbers(shape, dtype="float32"):
    return np.random.default_rng(2).integers(0, 7, shape).astype(dtype)


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "int64", "bool", ">f8", ml_dtypes.bfloat16]),
    fortran=st.booleans(),
    mesh=st.sampled_from(MESHES),
    data=st.data(),
)
def test_files_are_distributed_as_arrays_are(workers, tmp_path, shape, dtype, fortran, mesh, data):
    """With any mesh and placement, whatever the order of axes and bytes in the file."""
    array = numbers(shape, dtype)
    choices = ["R", "P", *(f"S[{axis}]" for axis in range(array.ndim))]
    placement = ", ".join(data.draw(st.tuples(*[st.sampled_from(choices)] * mesh.ndim)))
    files = []
    if np.dtype(dtype).isnative:
        save_file({"t": np.ascontiguousarray(array)}, tmp_path / "m.safetensors")
        files.append(from_safetensors(tmp_path / "m.safetensors", "t"))
    if dtype is not ml_dtypes.bfloat16:
        np.save(tmp_path / "a.npy", np.asfortranarray(array) if fortran else array)
        files.append(from_npy(tmp_path / "a.npy"))
    for file in files:
        x = workers.distribute(file, mesh, placement)
        expected = workers.distribute(array, mesh, placement)
        assert (x.shape, x.dtype.name, x.placement) == (
            expected.shape,
            expected.dtype.name,
            expected.placement,
        )
        assert np.array_equal(x.numpy(), array)
        if "P" not in placement:
            for worker in mesh.device_ids:
                assert np.array_equal(x.shard(worker), expected.shard(worker))
    workers.sync_all()  # the next example writes the files anew


@pytest.fixture
def session(monkeypatch):
    """Four child processes that know the tests' functions."""
    monkeypatch.syspath_prepend(str(WORKER_MODULES))
    with ProcessSession(4) as opened:
        opened.import_python_module("disco_test_shards")
        yield opened


def large_file(kind, path):
    array = np.arange(LARGE[0] * LARGE[1], dtype="float32").reshape(LARGE)
    if kind == "npy":
        np.save(path / "a.npy", array)
        return array, from_npy(path / "a.npy")
    save_file({"a": array}, path / "a.safetensors")
    return array, from_safetensors(path, "a")


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize("kind", ["npy", "safetensors"])
@pytest.mark.parametrize("placement", ["S[0]", "S[1]"])
def test_no_worker_reads_or_holds_more_than_its_part(session, tmp_path, kind, placement):
    """By the kernel's count, and with less memory to be had than the whole would take."""
    array, file = large_file(kind, tmp_path)
    session.get_global_func("tests.limit_memory")(64 << 20)
    part = array.nbytes // 4
    for read in bytes_of_parts(session, file, array, placement):
        assert part <= read < part + (1 << 19)
    # The whole is more than a worker could hold.
    whole = session.distribute(file, session.mesh(), "R")
    with pytest.raises(Exception, match=r"MemoryError|Unable to allocate"):
        whole.shard(0)


PROGRAM = """
import sys
import numpy as np
import disco_client
from disco_test_shards import limit_own_memory
if __name__ == "__main__":
    with disco_client.ProcessSession(4) as session:
        session.sync_all()
        array = np.load(sys.argv[1], mmap_mode="r")
        limit_own_memory(80 << 20)
        try:
            np.array(array)
        except MemoryError:
            print("the whole does not fit")
        for placement in ("S[0]", "S[1]"):
            x = session.distribute(array, session.mesh(), placement)
            y = x.sum(axis=int(placement[2])).redistribute("R").shard(3)
            print(placement, bool((y == array.sum(axis=int(placement[2]))).all()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is not counted here")
def test_a_mapped_file_is_sent_part_by_part(tmp_path):
    """By a client that could not hold the whole."""
    np.save(tmp_path / "a.npy", np.ones(LARGE, "float32"))
    command = [sys.executable, "-c", PROGRAM, tmp_path / "a.npy"]
    path = {"PYTHONPATH": str(WORKER_MODULES), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["the whole does not fit", "S[0] True", "S[1] True", ""]


# What cannot be ---------------------------------------------------------------------------


def test_what_is_no_file_or_name_is_refused_here(workers, tmp_path):
    """Before anything is sent; and a mesh that the session has not."""
    for make in (lambda: from_npy(""), lambda: from_npy(3), lambda: from_safetensors("m", "")):
        with pytest.raises(ConfigError, match="expected the"):
            make()
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    file = from_npy(tmp_path / "a.npy")
    with pytest.raises(ConfigError, match="names worker 7"):
        workers.distribute(file, DeviceMesh((1,), [7]), "R")
    with pytest.raises(ConfigError, match="splits an axis"):
        workers.distribute(file, None, "S[2]")
    with workers.capture() as program, pytest.raises(CaptureError):
        workers.distribute(file, None, "R")
    assert program.num_steps == 0


def test_what_is_wrong_with_a_file_names_it(workers, tmp_path):
    """Missing, no array, without such a tensor; the session goes on."""
    save_file({"t": np.ones(3, "f4")}, tmp_path / "m.safetensors")
    (tmp_path / "a.npy").write_bytes(b"nothing")
    for file, text in (
        (from_npy(tmp_path / "none.npy"), "none.npy: there is no such file here"),
        (from_npy(tmp_path / "a.npy"), r"a.npy: expected an array of numbers as .npy"),
        (from_safetensors(tmp_path, "w"), r"it has no tensor 'w'; it has 't'"),
    ):
        with pytest.raises(BadFile, match=text):
            workers.distribute(file, None, "R")
        workers.sync_all()


def test_nodes_read_their_own_files(daemons, tmp_path):
    """Which must be of one shape; only those of the mesh are looked at, where it is allowed."""
    controller = daemons.controller()
    options = ("--slots", "1")
    folders = {name: tmp_path / name for name in ("one", "two", "closed")}
    for (name, folder), extent in zip(folders.items(), (4, 6, 4), strict=True):
        folder.mkdir()
        np.save(folder / "a.npy", np.arange(extent))
        reads = () if name == "closed" else ("--allow-read", "*")
        more = (*reads, "--name", name, "--work-dir", folder)
        daemons.worker(controller.address, *options, *more)
    # A rank's own folder is that of the node, its daemon's, its session's and its own.
    file = from_npy("/proc/self/cwd/../../../a.npy")
    with connect(controller.address, num_workers=3) as session:
        by_name = {place.node: place.worker for place in session.workers}
        one, two, closed = (by_name[name] for name in ("one", "two", "closed"))
        x = session.distribute(file, DeviceMesh((1,), [two]), "S[0]")
        assert np.array_equal(x.numpy(), np.arange(6))
        x = session.distribute(file, DeviceMesh((2,), [one, two]), "S[0]")
        with pytest.raises(
            BadFile, match=r"expected int64\[4\], as another worker sees, got int64\[6"
        ):
            x.numpy()
        with pytest.raises(NotAllowed, match="--allow-read"):
            session.distribute(file, DeviceMesh((2,), [one, closed]), "S[0]")
        session.sync_all()
