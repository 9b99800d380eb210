"""Files that clients name: no dots, links or manifests lead out of what is allowed."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.distributed import from_npy, from_safetensors

REFUSED = (errors.NotAllowed, errors.BadFile)


def safetensors():
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"w": entry}).encode()
    return struct.pack("<Q", len(header)) + header + np.ones(2, "float32").tobytes()


def tensor_cache(path):
    tensor = {"name": "w", "shape": [2], "dtype": "float32", "format": "raw"}
    shard = {"dataPath": path, "format": "raw-shard", "nbytes": 8}
    return json.dumps(
        {"records": [{**shard, "records": [{**tensor, "byteOffset": 0, "nbytes": 8}]}]}
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that is allowed, and beside it one that is not, with links between them."""
    root = tmp_path_factory.mktemp("files")
    inside, outside = root / "in", root / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "w.safetensors").write_bytes(safetensors())
        (folder / "w.bin").write_bytes(np.ones(2, "float32").tobytes())
        np.save(folder / "w.npy", np.ones(2))
        (folder / "m.py").write_text(f"open({str(root / 'sang')!r}, 'w')\ndef f(): return 7\n")
    for name in ("w.safetensors", "w.npy", "m.py"):
        (inside / f"link-{name}").symlink_to(outside / name)
    (inside / "folder").symlink_to(outside)
    (inside / "index.json").write_text('{"weight_map": {"w": "../out/w.safetensors"}}')
    (inside / "whole.json").write_text(
        json.dumps({"weight_map": {"w": str(outside / "w.safetensors")}})
    )
    (inside / "linked.json").write_text('{"weight_map": {"w": "link-w.safetensors"}}')
    for name, path in (("cache.json", "../out/w.bin"), ("good.json", "w.bin")):
        (inside / name).write_text(tensor_cache(path))
    return root


@pytest.fixture(scope="module")
def session(shared_daemons, place):
    """A session on a node that allows the one folder, for everything."""
    controller = shared_daemons.controller()
    folder = place / "in"
    allowed = [word for what in ("read", "save", "load") for word in (f"--allow-{what}", folder)]
    shared_daemons.worker(controller.address, "--slots", "1", *allowed)
    with connect(controller.address, num_workers=1, logs=False) as opened:
        yield opened


WAYS_OUT = [
    "{out}/NAME",
    "{in}/../out/NAME",
    "{in}/folder/NAME",
    "{in}/link-NAME",
    "/proc/self/root{out}/NAME",
]


def ways(place, name):
    filled = {"in": place / "in", "out": place / "out"}
    return [way.format(**filled).replace("NAME", name) for way in WAYS_OUT]


def test_weights_outside_are_not_read(session, place):
    """Neither by their path nor by a manifest that names them; what is inside is."""
    inside = place / "in"
    plan = {"*": "R"}
    indexes = [inside / name for name in ("index.json", "whole.json", "linked.json", "cache.json")]
    for path in (*ways(place, "w.safetensors"), *map(str, indexes), "/etc/passwd"):
        with pytest.raises(REFUSED, match="--allow-read"):
            session.load_weights(path, plan, progress=False)
    for name in ("w.safetensors", "good.json"):
        assert list(session.load_weights(str(inside / name), plan, progress=False)) == ["w"]


def test_tensors_outside_are_not_read(session, place):
    """As distributed tensors of single files."""
    mesh = session.mesh((1,), ("x",))
    for path in ways(place, "w.npy"):
        with pytest.raises(REFUSED, match="--allow-read"):
            session.distribute(from_npy(path), mesh, "R")
    for path in ways(place, "w.safetensors"):
        with pytest.raises(REFUSED, match="--allow-read"):
            session.distribute(from_safetensors(path, "w"), mesh, "R")
    assert session.distribute(from_npy(str(place / "in" / "w.npy")), mesh, "R").numpy().sum() == 2


def test_modules_outside_are_not_run(session, place):
    """The canary in each of them writes a file when it runs."""
    find = session.get_global_func("runtime.disco.load_vm_module")
    for path in ways(place, "m.py"):
        with pytest.raises(REFUSED, match="--allow-load"):
            session.load_vm_module(path).debug_get_from_remote(0)
        with pytest.raises(REFUSED, match="--allow-load"):
            find(path, None).debug_get_from_remote(0)
    assert not (place / "sang").exists()
    assert session.load_vm_module(place / "in" / "m.py")["f"]().debug_get_from_remote(0) == 7
    assert (place / "sang").exists()


def test_no_digest_tells_what_lies_outside(session, place):
    """A client that guesses a file's content learns nothing of whether it is there."""
    import hashlib

    wants = session.get_global_func("runtime.disco._wants_file")
    said = set()
    for path, content in (
        (place / "out" / "m.py", (place / "out" / "m.py").read_bytes()),
        (place / "out" / "n.py", b""),
    ):
        with pytest.raises(errors.NotAllowed) as refused:
            wants(str(path), hashlib.sha256(content).hexdigest(), [0]).debug_get_from_remote(0)
        said.add(str(refused.value).splitlines()[0].replace("m.py", "n.py"))
    assert len(said) == 1


def test_checkpoints_stay_inside(session, place):
    """Saved and loaded by their real paths, also those of their files."""
    mesh = session.mesh((1,), ("x",))
    x = session.distribute(np.ones(2, "float32"), mesh, "R")
    for path in (place / "out" / "c", place / "in" / "folder" / "c", place / "in" / ".." / "c"):
        with pytest.raises(REFUSED, match="--allow-save"):
            session.save(str(path), {"x": x}, progress=False)
        with pytest.raises(REFUSED, match="--allow-read"):
            session.load(str(path), mesh, progress=False)
    assert not (place / "out" / "c").exists()
    good = place / "in" / "c"
    session.save(str(good), {"x": x}, progress=False)
    (generation,) = good.glob("generation-*")
    generation.rename(place / "out" / "moved")
    generation.symlink_to(place / "out" / "moved")
    with pytest.raises(REFUSED, match="--allow-read"):
        session.load(str(good), mesh, progress=False)["x"].numpy()
    session.sync_all()
