"""load_weights over four workers in two groups on two nodes: real files, every format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from disco_client import (
    BadFile,
    ConfigError,
    NotAllowed,
    WeightsMismatch,
    bulk_io,
    connect,
)
from disco_client.distributed import DeviceMesh, PlacementSpec, from_safetensors
from disco_server.cli.local import LocalCluster

WORKERS = range(4)
RANDOM = np.random.default_rng(5)
TENSORS = {
    "embed": RANDOM.random((20, 8), np.float32),
    "layers.0.qkv": RANDOM.random((16, 8)).astype(ml_dtypes.bfloat16),
    "layers.0.down": RANDOM.random((8, 16)).astype(np.float16),
    "layers.1.qkv": RANDOM.random((16, 8)).astype(ml_dtypes.float8_e4m3fn),
    "layers.1.down": RANDOM.random((8, 16)),
    "mask": np.array([True, False]),
    "ids": np.arange(8, dtype=np.int64),
    "scale": np.array(0.5, np.float32),
}
PLAN = {
    "embed": "S[0]",
    "*.qkv": PlacementSpec.fused(0, parts=(8, 4, 4)),
    "*.down": -1,
    "*": "R",
}


@pytest.fixture(scope="module")
def session(cluster):
    """Four workers in two groups, shared by the tests of this file."""
    with connect(cluster.address, num_workers=4, num_groups=2) as shared:
        shared.import_python_module("disco_test_functions")
        yield shared


@pytest.fixture
def single(tmp_path):
    """A model in one file."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def share(name, worker, shares):
    """What numpy says a worker has."""
    tensor, index = TENSORS[name], worker % shares
    if name == "embed":
        return np.split(tensor, shares)[index]
    if name.endswith("qkv"):
        return np.concatenate([np.split(p, shares)[index] for p in np.split(tensor, [8, 12])])
    if name.endswith("down"):
        return np.split(tensor, shares, 1)[index]
    return tensor


@pytest.mark.parametrize(("in_group", "shares"), [(True, 2), (False, 4)])
def test_each_worker_has_its_share_of_every_tensor(session, single, in_group, shares):
    """Split, fused, replicated; each group has a copy, or there is one in all."""
    loaded = session.load_weights(single, PLAN, in_group=in_group)
    assert loaded.keys() == TENSORS.keys()
    for name, weight in loaded.items():
        assert weight.shape == TENSORS[name].shape
        assert weight.mesh.shape == ((2, 2) if in_group else (4,))
        assert np.array_equal(weight.numpy(), TENSORS[name])
        for worker in WORKERS:
            expected = share(name, worker, shares)
            got = weight.shard(worker)
            assert got.dtype.name == weight.dtype == expected.dtype.name or got.ndim == 0
            assert np.array_equal(got, expected)
            assert weight.shape_on(worker) == expected.shape


def test_weights_are_arguments_like_any_reference(session, single):
    """Functions on the workers take them."""
    loaded = session.load_weights(single, PLAN)
    total = session.get_global_func("numpy.sum")(loaded["embed"])
    assert total.numpy(1) == pytest.approx(share("embed", 1, 2).sum(), rel=1e-5)


def test_floating_point_becomes_the_dtype_that_is_wanted(session, single):
    """Nothing else does; the references know."""
    loaded = session.load_weights(single, PLAN, dtype="bfloat16")
    for name, weight in loaded.items():
        wanted = TENSORS[name].dtype.name if name in ("mask", "ids") else "bfloat16"
        assert weight.dtype == wanted
        assert np.array_equal(
            np.asarray(weight.shard(3), np.float32),
            np.asarray(share(name, 3, 2).astype(wanted), np.float32),
        )
    assert session.load_weights(single, PLAN, dtype=np.float16)["embed"].dtype == "float16"


