"""Saves in the background: what they need, and what becomes of them when workers are replaced."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from disco_client import (
    ConfigError,
    DiscoError,
    ForeignReference,
    NoMemory,
    ProcessSession,
    core,
)
from disco_client.distributed import DeviceMesh

ARRAY = np.arange(48, dtype=np.float32).reshape(8, 6)


@pytest.fixture(autouse=True, scope="module")
def find_modules():
    """Lets workers that this process starts find the functions of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "worker_modules")
        yield


def test_the_file_of_each_worker_is_the_same_as_of_a_save_that_waits(workers, tmp_path):
    """Where some workers have nothing to write, the one that leads among them, too."""
    for mesh in (DeviceMesh((2,), [3, 1]), DeviceMesh((4,), range(4))):
        x = workers.distribute(ARRAY, mesh, "S[0]")
        flags = workers.distribute(ARRAY > 7, mesh, "S[1]")
        files = []
        for name in ("one", "other"):
            path = tmp_path / name
            saving = workers.save(path, {"flags": flags, "x": x}, wait=name == "one")
            assert saving is None or saving.wait() is None
            files.append({f.name: load_file(f) for f in path.glob("generation-*/*")})
        assert files[0].keys() == files[1].keys()
        for name, tensors in files[0].items():
            assert tensors.keys() == files[1][name].keys()
            assert all(np.array_equal(tensors[key], files[1][name][key]) for key in tensors)


def test_copies_need_memory_that_is_there(workers, tmp_path):
    """Else nothing is written, and the error says how much is needed, and how much there is."""
    workers.import_python_module("disco_saving_functions")
    x = workers.distribute(np.ones((4, 1 << 21)), None, "S[0]")
    limit = workers.get_global_func("saving.limit_memory").on(worker=2)
    limit(8 << 20)
    with pytest.raises(NoMemory, match=r"16,777,216 bytes on worker 2, where .* wait=True") as told:
        workers.save(tmp_path / "c", {"x": x}, wait=False)
    assert told.value.needed == 1 << 24 > told.value.available
    assert list(tmp_path.iterdir()) == []
    limit(-1)
    workers.save(tmp_path / "c", {"x": x}, wait=False).wait()


def test_what_cannot_be_saved_is_refused_at_the_call(workers, tmp_path):
    """As of a save that waits."""
    x = workers.distribute(ARRAY)
    with pytest.raises(ConfigError, match="expected the name of a tensor, got ''"):
        workers.save(tmp_path / "c", {"": x}, wait=False)
    with pytest.raises(OSError, match="cannot be written"):
        workers.save("/dev/null", {"x": x}, wait=False)
    with ProcessSession(1) as other, pytest.raises(ForeignReference):
        workers.save(tmp_path / "c", {"x": other.distribute(ARRAY)}, wait=False)
    workers.save(tmp_path / "c", {"x": x}, wait=False).wait()


def test_the_save_goes_on_in_an_object_store(bucket, tmp_path):
    """Where an object has its name when it is whole; one that is cancelled leaves the former."""
    with ProcessSession(3) as session:
        session.import_python_module("disco_saving_functions")
        session.get_global_func("saving.hold")(str(tmp_path / "gate"))
        x = session.distribute(ARRAY, None, "S[0]")
        saving = session.save(f"{bucket}/run", {"x": x}, wait=False)
        session.get_global_func("numpy.add")(x.ref, 1, x.ref)
        saving.wait()
        assert np.array_equal(session.load(f"{bucket}/run")["x"].numpy(), ARRAY)
        session.save(f"{bucket}/run", {"x": x}, wait=False)
    with ProcessSession(2) as session:
        loaded = session.load(f"{bucket}/run", session.mesh((2,)), "S[1]")
        assert np.array_equal(loaded["x"].numpy(), ARRAY + 1)


def test_an_interrupt_leaves_the_save_alone(workers, tmp_path):
    """What the workers execute ends; what was copied aside is written."""
    x = workers.distribute(ARRAY, None, "S[0]")
    saving = workers.save(tmp_path / "c", {"x": x}, wait=False)
    workers.get_global_func("time.sleep")(600)
    assert workers.interrupt() == ()
    with pytest.raises(DiscoError):
        workers.sync_all()
    saving.wait()
    assert np.array_equal(workers.load(tmp_path / "c")["x"].numpy(), ARRAY)


def test_a_session_whose_workers_do_not_answer_is_ended_without_its_save(
    tmp_path, monkeypatch, capsys
):
    """It says what is lost; leaving without an exception waits as long as workers take."""
    session = ProcessSession(2)
    session.import_python_module("disco_saving_functions")
    session.get_global_func("saving.hold")(str(tmp_path / "gate"))
    session.save(tmp_path / "c", {"x": session.distribute(ARRAY, None, "S[0]")}, wait=False)
    session.get_global_func("time.sleep")(600)
    monkeypatch.setattr(core, "_CLOSE_TIMEOUT_S", 0.1)
    session.shutdown()
    said = capsys.readouterr().err
    assert f"disco: the save to {tmp_path / 'c'} is lost, at " in said
    assert "because workers did not answer for 0.1 s; the checkpoint before it stays" in said
    assert not list((tmp_path / "c").glob("*.json"))


def test_a_session_that_is_dropped_says_that_its_save_is_lost(tmp_path, capsys):
    """Nobody waits for it any more, so nobody else could say so."""
    session = ProcessSession(2)
    session.import_python_module("disco_saving_functions")
    session.get_global_func("saving.hold")(str(tmp_path / "gate"))
    session.save(tmp_path / "c", {"x": session.distribute(ARRAY, None, "S[0]")}, wait=False)
    del session
    gc.collect()
    said = capsys.readouterr().err
    assert f"disco: the save to {tmp_path / 'c'} is lost, because its session was dropped" in said
    assert not list((tmp_path / "c").glob("*.json"))


def test_threads_that_read_objects_give_way_to_nobody(bucket):
    """They are for all that a worker reads later; all run before a save in the background does."""
    with ProcessSession(1) as session:
        session.import_python_module("disco_saving_functions")
        session.save(f"{bucket}/run", {"x": session.distribute(ARRAY)}, wait=False).wait()
        classes = session.get_global_func("saving.classes_of_readers")()
        assert classes.debug_get_from_remote(0) == [0] * 8
