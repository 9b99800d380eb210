"""Distributed tensors are saved by their workers and loaded as one likes."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import tqdm
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from disco_client import (
    BadFile,
    CaptureError,
    ConfigError,
    ForeignReference,
    NotAllowed,
    ProcessSession,
    RemoteError,
    connect,
)
from disco_client.distributed import DeviceMesh, Placement, storage

MESHES = [
    DeviceMesh((2,), [3, 1]),
    DeviceMesh((3,), range(3)),
    DeviceMesh((4,), range(4)),
    DeviceMesh((2, 2), range(4), ("dp", "tp")),
]
DTYPES = [
    *("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128", "bfloat16", "float8_e4m3fn", "int4", "datetime64[s]"),
]
INDEX = "disco-checkpoint-*.json"


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(0, 7, shape).astype(dtype_of(dtype))


def placements(ndim, mesh):
    choices = ["R", "P", *(f"S[{axis}]" for axis in range(ndim))]
    return st.tuples(*[st.sampled_from(choices)] * mesh.ndim).map(", ".join)


def same(tensor, array):
    got = tensor.numpy()
    assert got.dtype == tensor.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


def index_of(path):
    (index,) = path.glob(INDEX)
    return json.loads(index.read_text())


def files_of(path):
    index = index_of(path)
    return {name: load_file(path / index["generation"] / name) for name in index["files"]}


# There and back -------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(0, 6), max_size=3),
    dtype=st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
    saved=st.sampled_from(MESHES),
    loaded=st.sampled_from(MESHES),
    data=st.data(),
)
def test_what_was_saved_is_loaded(workers, tmp_path, shape, dtype, saved, loaded, data):
    """From any mesh and placement to any other, uneven and empty parts included."""
    arrays = {name: numbers(shape, dtype, seed) for seed, name in enumerate(("a", "b"))}
    tensors = {
        name: workers.distribute(array, saved, data.draw(placements(array.ndim, saved)))
        for name, array in arrays.items()
    }
    workers.save(tmp_path / "c", tensors)
    for name, tensor in workers.load(tmp_path / "c").items():
        same(tensor, arrays[name])
        assert (tensor.mesh, tensor.placement) == (saved, tensors[name].placement.combined())
    wanted = {name: data.draw(placements(len(shape), loaded)) for name in arrays}
    for name, tensor in workers.load(tmp_path / "c", loaded, wanted).items():
        same(tensor, arrays[name])
        assert (tensor.mesh, tensor.placement) == (loaded, Placement.from_text(wanted[name]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_saved(workers, tmp_path, dtype):
    """Bit by bit, where no library of the format has a word for it too."""
    array = numbers((5, 3), dtype)
    x = workers.distribute(array, workers.mesh((3,)), "S[0]")
    turned = workers.distribute(array.T, workers.mesh((3,)), "S[0]").T
    workers.save(tmp_path, {"x": x, "turned": turned})
    for tensor in workers.load(tmp_path, workers.mesh((2, 2)), "S[1], S[0]").values():
        same(tensor, array)


def test_other_sessions_load_it(workers, tmp_path):
    """With fewer workers and with more."""
    array = numbers((7, 5))
    workers.save(tmp_path, {"x": workers.distribute(array, workers.mesh((2, 2)), "S[0], S[1]")})
    with ProcessSession(3) as other:
        with pytest.raises(ConfigError, match=r"was saved on DeviceMesh.* session has 3 workers"):
            other.load(tmp_path)
        x = other.load(tmp_path, other.mesh(), "S[1]")["x"]
        same(x, array)
        other.save(tmp_path, {"x": x * 2})
    same(workers.load(tmp_path, placements="R")["x"], array * 2)


# What is on the disk ----------------------------------------------------------------------


def test_each_worker_writes_its_part_and_one_of_copies(workers, tmp_path):
    """As plain safetensors; partial values as what they are together."""
    array, mesh = numbers((4, 6)), workers.mesh((2, 2), ("dp", "tp"))
    tensors = {
        "rows": workers.distribute(array, mesh, "S[0], R"),
        "whole": workers.distribute(array, mesh, "R, R"),
        "sum": workers.distribute(array, mesh, "R, S[1]")
        @ workers.distribute(array.T, mesh, "R, S[0]"),
    }
    assert str(tensors["sum"].placement) == "R, P[sum]"
    workers.save(tmp_path, tensors)
    files = files_of(tmp_path)
    assert {name: set(tensors) for name, tensors in files.items()} == {
        "worker-00000.safetensors": {"rows", "whole", "sum"},
        "worker-00002.safetensors": {"rows"},
    }
    first = files["worker-00000.safetensors"]
    assert np.array_equal(first["rows"], array[:2])
    assert np.array_equal(files["worker-00002.safetensors"]["rows"], array[2:])
    assert np.array_equal(first["sum"], array @ array.T)
    entry = index_of(tmp_path)["tensors"]["rows"]
    assert entry == {
        "shape": [4, 6],
        "dtype": "float32",
        "layout": {
            "mesh": {"shape": [2, 2], "names": ["dp", "tp"], "workers": [0, 1, 2, 3]},
            "placement": "S[0], R",
        },
        "parts": [
            {"file": "worker-00000.safetensors", "bounds": [[0, 2], [0, 6]]},
            {"file": "worker-00002.safetensors", "bounds": [[2, 4], [0, 6]]},
        ],
    }


def test_what_is_saved_is_what_the_commands_before_made(workers, tmp_path):
    """And names may be anything that a text may be."""
    x = workers.distribute(numbers((4, 4)), None, "S[0]")
    y = (x @ x).T[1:, ::-1]
    names = ["y", "layer.0/weight", "ü [*]", " "]
    workers.save(tmp_path, dict.fromkeys(names, y))
    z = y + 1
    loaded = workers.load(tmp_path, placements={"ü [*]": "S[1]", "layer*": "R", "*": "S[0]"})
    assert [str(loaded[name].placement) for name in names] == ["S[0]", "R", "S[1]", "S[0]"]
    for name in names:
        same(loaded[name] + 1, z.numpy())


def test_thousands_of_tensors_are_a_few_commands(workers, tmp_path, monkeypatch):
    """Described and written in batches, each small; all of them are right."""
    monkeypatch.setattr(storage, "_PAGE_PARTS", 512)
    x = workers.distribute(np.arange(8.0), None, "S[0]")
    tensors = {f"t{number}": x + number for number in range(1500)}
    issued = workers.statistics()["issued"]
    workers.save(tmp_path, tensors)
    assert workers.statistics()["issued"] - issued < 60
    loaded = workers.load(tmp_path)
    assert list(loaded) == list(tensors)
    for number in (0, 3, 1499):
        same(loaded[f"t{number}"], np.arange(8.0) + number)


def test_the_progress_bar_counts_bytes(workers, tmp_path, capsys):
    """It is shown when it is asked for, and ends at the whole."""
    x = workers.distribute(np.zeros((4, 3 << 20), "float32"), None, "S[0]")
    workers.save(tmp_path, {"x": x, "y": x}, progress=True)
    assert "101M/101M" in capsys.readouterr().err
    workers.load(tmp_path, progress=True)
    assert "101M/101M" in capsys.readouterr().err
    workers.load(tmp_path)
    workers.save(tmp_path, {"x": x}, progress=False)
    assert capsys.readouterr().err == ""


# What cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "names", "text"),
    [
        ("c", [], "expected tensors by name"),
        ("c", [""], "expected the name of a tensor, got ''"),
        ("c", [3], "expected the name of a tensor, got 3"),
        ("c", ["__metadata__"], "expected the name of a tensor, got '__metadata__'"),
        ("c", ["\ud800"], "expected the name of a tensor as text"),
        ("", ["w"], "expected the path of a file or folder"),
        (3, ["w"], "expected the path of a file or folder"),
        (b"c", ["w"], "expected the path of a file or folder"),
    ],
)
def test_what_cannot_be_saved_is_refused_here(workers, path, names, text):
    """Before anything is sent."""
    x = workers.distribute(np.ones(3), None, "S[0]")
    issued = workers.statistics()["issued"]
    with pytest.raises(ConfigError, match=text):
        workers.save(path, dict.fromkeys(names, x))
    with pytest.raises(ConfigError, match="expected tensors by name"):
        workers.save("c", [x])
    with pytest.raises(
        ConfigError, match="expected a distributed tensor for 'w', got ndarray; ses"
    ):
        workers.save("c", {"w": np.ones(2)})
    assert workers.statistics()["issued"] == issued


def test_only_tensors_of_the_session_are_saved(workers, tmp_path):
    """And not while a program is captured, of which nothing is recorded then."""
    with ProcessSession(1) as other, pytest.raises(ForeignReference, match="of another session"):
        workers.save(tmp_path, {"x": other.distribute(np.ones(2))})
    x = workers.distribute(np.ones(3), None, "S[0]")
    with workers.capture() as program:
        with pytest.raises(CaptureError):
            workers.save(tmp_path, {"x": x})
        with pytest.raises(CaptureError):
            workers.load(tmp_path)
    assert program.num_steps == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"placements": "S[2], R"}, ConfigError, r"'x': S\[2\] splits an axis"),
        ({"placements": "Q"}, ConfigError, "at character 1 of a placement"),
        ({"placements": 3}, TypeError, "expected a placement such as"),
        ({"placements": {"y*": "R, R"}}, ConfigError, r"has 'y\*', and the checkpoint no such"),
        (
            {"placements": {"x": "R"}},
            ConfigError,
            "'x': expected 2 specs, one for each axis of the mesh",
        ),
        ({"mesh": 3}, TypeError, "expected a DeviceMesh"),
        ({"mesh": DeviceMesh((2,), [3, 4])}, ConfigError, r"session.mesh\(\(4,\)\)"),
        (
            {"mesh": DeviceMesh((4,), range(4))},
            ConfigError,
            r"saved as 'S\[0\], R' on a mesh of sh",
        ),
    ],
)
def test_where_it_cannot_lie_is_refused(workers, tmp_path, options, error, text):
    """With the tensor's name, and what to do."""
    x = workers.distribute(numbers((4, 6)), workers.mesh((2, 2)), "S[0], R")
    workers.save(tmp_path, {"x": x})
    with pytest.raises(error, match=text):
        workers.load(tmp_path, **options)


