"""The original's ShardLoader, over four workers on two nodes."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from disco_client import (
    BadArgument,
    BadFile,
    FunctionNotFound,
    Shape,
    ThreadedSession,
    connect,
)
from disco_server.rank.builtins.weights import ShardLoader
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import resolve
from disco_server.rank.worker import Worker, set_current_worker

WORKERS = range(4)


@pytest.fixture(scope="module")
def session(cluster):
    """Four workers, shared by the tests of this file; MPI is between them."""
    with connect(cluster.address, num_workers=4) as shared:
        shared.import_python_module("disco_test_shards")
        yield shared


def write_cache(folder, tensors, narrow=()):
    """A tensor-cache.json and one data file; returns the path and the text."""
    records, data = [], b""
    for name, tensor in tensors.items():
        stored = tensor.astype(ml_dtypes.bfloat16) if name in narrow else tensor
        entry = {"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype.name}
        entry |= {"format": "f32-to-bf16" if name in narrow else "raw"}
        records.append(entry | {"nbytes": stored.nbytes, "byteOffset": len(data)})
        data += stored.tobytes()
    (folder / "params_shard_0.bin").write_bytes(data)
    file = {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": len(data)}
    text = json.dumps({"metadata": {}, "records": [file | {"md5sum": "", "records": records}]})
    path = folder / "tensor-cache.json"
    path.write_text(text)
    return str(path), text


def function(session, name=""):
    return session.get_global_func(f"runtime.disco.ShardLoader{name}")


def values(ref):
    return [ref.debug_get_from_remote(worker) for worker in WORKERS]


X0 = np.arange(64 * 128, dtype=np.float16).reshape(64, 128)
X1 = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
INFO = {
    "param_0": [["tests.disco.shard_dim_1", [[4, 64, 32], "float16"], 4]],
    "param_1": [["tests.disco.shard_dim_0", [[4, 8, 128], "float32"], 4]],
}


def test_a_parameter_with_functions_is_scattered(session, tmp_path):
    """By position in the file, along the axis that the functions split."""
    path, text = write_cache(tmp_path, {"param_1": X1, "param_0": X0})
    loader = function(session)(path, text, json.dumps(INFO), None)
    load = function(session, "Load")
    rows, columns = values(load(loader, Shape([0]))), values(load(loader, Shape([1])))
    for worker in WORKERS:
        assert np.array_equal(rows[worker], X1[8 * worker : 8 * worker + 8])
        assert np.array_equal(columns[worker], X0[:, 32 * worker : 32 * worker + 32])


def test_all_come_in_the_order_of_their_numbers(session, tmp_path):
    """Split ones and whole ones, as a list in one register."""
    narrow = np.full((3, 3), 1.5, np.float32)
    tensors = {"param_2": narrow, "param_0": X0, "param_1": X1}
    path, text = write_cache(tmp_path, tensors, narrow=["param_2"])
    loader = function(session)(path, text, json.dumps(INFO), None)
    for worker, arrays in enumerate(values(function(session, "LoadAll")(loader))):
        assert [array.shape for array in arrays] == [(64, 32), (8, 128), (3, 3)]
        assert np.array_equal(arrays[0], X0[:, 32 * worker : 32 * worker + 32])
        assert arrays[2].dtype == np.float32
        assert np.array_equal(arrays[2], narrow)


@pytest.mark.parametrize("info", ["{}", ""])
def test_a_parameter_without_functions_is_broadcast(session, tmp_path, info):
    """bfloat16, float8, 0-d and empty ones too."""
    tensors = {
        "a": X0.astype(ml_dtypes.bfloat16),
        "b": np.ones((3,), ml_dtypes.float8_e4m3fn),
        "c": np.array(2.5, np.float32),
        "d": np.zeros((0, 4), np.int8),
        "e": np.array([True, False]),
    }
    path, text = write_cache(tmp_path, tensors)
    loader = function(session)(path, text, info, None)
    for index, tensor in enumerate(tensors.values()):
        for got in values(function(session, "Load")(loader, Shape([index]))):
            assert np.asarray(got).dtype == tensor.dtype
            assert np.array_equal(got, tensor)


def test_a_function_is_found_in_what_a_compiled_module_imports(session, tvm_modules, tmp_path):
    """As models are compiled whose functions split the parameters."""
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    path, text = write_cache(tmp_path, {"w": rows})
    pair = {"w": [["shard_rows", [[2, 2, 2], "float32"]]]}
    with ThreadedSession(2) as two:
        module = two.load_vm_module(tvm_modules / "importing.so")
        loader = function(two)(path, text, json.dumps(pair), module)
        part = function(two, "Load")(loader, Shape([0]))
        assert [part.numpy(worker).tolist() for worker in range(2)] == rows.reshape(
            2, 2, 2
        ).tolist()


def test_functions_are_chained(session, tmp_path):
    """Query, key and value of a fused projection: heads to parts, then to rows."""
    queries, keys, width, hidden = 8, 4, 2, 6
    rows = (queries + 2 * keys) * width
    weight = np.arange(rows * hidden, dtype=np.float32).reshape(rows, hidden)
    info = {
        "w": [
            ["tests.disco.shard_qkv_0", [[4, 4, width, hidden], "float32"], 4, queries, keys],
            ["tests.disco.shard_qkv_1", [[4, 4 * width, hidden], "float32"]],
        ]
    }
    path, text = write_cache(tmp_path, {"w": weight})
    loader = function(session)(path, text, json.dumps(info), None)
    got = values(function(session, "Load")(loader, Shape([0])))
    parts = np.split(weight, [queries * width, (queries + keys) * width])
    for worker in WORKERS:
        expected = np.concatenate([np.split(part, 4)[worker] for part in parts])
        assert np.array_equal(got[worker], expected)


def test_a_module_s_functions_and_shard_info_come_first(session, tmp_path):
    """With an empty text, the module says how its parameters are split."""
    weight = np.arange(48, dtype=np.float32).reshape(8, 6)
    path, text = write_cache(tmp_path, {"param_0": X1, "param_1": weight})
    module = session.get_global_func("tests.this_module")()
    loader = function(session)(path, text, "", module)
    got = values(function(session, "Load")(loader, Shape([1])))
    for worker in WORKERS:
        assert np.array_equal(got[worker], weight[2 * worker : 2 * worker + 2] / 2)


def test_worker_0_alone_has_what_was_loaded_there(session, tmp_path):
    """The others have an array of that shape."""
    path, text = write_cache(tmp_path, {"param_1": X1, "param_0": X0})
    loader = function(session)(path, text, "", None)
    got = values(function(session, "LoadParamOnWorker0")(loader, 1))
    assert np.array_equal(got[0], X1)
    assert {(array.shape, array.dtype) for array in got} == {(X1.shape, X1.dtype)}


def test_presharded_parameters_are_read_by_their_own_worker(session, tmp_path):
    """By position, and all of them by name."""
    tensors = {
        f"param_{number}_shard-{worker + 1}-of-4": np.full((2, number + 1), worker, np.float32)
        for worker in WORKERS
        for number in range(2)
    }
    path, text = write_cache(tmp_path, tensors)
    loader = function(session)(path, text, "{}", None)
    one = values(function(session, "LoadPresharded")(loader, Shape([1])))
    both = values(function(session, "LoadAllPresharded")(loader))
    for worker in WORKERS:
        assert np.array_equal(one[worker], np.full((2, 2), worker))
        assert [array.shape for array in both[worker]] == [(2, 1), (2, 2)]
        assert np.array_equal(both[worker][0], np.full((2, 1), worker))


@pytest.mark.parametrize(
    ("info", "error", "text"),
    [
        ("{", BadArgument, "the shard info: expected JSON"),
        ({"param_9": []}, BadArgument, "'param_9', which is not in the metadata"),
        ({"param_0": 3}, BadArgument, "expected a list of functions for 'param_0'"),
        ({"param_0": [["f"]]}, BadArgument, r"expected a function as \[name, \[\[shape\], dtype\]"),
        ({"param_0": [["f", [[4], "int3"]]]}, BadArgument, "expected a function as"),
        ({"param_0": [["f", [[4], "int8"], "x"]]}, BadArgument, "expected a function as"),
        ({"param_0": [["nosuch", [[4], "int8"]]]}, FunctionNotFound, "no function named 'nosuch'"),
        (
            {"param_0": [["tests.disco.shard_dim_0", [[2, 32, 128], "float16"], 2]]},
            BadArgument,
            "expected 4 parts of 'param_0', one for each worker, .* got shape",
        ),
    ],
)
def test_wrong_shard_info_is_refused_when_the_loader_is_made(session, tmp_path, info, error, text):
    """On every worker, before anything is read; the session goes on."""
    path, metadata = write_cache(tmp_path, {"param_0": X0})
    info = info if isinstance(info, str) else json.dumps(info)
    function(session)(path, metadata, info, None)
    with pytest.raises(error, match=text):
        session.sync_all()


@pytest.mark.parametrize(
    ("name", "argument", "text"),
    [
        ("Load", Shape([5]), r"expected a position below 2, got Shape\(\[5\]\)"),
        ("Load", Shape([0, 1]), "expected a position"),
        ("Load", "0", "expected a position"),
        ("LoadAll", None, "there is no parameter 'param_0' among 2"),
        ("LoadParamOnWorker0", 1, "there is no parameter 'param_1' among 2"),
        ("LoadPresharded", Shape([0]), "expected a position below 0"),
        ("LoadAllPresharded", None, None),
    ],
)
def test_what_is_not_there_is_refused_by_name(session, tmp_path, name, argument, text):
    """On the workers, with what there is."""
    path, metadata = write_cache(tmp_path, {"a": X0, "b": X1})
    loader = function(session)(path, metadata, "", None)
    arguments = () if argument is None else (argument,)
    result = function(session, name)(loader, *arguments)
    if text is None:
        assert values(result) == [[]] * 4
        return
    with pytest.raises(BadArgument, match=text):
        session.sync_all()


def test_presharded_names_must_fit_the_workers(session, tmp_path):
    """Each worker's name says which part of how many it is."""
    path, metadata = write_cache(tmp_path, {f"p{i}_shard-1-of-4": X1 for i in WORKERS})
    loader = function(session)(path, metadata, "", None)
    function(session, "LoadPresharded")(loader, Shape([0]))
    with pytest.raises(
        BadArgument, match=r"ends in _shard-2-of-4 at position 1, .* got 'p1_shard-1"
    ):
        session.sync_all()


