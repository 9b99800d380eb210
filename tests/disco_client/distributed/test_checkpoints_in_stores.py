"""Sessions that save and load by URL: each worker reads and writes its own parts."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from object_servers import copy_file
from safetensors.numpy import save_file

from disco_client import BadFile, NotAllowed, ProcessSession, connect
from disco_server.storage.folders import list_names
from disco_server.storage.stores import ObjectPath

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def program_in(tmp_path):
    """A file of weights."""
    save_file({"w": X, "b": X[0]}, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_a_checkpoint_goes_through_a_store(bucket):
    """Small elements before large ones too; another number of workers loads it, cut otherwise."""
    flags = np.arange(8) % 2 == 0
    with ProcessSession(3) as session:
        flag, x = session.distribute(flags, None, "S[0]"), session.distribute(X, None, "S[0]")
        session.save(f"{bucket}/run", {"flags": flag, "x": x})
        session.save(f"{bucket}/run", {"flags": flag, "x": x * 2})
    with ProcessSession(2) as session:
        loaded = session.load(f"{bucket}/run", session.mesh((2,)), {"x": "S[1]", "*": "R"})
        assert np.array_equal(loaded["x"].numpy(), X * 2)
        assert np.array_equal(loaded["flags"].numpy(), flags)
        assert list(loaded) == ["flags", "x"]


def test_a_session_goes_on_from_a_store(bucket, daemons):
    """From what `session.checkpoint` writes there, whose former one is gone."""
    controller = daemons.controller()
    options = ("--slots", "3", "--allow-read", bucket, "--allow-save", bucket)
    daemons.worker(controller.address, *options, DISCO_ENV="AWS_*")
    with connect(controller.address, num_workers=2, recover="replay") as session:
        x = session.distribute(X, None, "S[0]")
        for _ in range(2):
            x = x * 2
            session.checkpoint(f"{bucket}/steps")
        os.kill(session.workers[1].pid, signal.SIGKILL)
        assert np.array_equal(x.numpy(), X * 4)
        assert len(session.recoveries) == 1
    (left,) = list_names(ObjectPath(f"{bucket}/steps"))
    assert left.endswith("-2")


def test_a_module_is_loaded_from_a_store_where_the_daemon_allows_it(bucket, daemons, tmp_path):
    """Each worker reads it; what replaces the object is another module."""
    controller = daemons.controller()
    options = ("--slots", "2", "--allow-load", f"{bucket}/m")
    daemons.worker(controller.address, *options, DISCO_ENV="AWS_*")
    with connect(controller.address, num_workers=2) as session:
        for value in (7, 8):
            (tmp_path / "m.py").write_text(f"def f():\n    return {value}\n")
            copy_file(tmp_path / "m.py", f"{bucket}/m/m.py")
            module = session.load_vm_module(f"{bucket}/m/m.py")
            assert [module["f"]().debug_get_from_remote(n) for n in (0, 1)] == [value, value]
        with pytest.raises(NotAllowed, match=f"--allow-load {bucket}/m2"):
            session.load_vm_module(f"{bucket}/m2/m.py").debug_get_from_remote(0)


def test_weights_are_loaded_from_a_store_where_the_daemon_allows_it(bucket, daemons, program_in):
    """With the credentials that it passes on; the error says what is allowed."""
    for name in ("models", "models-2"):
        copy_file(program_in, f"{bucket}/{name}/m.safetensors")
    controller = daemons.controller()
    options = ("--slots", "2", "--allow-read", f"{bucket}/models")
    daemons.worker(controller.address, *options, DISCO_ENV="AWS_*")
    with connect(controller.address, num_workers=2) as session:
        weights = session.load_weights(f"{bucket}/models/m.safetensors", {"w": "S[0]", "b": "R"})
        assert np.array_equal(weights["w"].numpy(), X)
        assert weights["w"].shape_on(1) == (4, 8)
        with pytest.raises(NotAllowed, match=f"{bucket}/models.*--allow-read {bucket}/models-2"):
            session.load_weights(f"{bucket}/models-2/m.safetensors", {"*": "R"})
        with pytest.raises(NotAllowed, match=f"there is none.*--allow-save {bucket}/models"):
            session.save(f"{bucket}/models", {"w": weights["w"]})
        with pytest.raises(BadFile, match=f"{bucket}/models/none.gguf: there is no such file here"):
            session.load_weights(f"{bucket}/models/none.gguf", {"*": "R"})