def test_an_index_of_several_files(session, tmp_path):
    """By the index or by its folder, relative to the client's own folder too."""
    weight_map = {}
    for number, (name, _tensor) in enumerate(TENSORS.items()):
        file = f"model-{number % 3}.safetensors"
        weight_map[name] = file
    for file in set(weight_map.values()):
        save_file({n: TENSORS[n] for n in TENSORS if weight_map[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    relative = Path("..").joinpath(*[".."] * len(Path.cwd().parts), *index.parts[1:])
    for path in (tmp_path, str(index), relative):
        loaded = session.load_weights(path, PLAN)
        assert loaded.keys() == TENSORS.keys()
        assert all(np.array_equal(w.shard(2), share(n, 2, 2)) for n, w in loaded.items())


@pytest.fixture
def quantized(tmp_path):
    """A GGUF file whose matrices are stored in blocks, and these bytes."""
    kind = gguf.GGMLQuantizationType.Q4_1
    tensors = {
        "rows.weight": gguf.quantize(RANDOM.random((9, 64), np.float32), kind),
        "down.weight": gguf.quantize(RANDOM.random((4, 160), np.float32), kind),
        "norm.weight": RANDOM.random(64, np.float32),
    }
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for name, stored in tensors.items():
        writer.add_tensor(name, stored, raw_dtype=kind if stored.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model.gguf", tensors


KEPT = ("Q4_1", "Q8_0")
IN_BLOCKS = {
    "rows.*": PlacementSpec.sharding(0),
    "down.*": PlacementSpec.explicit(1, [(0, 64), (64, 96), (96, 128), (128, 160)]),
    "*": "R",
}


def test_a_gguf_file(session, quantized):
    """Each worker reads its own blocks, with uneven parts too, and has plain numbers of them."""
    path, tensors = quantized
    kind = gguf.GGMLQuantizationType.Q4_1
    loaded = session.load_weights(path, IN_BLOCKS, in_group=False)
    for name, stored in tensors.items():
        wanted = gguf.dequantize(stored, kind) if stored.dtype == np.uint8 else stored
        assert loaded[name].dtype == "float32"
        assert np.array_equal(loaded[name].numpy(), wanted)
    assert loaded.keys() == tensors.keys()
    assert loaded["down.weight"].shape_on(0) == (4, 64)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadFile, match="cut off"):
        session.load_weights(path, IN_BLOCKS)


def test_blocks_stay_as_they_lie(session, quantized):
    """With keep_blocks each worker has the bytes of its own blocks; other tensors are as ever."""
    path, tensors = quantized
    expect = {"rows.weight": (9, 64), "down.weight": (4, 160), "norm.weight": None}
    loaded = session.load_weights(
        path, IN_BLOCKS, in_group=False, keep_blocks=KEPT, expect=expect, dtype="float16"
    )
    for name in ("rows.weight", "down.weight"):
        assert loaded[name].dtype == "uint8"
        assert np.array_equal(loaded[name].numpy(), tensors[name])
    assert loaded["down.weight"].shape_on(0) == (4, 2 * 20)
    assert loaded["norm.weight"].dtype == "float16"
    whole = session.load_weights(path, {"*": "R"}, keep_blocks=KEPT)
    assert np.array_equal(whole["down.weight"].shard(3), tensors["down.weight"])
    other = session.load_weights(path, {"*": "R"}, keep_blocks={"Q8_0"})
    assert other["down.weight"].dtype == "float32"


@pytest.mark.parametrize("formats", [True, "Q4_1", [1]], ids=repr)
def test_what_is_no_format_is_refused(session, tmp_path, formats):
    """keep_blocks takes names of formats; anything else is an error at the client."""
    with pytest.raises(ConfigError, match="expected formats of blocks such as"):
        session.load_weights(tmp_path, {"*": "R"}, keep_blocks=formats)


def test_a_tensor_whose_blocks_are_cut_becomes_numbers(session, quantized):
    """Where a plan cuts a block, keep_blocks leaves that tensor alone and keeps the others."""
    path, tensors = quantized
    plan = {"down.*": PlacementSpec.explicit(1, [(0, 64), (64, 80), (80, 128), (128, 160)])}
    loaded = session.load_weights(
        path, {**plan, "*": "R"}, in_group=False, keep_blocks=KEPT, dtype="float16"
    )
    kinds = {name: tensor.dtype for name, tensor in loaded.items()}
    assert kinds == {"rows.weight": "uint8", "down.weight": "float16", "norm.weight": "float16"}
    wanted = gguf.dequantize(tensors["down.weight"], gguf.GGMLQuantizationType.Q4_1)
    assert np.array_equal(loaded["down.weight"].numpy(), wanted.astype(np.float16))


def test_a_tensor_cache(session, tmp_path):
    """As MLC models come, with float32 written as its upper halves."""
    weight = TENSORS["embed"].astype(ml_dtypes.bfloat16)
    (tmp_path / "p.bin").write_bytes(b"12345678" + weight.tobytes())
    record = {"name": "embed", "shape": [20, 8], "dtype": "float32", "format": "f32-to-bf16"}
    record |= {"nbytes": weight.nbytes, "byteOffset": 8}
    file = {"dataPath": "p.bin", "format": "raw-shard", "nbytes": 8 + weight.nbytes}
    content = {"metadata": {}, "records": [file | {"records": [record]}]}
    (tmp_path / "tensor-cache.json").write_text(json.dumps(content))
    loaded = session.load_weights(tmp_path, {"embed": 1})["embed"]
    assert loaded.dtype == "float32"
    assert np.array_equal(loaded.shard(1), weight.astype(np.float32)[:, 4:])


def test_thousands_of_tensors_are_a_few_round_trips(session, tmp_path):
    """Not one for each; and all of them are right."""
    tensors = {f"t{i:04}": np.full((4, 2), i, np.int32) for i in range(3000)}
    save_file(tensors, tmp_path / "m.safetensors")
    loaded = session.load_weights(tmp_path, {"*": "S[0]"})
    assert list(loaded) == sorted(tensors)
    for i in (0, 255, 256, 2999):
        assert np.array_equal(loaded[f"t{i:04}"].shard(1), np.full((2, 2), i))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize("split", ["S[0]", "S[1]"])
def test_each_worker_reads_only_its_own_bytes(session, tmp_path, split):
    """By the kernel's count of each worker process: a quarter of 32 MiB."""
    session.import_python_module("disco_test_shards")
    save_file({"t": np.ones((128, 1 << 16), np.float32)}, tmp_path / "m.safetensors")
    count = session.get_global_func("tests.bytes_read")
    before = count()
    loaded = session.load_weights(tmp_path, {"t": split}, in_group=False)
    after = count()
    for worker in WORKERS:
        own = 8 << 20
        assert loaded["t"].shard(worker).nbytes == own
        read = after.debug_get_from_remote(worker) - before.debug_get_from_remote(worker)
        assert own <= read < own + (1 << 19)


def test_what_does_not_fit_is_named_before_anything_is_allocated(session, single):
    """All of it in one error; no worker was told to read."""
    expect = {"embed": (21, 8), "lm_head": (20, 8)}
    issued = session.statistics()["issued"]
    with pytest.raises(WeightsMismatch) as raised:
        session.load_weights(
            single, {"*.qkv": PlacementSpec.fused(0, parts=3), "*": "R"}, expect=expect
        )
    text = str(raised.value)
    assert "embed: expected shape [21, 8], the file has [20, 8]" in text
    assert "lm_head: missing" in text
    assert "ids: surplus" in text
    assert len(raised.value.problems) == 2 + len(TENSORS) - 1
    with pytest.raises(WeightsMismatch, match="its extent 16 cannot be cut into 3 equal parts"):
        session.load_weights(single, {"*.qkv": PlacementSpec.fused(0, parts=3), "*": "R"})
    # Twice: two functions by name the first time, two calls, one sync, one fetch.
    assert session.statistics()["issued"] - issued <= 10


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"plan": None}, "expected a plan such as"),
        ({"plan": {"*": "Q"}}, "expected 'R'"),
        ({"expect": 3}, "expected a mapping of names to shapes"),
        ({"dtype": "int8"}, "expected a floating-point dtype, got 'int8'"),
        ({"dtype": "float33"}, "expected the name of a dtype"),
        ({"path": 3}, "expected the path of a file or folder, got 3"),
        ({"path": ""}, "expected the path of a file or folder, got ''"),
    ],
)
def test_wrong_arguments_are_refused_at_once(session, single, options, text):
    """Nothing is sent."""
    issued = session.statistics()["issued"]
    with pytest.raises(ConfigError, match=text):
        session.load_weights(**{"path": single, "plan": PLAN} | options)
    assert session.statistics()["issued"] == issued