def test_a_file_that_worker_0_lacks_ends_the_load_for_all(session, tmp_path):
    """Its peers wait for it in the broadcast; they are told, and the session goes on."""
    path, metadata = write_cache(tmp_path, {"a": X0})
    loader = function(session)(path, metadata, "", None)
    (tmp_path / "params_shard_0.bin").unlink()
    function(session, "Load")(loader, Shape([0]))
    with pytest.raises(BadFile, match=r"params_shard_0.bin: there is no such file here") as raised:
        session.sync_all()
    assert raised.value.worker == 0
    write_cache(tmp_path, {"a": X0})
    assert np.array_equal(values(function(session, "Load")(loader, Shape([0])))[3], X0)


def test_alone_a_worker_needs_no_peers(tmp_path):
    """One worker has the only part of every parameter."""
    worker = Worker(0, 1, 1, open_groups=lambda *_: pytest.fail("none"), allow_read=("*",))
    set_current_worker(worker)
    try:
        path, text = write_cache(tmp_path, {"param_0": X0})
        loader = ShardLoader(path, text, "", None)
        assert np.array_equal(loader.load(0), X0)
        with pytest.raises(ArgumentRefused, match="two workers or more"):
            resolve("runtime.disco.ShardLoaderLoadPresharded", ())(loader, 0)
        with pytest.raises(ArgumentRefused, match="expected a ShardLoader, got int"):
            resolve("runtime.disco.ShardLoaderLoad", ())(3, 0)
        with pytest.raises(ArgumentRefused, match="expected the metadata as text, got int"):
            ShardLoader(path, 3, "", None)
    finally:
        set_current_worker(None)