def test_a_tensor_that_could_not_be_computed_is_not_saved(workers, tmp_path):
    """The error is its own; what was there before stays, and the session goes on."""
    good = workers.distribute(np.arange(4.0), workers.mesh(), "R")
    workers.save(tmp_path, {"x": good})
    before = sorted(tmp_path.rglob("*"))
    bad = workers.apply("take", good, workers.distribute(np.array([9]), workers.mesh(), "R"))
    for _ in range(2):
        with pytest.raises(RemoteError, match="out of bounds"):
            workers.save(tmp_path, {"x": good, "bad": bad})
    assert sorted(tmp_path.rglob("*")) == before
    workers.sync_all()
    same(workers.load(tmp_path)["x"], np.arange(4.0))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/here", "cannot be written: "),
        ("/dev/null", "cannot be written: Not a directory"),
        ("/tmp/nul\0here", "expected an absolute path"),
    ],
)
def test_where_nobody_may_write_is_an_error(workers, path, text):
    """With what the system says; the session goes on."""
    x = workers.distribute(np.ones(2))
    with pytest.raises(BadFile, match=text):
        workers.save(path, {"x": x})
    workers.sync_all()


def test_a_save_that_is_interrupted_leaves_what_was_there(workers, tmp_path, monkeypatch):
    """By Ctrl-C, for example; and the next one finds nobody in its way."""
    x = workers.distribute(np.arange(6.0), None, "S[0]")
    workers.save(tmp_path, {"x": x})
    before = sorted(tmp_path.rglob("*"))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tqdm.tqdm, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            workers.save(tmp_path, {"x": x + 1})
    workers.sync_all()
    assert sorted(tmp_path.rglob("*")) == before
    workers.save(tmp_path, {"x": x + 2})
    same(workers.load(tmp_path)["x"], np.arange(6.0) + 2)


