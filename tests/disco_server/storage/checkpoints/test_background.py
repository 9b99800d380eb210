"""Saves in the background, of workers that are no processes, and without a client."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from disco_server.storage.background_save import ENDED, BackgroundSave
from disco_server.storage.checkpoint_read import Entry, StoredCheckpoint
from disco_server.storage.files import FileError

OLD = {"a": np.arange(10, dtype=np.float32).reshape(5, 2), "b": np.array([True])}
NEW = {name: (array + 1).astype(array.dtype) for name, array in OLD.items()}
GENERATION = f"generation-{1 << 40:016x}"


def name_of(fd):
    """The path of an open file."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


class Gate:
    """Holds up the threads that save before their files are durable."""

    def __init__(self):
        self.opened = threading.Event()

    def hold(self, monkeypatch, worker=None):
        real = os.fsync

        def held(fd):
            mine = worker is None or f"worker-{worker:05}" in name_of(fd)
            if mine and threading.current_thread().name == "disco-save":
                assert self.opened.wait(30)
            real(fd)

        monkeypatch.setattr(os, "fsync", held)


@pytest.fixture
def gate():
    """Opened at the end in any case."""
    made = Gate()
    yield made
    made.opened.set()


def begin(path, tensors, workers=2, generation=GENERATION):
    """Each worker up to where it could write; each tensor is split along its first axis."""
    saves = [
        BackgroundSave(str(path), ("*",), generation, worker, leads=not worker)
        for worker in range(workers)
    ]
    entries = []
    for name, array in tensors.items():
        cuts = np.cumsum([0, *(len(piece) for piece in np.array_split(array, workers))])
        rest = tuple((0, extent) for extent in array.shape[1:])
        parts = [(w, ((int(cuts[w]), int(cuts[w + 1])), *rest)) for w in range(workers)]
        entries.append(Entry(name, array.shape, array.dtype, {}, tuple(parts)))
    for worker, save in enumerate(saves):
        save.add(entries)
        save.start()
        for number, array in enumerate(tensors.values()):
            piece = np.ascontiguousarray(np.array_split(array, workers)[worker])
            data = memoryview(piece.reshape(-1).view(np.uint8))
            assert save.has(number)
            save.write(number, [data[:5], data[5:]])
            assert not save.has(number)
    return saves


def values(path, read_whole):
    stored = StoredCheckpoint(str(path), ("*",))
    return {name: read_whole(stored, name).tolist() for name in OLD}


def lists(tensors):
    return {name: array.tolist() for name, array in tensors.items()}


@pytest.fixture
def former(tmp_path, write_checkpoint):
    """A folder with a checkpoint."""
    write_checkpoint(tmp_path / "c", OLD)
    return tmp_path / "c"


def test_nobody_has_to_ask_until_the_checkpoint_is_there(former, read_whole, eventually):
    """The leader waits for the others, whoever begins to write first."""
    leader, other = begin(former, NEW)
    leader.finish()
    assert lists(OLD) == values(former, read_whole)
    assert leader.state == "writing"
    other.finish()
    eventually(lambda: (leader.state, other.state) == ("done", "done"))
    leader.join()
    assert values(former, read_whole) == lists(NEW)
    assert leader.written + other.written == sum(array.nbytes for array in NEW.values())
    assert len(list(former.iterdir())) == 2


def test_the_thread_gives_way_to_all_others(former, gate, monkeypatch, eventually):
    """By its scheduling class, where a thread has one of its own."""
    gate.hold(monkeypatch)
    saves = begin(former, NEW)
    saves[1].finish()
    (thread,) = [each for each in threading.enumerate() if each.name == "disco-save"]
    eventually(lambda: os.sched_getscheduler(thread.native_id) == os.SCHED_IDLE)
    assert os.sched_getscheduler(threading.get_native_id()) != os.SCHED_IDLE
    saves[0].close()
    saves[1].close()


def test_a_worker_that_cannot_write_its_file_lets_the_leader_give_up(
    former, read_whole, monkeypatch, eventually
):
    """Who leaves nothing, and has no error of its own; the worker's own is raised each time."""
    real = os.pwrite

    def full(fd, data, offset):
        if "worker-00001" in name_of(fd):
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    leader, other = begin(former, NEW)
    before = sorted(former.glob("*.json"))
    monkeypatch.setattr(os, "pwrite", full)
    leader.finish()
    other.finish()
    eventually(lambda: leader.state in ENDED and other.state in ENDED)
    assert (leader.state, other.state) == ("cancelled", "failed")
    leader.join()
    for _ in range(2):
        with pytest.raises(FileError, match=r"worker-00001.safetensors: .*No space left on device"):
            other.join()
    assert sorted(former.glob("*.json")) == before
    assert len(list(former.iterdir())) == 2
    assert values(former, read_whole) == lists(OLD)


