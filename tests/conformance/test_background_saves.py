"""Checkpoints that are written while the session goes on, on every kind of session."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import CancelledError

import ml_dtypes
import numpy as np
import pytest

from disco_client import BadFile, ConfigError, SavingUnderWay, WouldBlock

ARRAY = np.arange(60, dtype="float32").reshape(10, 6)


class Held:
    """Holds up saves of a session before their files are durable."""

    def __init__(self, folder):
        self.gate = folder / "gate"
        self.path = folder / "c"

    def hold(self, session):
        session.get_global_func("saving.hold")(str(self.gate))

    def release(self):
        self.gate.touch()

    def fail(self):
        """Lets the save fail: what it writes to is gone."""
        for each in self.path.glob("generation-*"):
            shutil.rmtree(each)
        self.release()

    def save(self, session, **tensors):
        self.hold(session)
        return session.save(self.path, tensors, wait=False)


@pytest.fixture
def held(tmp_path):
    """Which is let go in any case."""
    return Held(tmp_path)


@pytest.fixture
def session(session, held):
    """The shared session, whose workers hold nothing up afterwards."""
    yield session
    held.release()
    session.get_global_func("saving.let_go")()


def test_what_is_changed_right_after_the_call_is_not_in_the_file(session, held):
    """Also in place; the session goes on meanwhile, and the checkpoint is there at the end."""
    x = session.distribute(ARRAY, None, "S[0]")
    saving = held.save(session, x=x)
    session.get_global_func("numpy.add")(x.ref, 1, x.ref)
    assert np.array_equal(x.numpy(), ARRAY + 1)
    assert not saving.done
    assert not list(held.path.glob("*.json"))
    with pytest.raises(TimeoutError):
        saving.wait(timeout=0.05)
    held.release()
    saving.wait()
    assert saving.done
    assert (saving.progress.done, saving.progress.total) == (ARRAY.nbytes, ARRAY.nbytes)
    assert not [each for each in session.progress() if each.what == "save"]
    assert np.array_equal(session.load(held.path)["x"].numpy(), ARRAY)
    assert len(list(held.path.iterdir())) == 2


def test_every_kind_of_tensor_is_saved(session, tmp_path):
    """Without axes, without elements, of dtypes that numpy lacks, and lying in any way."""
    arrays = {
        "number": np.float64(7),
        "empty": np.zeros((0, 3), "float32"),
        "few": np.arange(1, dtype="int8"),
        "bfloat16": ARRAY.astype(ml_dtypes.bfloat16),
        "complex": ARRAY.astype("complex128"),
        "bool": ARRAY > 7,
        "turned": ARRAY.T,
    }
    tensors = {
        name: session.distribute(np.asarray(array), None, "S[0]" if np.ndim(array) else "R")
        for name, array in arrays.items()
    }
    tensors["copies"] = session.distribute(ARRAY, None, "R")
    tensors["sum"] = session.distribute(ARRAY, None, "S[1]") @ session.distribute(
        ARRAY.T, None, "S[0]"
    )
    session.save(tmp_path / "c", tensors, wait=False).wait()
    loaded = session.load(tmp_path / "c")
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_one_is_saved_at_a_time(session, held, tmp_path):
    """Whoever saves meanwhile learns where the first one is, also a save that waits."""
    x = session.distribute(ARRAY, None, "S[0]")
    saving = held.save(session, x=x)
    for options in ({}, {"wait": False}, {"format": "zarr"}):
        with pytest.raises(SavingUnderWay, match=r"is being saved to .*/c ") as raised:
            session.save(tmp_path / "d", {"x": x}, **options)
        assert raised.value.path == str(held.path)
    assert not (tmp_path / "d").exists()
    held.release()
    saving.wait()
    session.save(tmp_path / "d", {"x": x}, wait=False).wait()


def test_whether_the_one_before_has_ended_is_asked_when_the_next_begins(session, held, monkeypatch):
    """And not known from an answer of long before, as nobody has asked since."""
    monkeypatch.setattr("disco_client.saving._QUIET_S", 0.0)
    x = session.distribute(ARRAY, None, "S[0]")
    for number in (1, 2, 3):
        held.gate = held.gate.with_suffix(f".{number}")
        saving = held.save(session, x=x + number)
        assert not saving.done  # this asks
        session.sync_all()
        assert not saving.done  # this asks again, and nobody reads the answer
        held.release()
        session.get_global_func("saving.join")()  # not waited for, as that would ask again
    saving.wait()


def test_an_error_is_raised_by_a_wait_of_the_scope_that_saved(session, held, eventually):
    """Once, with the line that saved, and by the save's own wait each time; the session goes on."""
    x = session.distribute(ARRAY, None, "S[0]")
    session.save(held.path, {"x": x})
    saving = held.save(session, x=x + 1)
    held.fail()

    def fails_elsewhere():
        with session.scope():
            session.sync_all()
        return saving.done

    eventually(fails_elsewhere)
    with pytest.raises(BadFile, match=r"generation-[0-9a-f]{16}") as raised:
        session.sync_all()
    assert raised.value.issued_at.filename == __file__
    session.sync_all()
    for _ in range(2):
        with pytest.raises(BadFile, match=r"generation-[0-9a-f]{16}"):
            saving.wait()
    session.sync_all()
    session.save(held.path, {"x": x * 2}, wait=False).wait()
    assert np.array_equal(session.load(held.path)["x"].numpy(), ARRAY * 2)