def test_a_missing_file_names_nodes_and_path(session, single, tmp_path):
    """And the session goes on."""
    with pytest.raises(BadFile, match=r"/none: there is no such file here") as raised:
        session.load_weights(tmp_path / "none", PLAN)
    assert {failure.node for failure in raised.value.failures} == {"node-0", "node-1"}
    assert raised.value.issued_at.filename == __file__
    assert len(session.load_weights(single, PLAN)) == len(TENSORS)


def test_a_malformed_file_is_a_typed_error(session, single):
    """With file and figures."""
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadFile, match=r"model.safetensors, tensor 'layers.1.qkv': expected bytes"):
        session.load_weights(single, PLAN)


def test_a_file_that_shrinks_while_it_is_loaded_fails_once(session, tmp_path, monkeypatch):
    """The error is raised here, and not again by the next sync; the session goes on."""
    monkeypatch.setattr(bulk_io, "_BATCH_BYTES", 4096)  # several commands
    path = tmp_path / "m.safetensors"
    save_file({f"t{i}": np.zeros(1024, np.float32) for i in range(8)}, path)
    mark, marks = session._core.mark, []

    def mark_and_cut(worker=None, deadline=None):
        marks.append(mark(worker, deadline))
        if len(marks) == 3:  # the headers are read, checked on all workers, and one batch too
            session._core.await_mark(marks[-1])
            os.truncate(path, 4096 * 3)
            return mark(worker, deadline)
        return marks[-1]

    monkeypatch.setattr(session._core, "mark", mark_and_cut)
    with pytest.raises(BadFile, match=r"tensor 't\d': expected 4096 bytes .* has 12288 bytes"):
        session.load_weights(tmp_path, {"*": "R"})
    assert len(marks) > 3
    session.sync_all()