def test_who_loses_the_folder_as_another_one_failed_leaves_the_error_to_that_one(
    former, gate, monkeypatch, eventually
):
    """And raises that it is gone only where nobody else has an error."""
    gate.hold(monkeypatch, worker=1)
    leader, other = begin(former, NEW)
    other.finish()
    leader.close()
    gate.opened.set()
    eventually(lambda: other.state in ENDED)
    assert other.state == "dropped"
    other.join()
    with pytest.raises(FileError, match="worker-00001"):
        other.join(dropped=True)
    assert len(list(former.iterdir())) == 2


def test_a_file_that_gets_its_name_while_all_is_discarded_is_discarded_as_well(
    former, gate, monkeypatch, eventually
):
    """As the folder cannot be removed at the first attempt then."""
    real = os.unlink

    def remove(path, **options):
        if path == "worker-00001.safetensors.part":
            gate.opened.set()
            eventually(lambda: other.state in ENDED)
        real(path, **options)

    gate.hold(monkeypatch, worker=1)
    monkeypatch.setattr(os, "unlink", remove)
    leader, other = begin(former, NEW)
    other.finish()
    leader.close()
    assert other.state == "done"
    assert len(list(former.iterdir())) == 2


def test_a_file_that_is_removed_by_another_worker_is_no_error_of_its_own(
    former, gate, monkeypatch, eventually
):
    """Also where the folder is still there for a moment."""
    gate.hold(monkeypatch, worker=1)
    leader, other = begin(former, NEW)
    other.finish()
    (former / GENERATION / "worker-00001.safetensors.part").unlink()
    gate.opened.set()
    eventually(lambda: other.state in ENDED)
    assert other.state == "dropped"
    leader.close()
    assert len(list(former.iterdir())) == 2


def test_a_folder_that_is_removed_is_an_error_of_the_leader(former, read_whole, eventually):
    """Which waits in vain for the files of others."""
    leader, other = begin(former, NEW)
    leader.finish()
    eventually((former / GENERATION / "worker-00000.safetensors").exists)
    shutil.rmtree(former / GENERATION)
    eventually(lambda: leader.state == "failed")
    with pytest.raises(FileError, match=f"{GENERATION}: it was removed while its files were"):
        leader.join()
    other.finish()
    eventually(lambda: other.state == "dropped")
    assert values(former, read_whole) == lists(OLD)


@pytest.mark.parametrize("held", [0, 1])
def test_what_is_cancelled_leaves_the_former_checkpoint(
    former, read_whole, gate, monkeypatch, eventually, held
):
    """Whoever still writes by then."""
    before = sorted(former.rglob("*"))
    gate.hold(monkeypatch, worker=held)
    saves = begin(former, NEW)
    for save in saves:
        save.finish()
    for save in saves:
        save.close()
    gate.opened.set()
    eventually(lambda: all(save.state in ENDED for save in saves))
    for save in saves:
        save.join()
        save.close()
    assert saves[0].state == "cancelled"
    assert sorted(former.rglob("*")) == before
    assert values(former, read_whole) == lists(OLD)


def test_a_part_that_does_not_come_is_found_before_the_thread_begins(former, read_whole):
    """Missing, too short or too long; nothing of the save stays."""
    before = sorted(former.rglob("*"))
    saves = [
        BackgroundSave(str(former), ("*",), GENERATION, worker, leads=not worker)
        for worker in range(2)
    ]
    bounds = ((0, 4),)
    for save in saves:
        save.add([Entry("a", (4,), np.dtype("f4"), {}, ((1, bounds),))])
        save.start()
    for data in (b"12345", b"x" * 50):
        with pytest.raises(FileError, match=f"expected 16 bytes of its part, got {len(data)}"):
            saves[1].write(0, [memoryview(data)])
    with pytest.raises(FileError, match="tensor 'a': its part was not written"):
        saves[1].finish()
    for save in reversed(saves):
        save.close()
    assert sorted(former.rglob("*")) == before
    assert values(former, read_whole) == lists(OLD)


def test_a_saver_that_is_faster_keeps_its_checkpoint(bucket, eventually, write_checkpoint):
    """In a store, where nothing keeps a second one out; the slower one says so."""
    path = f"{bucket}/c"
    leader, other = begin(path, NEW)
    leader.finish()
    write_checkpoint(path, OLD)
    eventually(lambda: leader.state in ENDED)
    with pytest.raises(FileError, match="another session saved here meanwhile"):
        leader.join()
    other.close()
    assert StoredCheckpoint(path, ("*",)).entries