def test_an_error_of_a_block_that_has_ended_is_counted(session, held, eventually):
    """As any other one of commands that it has issued."""
    before = session.failures().total
    with session.scope():
        saving = held.save(session, x=session.distribute(ARRAY, None, "S[0]"))
    held.fail()
    eventually(lambda: saving.done and session.sync_all() is None)
    assert session.failures().total == before + 1
    assert isinstance(session.failures().last[-1], BadFile)
    with pytest.raises(BadFile):
        saving.wait()


def test_what_is_cancelled_leaves_the_checkpoint_before(session, held):
    """And nothing of its own; what is done stays."""
    x = session.distribute(ARRAY, None, "S[0]")
    session.save(held.path, {"x": x})
    before = sorted(held.path.rglob("*"))
    saving = held.save(session, x=x + 1)
    saving.cancel()
    session.sync_all()
    held.release()
    with pytest.raises(CancelledError, match=r"to .*/c was cancelled"):
        saving.wait()
    session.sync_all()
    assert sorted(held.path.rglob("*")) == before
    assert np.array_equal(session.load(held.path)["x"].numpy(), ARRAY)
    last = session.save(held.path, {"x": x + 2}, wait=False)
    last.wait()
    last.cancel()
    last.wait()
    assert np.array_equal(session.load(held.path)["x"].numpy(), ARRAY + 2)


def test_only_checkpoints_are_saved_so(session, tmp_path):
    """Other formats are written by one worker after the other."""
    x = session.distribute(ARRAY, None, "S[0]")
    with pytest.raises(ConfigError, match="expected wait=True for format 'zarr'"):
        session.save(tmp_path / "c", {"x": x}, format="zarr", wait=False)
    assert list(tmp_path.iterdir()) == []


# The end of a session -----------------------------------------------------------------------


def test_leaving_a_session_waits_for_its_save(open_session, held, tmp_path):
    """And raises what went wrong."""
    with open_session() as session:
        session.save(tmp_path / "d", {"x": session.distribute(ARRAY, None, "S[0]")}, wait=False)
    assert len(list((tmp_path / "d").glob("*.json"))) == 1

    def leave():
        with open_session() as session:
            held.save(session, x=session.distribute(ARRAY, None, "S[0]"))
            held.fail()
            session.get_global_func("saving.let_go")()

    with pytest.raises(BadFile, match="generation-"):
        leave()


def test_shutting_down_waits_for_a_save_and_tells_what_went_wrong(open_session, held, capsys):
    """On standard error, as it raises nothing; also where an exception leaves the block."""

    def leave():
        with open_session() as session:
            saved.append(held.save(session, x=session.distribute(ARRAY, None, "S[0]")))
            held.release()
            raise ZeroDivisionError

    saved = []
    with pytest.raises(ZeroDivisionError):
        leave()
    assert repr(saved[0]) == f"<Saving to {str(held.path)!r}: done>"
    assert capsys.readouterr().err == ""
    held.gate.unlink()
    session = open_session()
    saving = held.save(session, x=session.distribute(ARRAY, None, "S[0]"))
    held.fail()
    session.get_global_func("saving.let_go")()
    session.shutdown()
    assert repr(saving) == f"<Saving to {str(held.path)!r}: failed>"
    assert f"disco: the save to {held.path} failed: " in capsys.readouterr().err


def test_a_task_awaits_a_save(open_session, held, tmp_path):
    """Where nothing may wait; leaving the session awaits it as well."""

    async def main(session):
        async with session:
            x = await session.adistribute(ARRAY, session.mesh(), "S[0]")
            with pytest.raises(WouldBlock, match="to_thread"):
                session.save(held.path, {"x": x}, wait=False)
            saving = await asyncio.to_thread(held.save, session, x=x)
            assert not saving.done
            with pytest.raises(WouldBlock, match="await saving"):
                saving.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(saving, 0.05)
            held.release()
            await saving
            assert saving.done
            await asyncio.to_thread(session.save, tmp_path / "d", {"x": x}, wait=False)

    asyncio.run(main(open_session()))
    assert len(list(held.path.glob("*.json"))) == 1
    assert len(list((tmp_path / "d").glob("*.json"))) == 1