def test_nodes_whose_files_differ_are_refused(daemons, tmp_path):
    """Each node reads its own files; one path may be two models."""
    controller = daemons.controller()
    options = ("--slots", "1", "--allow-read", "*")
    for number, name in enumerate(("one", "two"), 4):
        folder = tmp_path / name
        folder.mkdir()
        save_file({"t": np.zeros(number, np.int8)}, folder / "m.safetensors")
        daemons.worker(controller.address, *options, "--name", name, "--work-dir", folder)
    with connect(controller.address, num_workers=2) as session:
        with pytest.raises(BadFile, match="are not those on worker 0's node") as raised:
            # A rank's own folder is that of the node, its daemon's, its session's and its own.
            session.load_weights("/proc/self/cwd/../../../m.safetensors", {"*": "R"})
        assert [failure.worker for failure in raised.value.failures] == [1]
        session.sync_all()


def test_the_progress_bar_counts_bytes_that_workers_have_read(session, tmp_path, capsys):
    """It is shown when it is asked for, and ends at the whole."""
    tensors = {f"t{i}": np.zeros(3 << 20, np.float32) for i in range(8)}
    save_file(tensors, tmp_path / "m.safetensors")
    session.load_weights(tmp_path, {"*": "R"}, progress=True)
    shown = capsys.readouterr().err
    assert "101M/101M" in shown
    assert "100%" in shown
    session.load_weights(tmp_path, {"*": "R"})
    session.load_weights(tmp_path, {"*": "R"}, progress=False)
    assert capsys.readouterr().err == ""