def test_what_may_be_written_is_the_daemon_s_word(daemons, tmp_path):
    """Nothing by default, a folder with --allow-save; reading is another permission."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1", "--name", "closed")
    with connect(controller.address, num_workers=1) as session:
        with pytest.raises(NotAllowed, match="start disco-worker with --allow-save /"):
            session.save(tmp_path / "c", {"x": session.distribute(np.ones(2))})
        session.sync_all()
    other = daemons.controller()
    inside = tmp_path / "in"
    options = ("--slots", "1", "--allow-save", inside)
    daemons.worker(other.address, *options)
    with connect(other.address, num_workers=1) as session:
        x = session.distribute(np.ones(2))
        session.save(inside / "c", {"x": x})
        for path in (tmp_path / "c", inside / ".." / "c"):
            with pytest.raises(NotAllowed, match="--allow-save"):
                session.save(path, {"x": x})
        with pytest.raises(NotAllowed, match="--allow-read"):
            session.load(inside / "c")
    assert [path.name for path in inside.iterdir()] == ["c"]


def test_nodes_need_a_folder_that_they_share(daemons):
    """Where each node has its own, the first that notices says what to do."""
    controller = daemons.controller()
    options = ("--slots", "1", "--allow-read", "*", "--allow-save", "*")
    nodes = [daemons.worker(controller.address, *options, "--name", n) for n in ("one", "two")]
    path = "/proc/self/cwd/c"
    with connect(controller.address, num_workers=2) as session:
        x = session.distribute(np.arange(4.0), None, "S[0]")
        with pytest.raises(
            BadFile, match=r"worker 1 does not see it: .* a folder that all workers"
        ):
            session.save(path, {"x": x})
        assert not any(any((node.folder / "c").glob("*")) for node in nodes)
        session.save(path, {"x": x.redistribute("R")})  # one worker has it all
        with pytest.raises(BadFile, match="there is no such file here"):
            session.load(path)
        session.sync_all()
