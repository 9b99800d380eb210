"""``session.progress()``: what is under way, and how far it is."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_client import ProcessSession, WorkProgress
from disco_client.notebook import TrackedWork, WorkTable


@pytest.fixture
def processes():
    """A session of two workers."""
    with ProcessSession(2) as opened:
        yield opened


@pytest.fixture
def session(processes):
    """The same."""
    return processes


@pytest.fixture
def seen(session, monkeypatch):
    """What progress() tells whenever something has been counted."""
    told = []
    update = TrackedWork.update

    def noting(work, more):
        update(work, more)
        told.append(session.progress())

    monkeypatch.setattr(TrackedWork, "update", noting)
    return told


def test_what_is_under_way_is_told_and_what_is_done_is_not():
    """The oldest first; an error ends it, too."""
    table = WorkTable()

    def fail():
        with table.track("load", "other", 7, shown=False):
            one, other = table.all()
            assert (one.what, one.name, one.done, one.total) == ("save", "model", 3, 10)
            assert (other.what, other.done, other.unit) == ("load", 0, "B")
            raise ZeroDivisionError

    with table.track("save", "model", 10, shown=False) as first:
        first.update(3)
        with pytest.raises(ZeroDivisionError):
            fail()
        assert [each.what for each in table.all()] == ["save"]
    assert table.all() == ()


def test_it_reads_as_a_line():
    """With the share and the seconds, where there are some."""
    work = WorkProgress("load_weights", "model.gguf", 1_200_000_000, 3_400_000_000, seconds=4.2)
    assert str(work) == "load_weights model.gguf: 1.2 GB of 3.4 GB, 35 %, 4 s"
    assert (
        str(WorkProgress("commands", "", 7, 12, "commands")) == "commands: 7 of 12 commands, 58 %"
    )
    assert str(WorkProgress("save", "empty", 0, 0)) == "save empty: 0 B of 0 B"


def test_a_save_and_a_load_count_their_bytes(session, seen, tmp_path, eventually):
    """Up to all of them; then nothing is under way."""
    mesh = session.mesh(2)
    tensor = session.distribute(np.ones((64, 32), "float32"), mesh, "S[0]")
    session.save(tmp_path / "model", {"w": tensor})
    session.load(tmp_path / "model")
    works = [work for told in seen for work in told if work.what != "commands"]
    assert {(work.what, work.name, work.total) for work in works} == {
        ("save", "model", 8192),
        ("load", "model", 8192),
    }
    assert {work.done for work in works} == {8192}
    session.sync_all()
    assert session.progress() == ()


def test_freed_registers_are_not_waited_for(session, eventually):
    """The command that frees them counts as issued, and nothing is under way."""
    held = session.copy_to_worker_0(np.zeros(4))
    session.sync_all()
    issued = session.statistics()["issued"]
    del held
    eventually(lambda: session.statistics()["issued"] > issued, what="a command that frees")
    assert session.progress() == ()
    session.sync_all()
    assert session.statistics()["acked"] == session.statistics()["issued"] > issued


def test_a_large_array_and_assigned_tensors_count(session, seen):
    """In both directions."""
    array = np.zeros(16 << 20, "uint8")
    assert session.copy_to_worker_0(array).numpy().nbytes == array.nbytes
    mesh = session.mesh(2)
    target, source = (session.distribute(np.ones((4, 4)), mesh, "S[0]") for _ in range(2))
    session.assign({"w": target}, {"w": source})
    works = [work for told in seen for work in told if work.what != "commands"]
    assert [(work.what, work.done) for work in works] == [
        ("upload", array.nbytes),
        ("download", array.nbytes),
        ("assign", target.nbytes),
    ]


def test_what_a_sync_waits_for_is_told_to_another_thread(session, eventually):
    """Commands that the workers have not said to have executed."""
    session.sync_all()
    sleep = session.get_global_func("time.sleep")
    waiting = threading.Thread(target=lambda: (sleep(0.3), session.sync_all()))
    waiting.start()
    eventually(lambda: [work.what for work in session.progress()] == ["commands"])
    (work,) = session.progress() or [None]
    waiting.join()
    if work is not None:  # it may have ended since
        assert work.done < work.total
    eventually(lambda: session.progress() == ())