def test_what_may_be_read_is_the_daemon_s_word(daemons, single):
    """Nothing by default, a folder with --allow-read."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1", "--name", "closed")
    with connect(controller.address, num_workers=1) as session:
        with pytest.raises(NotAllowed, match="--allow-read"):
            session.load_weights(single, PLAN)
        session.sync_all()
    other = daemons.controller()
    daemons.worker(other.address, "--slots", "1", "--allow-read", single)
    with connect(other.address, num_workers=1) as session:
        assert len(session.load_weights(single, PLAN)) == len(TENSORS)
        with pytest.raises(NotAllowed):
            session.load_weights(single / ".." / "elsewhere", PLAN)


def test_a_client_needs_neither_safetensors_nor_ml_dtypes(single):
    """To plan and load; they are the workers' business."""
    program = """
import sys
sys.modules["safetensors"] = sys.modules["ml_dtypes"] = None
import disco_client
with disco_client.connect(sys.argv[1], num_workers=1) as session:
    loaded = session.load_weights(sys.argv[2], {"*": "R"}, dtype="bfloat16")
    print(sorted({weight.info.tensor_sinfo.dtype_name for weight in loaded.values()}))
"""
    with LocalCluster(1, 1) as cluster:
        command = [sys.executable, "-c", program, cluster.address, str(single)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['bfloat16', 'bool', 'int64']\n", done.stderr


def test_tied_weights_load_by_the_name_that_only_metadata_have(session, tmp_path):
    """In one file, a folder, and behind an index, whose own metadata count too; whole or split."""
    embed, tied = TENSORS["embed"], {"format": "pt", "head": "embed"}
    rest = {"norm": TENSORS["layers.0.down"]}
    one, folder, index = tmp_path / "one.safetensors", tmp_path / "folder", tmp_path / "index"
    save_file({"embed": embed, **rest}, one, metadata=tied)
    for place, metadata in ((folder, tied), (index, {"format": "pt"})):
        place.mkdir()
        save_file({"embed": embed}, place / "a.safetensors", metadata={"format": "pt"})
        # The name may stand beside other tensors than the one that it is of.
        save_file(rest, place / "b.safetensors", metadata=metadata)
    names = {"embed": "a.safetensors", "norm": "b.safetensors"}
    said = {"metadata": {"total_size": 1, "head": "embed"}, "weight_map": names}
    (index / "model.safetensors.index.json").write_text(json.dumps(said))
    for path in (one, folder, index):
        loaded = session.load_weights(path, {"*": "R"})
        assert loaded.keys() == {"embed", "norm", "head"}
        assert np.array_equal(loaded["head"].numpy(), embed)
        plan, expect = {"head": "S[0]", "norm": "R"}, {"head": (20, 8), "norm": None}
        head = session.load_weights(path, plan, expect=expect, in_group=False)["head"]
        assert head.shape_on(3) == (5, 8)
        assert np.array_equal(head.numpy(), embed)
        (norm,) = session.load_weights(path, {"norm": "R", "*": "skip"}).values()
        assert np.array_equal(norm.numpy(), rest["norm"])
        mesh = DeviceMesh((2, 2), WORKERS)
        part = session.distribute(from_safetensors(path, "head"), mesh, "R, S[0]")
        assert np.array_equal(part.numpy(), embed)
    names["head"] = "a.safetensors"
    save_file({"embed": embed}, index / "a.safetensors", metadata=tied)
    said = {"weight_map": names}
    (index / "model.safetensors.index.json").write_text(json.dumps(said))
    assert session.load_weights(index, {"*": "R"}).keys() == {"embed", "norm", "head"}
    save_file(rest, folder / "b.safetensors", metadata={"head": "norm"})
    save_file({"embed": embed}, folder / "a.safetensors", metadata=tied)
    with pytest.raises(BadFile, match="tensor 'head': the metadata name it 'embed' and 'norm'"):
        session.load_weights(folder, {"*": "R"})
