"""The folder of a checkpoint: what a save finds there, and what it may take away."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from disco_server.storage import checkpoint_write
from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.files import FileError
from disco_server.storage.folders import LocalFolder

OLD = {"a": np.arange(10, dtype=np.float32).reshape(5, 2)}
NEW = {name: np.zeros_like(array) for name, array in OLD.items()}
GENERATION = f"generation-{7:016x}"


def test_a_save_replaces_the_checkpoint_and_removes_the_old_one(
    tmp_path, write_checkpoint, read_whole
):
    """And nothing else that lies in the folder, whatever it is called."""
    others = ["notes.txt", "generation-7", "generation-zzzzzzzzzzzzzzzz"]
    for name in others:
        (tmp_path / name).mkdir()
    write_checkpoint(tmp_path, NEW)
    write_checkpoint(tmp_path, OLD, generation=GENERATION)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, "disco-checkpoint-0000000002.json", GENERATION}
    stored = StoredCheckpoint(str(tmp_path), ("*",))
    assert np.array_equal(read_whole(stored, "a"), OLD["a"])


def test_two_saves_into_one_folder_do_not_meet(tmp_path, steps):
    """The second one is refused while the first is under way, and both may try again."""
    first = steps(tmp_path, OLD)
    next(first)
    with pytest.raises(FileError, match="another session is saving here"):
        checkpoint_write.CheckpointFolder(tmp_path, ("*",), GENERATION, lock_wait_s=0.2)
    assert not (tmp_path / GENERATION).exists()
    first.close()
    checkpoint_write.CheckpointFolder(tmp_path, ("*",), GENERATION, lock_wait_s=0).close()


def test_a_file_system_without_hard_links_takes_saves_under_the_lock(
    tmp_path, monkeypatch, write_checkpoint, read_whole
):
    """The index is renamed to its name then, and is never replaced."""

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    write_checkpoint(tmp_path, OLD)
    write_checkpoint(tmp_path, NEW, generation=GENERATION)
    assert np.array_equal(read_whole(StoredCheckpoint(str(tmp_path), ("*",)), "a"), NEW["a"])
    names = {"disco-checkpoint-0000000002.json", GENERATION}
    assert {path.name for path in tmp_path.iterdir()} == names
    folder = LocalFolder(tmp_path)
    folder.claim("claim")
    with pytest.raises(PermissionError, match="neither hard links nor locks"):
        folder.put_new("other", b"", "claim")
    assert folder.lock(0)
    assert not folder.put_new("disco-checkpoint-0000000002.json", b"", "claim")
    assert np.array_equal(read_whole(StoredCheckpoint(str(tmp_path), ("*",)), "a"), NEW["a"])
    folder.close()


def test_what_cannot_be_a_checkpoint_s_folder_is_refused(tmp_path, write_checkpoint):
    """A file, a relative path, a place where nobody may write."""
    (tmp_path / "file").write_text("")
    for path, text in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file" / "below", "Not a directory"),
        ("relative", "expected an absolute path"),
        ("/proc/self/nothing/here", "cannot be written"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(FileError, match=text):
            write_checkpoint(path, OLD)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_checkpoint_that_cannot_be_read_is_not_replaced(tmp_path, write_checkpoint):
    """Because nobody knows which files belong to it: damaged, of a later version, a link."""
    write_checkpoint(tmp_path, OLD)
    (index,) = tmp_path.glob("disco-checkpoint-*.json")
    good = index.read_bytes()
    before = sorted(tmp_path.rglob("*"))
    for content in (b"", good[:-9], good.replace(b'"version": 1', b'"version": 2')):
        index.write_bytes(content)
        with pytest.raises(FileError, match="remove it or save elsewhere"):
            write_checkpoint(tmp_path, NEW)
        assert sorted(tmp_path.rglob("*")) == before
    index.rename(tmp_path / "moved")
    index.symlink_to(tmp_path / "moved")
    with pytest.raises(FileError, match="cannot be written: Too many levels"):
        write_checkpoint(tmp_path, NEW)
