"""Saves, step by step: what is written, what is refused, and what a crash leaves."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.checkpoint_write import Save
from disco_server.storage.files import FileError, FileNotAllowed

OLD = {"a": np.arange(10, dtype=np.float32).reshape(5, 2), "b": np.array([True])}
NEW = {name: np.zeros_like(array) for name, array in OLD.items()}
GENERATION = f"generation-{7:016x}"


def is_old(path, read_whole):
    stored = StoredCheckpoint(str(path), ("*",))
    return all(np.array_equal(read_whole(stored, name), OLD[name]) for name in OLD)


def test_each_worker_s_file_is_plain_safetensors(tmp_path, write_checkpoint):
    """With its parts under the names of the tensors, an empty one too; the index names all."""
    write_checkpoint(tmp_path, OLD)
    (file,) = tmp_path.glob("disco-checkpoint-*.json")
    index = json.loads(file.read_text())
    folder = tmp_path / index["generation"]
    files = [load_file(folder / name) for name in sorted(index["files"])]
    assert [file["a"].tolist() for file in files] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [8, 9]],
    ]
    assert [file["b"].tolist() for file in files] == [[True], []]
    assert {path.name for path in folder.iterdir()} == set(index["files"])
    assert index["tensors"]["a"]["parts"] == [
        {"file": "worker-00000.safetensors", "bounds": [[0, 3], [0, 2]]},
        {"file": "worker-00001.safetensors", "bounds": [[3, 5], [0, 2]]},
    ]


def test_a_save_that_ends_at_any_step_leaves_the_old_checkpoint(
    tmp_path, write_checkpoint, steps, read_whole
):
    """Until its last one; and nothing of its own."""
    write_checkpoint(tmp_path, OLD)
    before = sorted(tmp_path.rglob("*"))
    names = [name for name, _ in steps(tmp_path / "elsewhere", NEW)]
    assert names.count("committed") == 2
    for count in range(1, len(names)):
        saving = steps(tmp_path, NEW)
        for _ in range(count):
            next(saving)
        assert is_old(tmp_path, read_whole)
        saving.close()
        assert sorted(p for p in tmp_path.rglob("*") if "elsewhere" not in str(p)) == before


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_process_that_is_killed_at_any_line_leaves_a_whole_checkpoint():
    """The old one up to a certain line, the new one from there; the next save tidies up."""
    program = Path(__file__).with_name("crash_program.py")
    # In memory where that is a folder: each line is a dozen calls that wait for the disk.
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        command = [sys.executable, program, f"{folder}/c", "1", "2" if place else "9"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = [line.split()[1] for line in done.stdout.splitlines()]
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert (seen[0], seen[-1], changes) == ("old", "new", 1)
    assert len(seen) > 50


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are not listed here")
def test_all_is_durable_before_the_index_is_put_in_its_place(
    tmp_path, write_checkpoint, monkeypatch
):
    """Files and the folders of their names; the index is durable when the save ends."""
    unsafe, at_swap = set(), []

    def name_of(fd):
        return str(Path(f"/proc/self/fd/{fd}").readlink())

    def watch(name, note):
        real = getattr(os, name)

        def watched(*args, **options):
            result = real(*args, **options)
            note(result, *args, **options)
            return result

        monkeypatch.setattr(os, name, watched)

    def linked(_, __, ___, *, src_dir_fd, dst_dir_fd, follow_symlinks):
        at_swap.append(set(unsafe))
        unsafe.add(name_of(dst_dir_fd))

    watch("pwrite", lambda _, fd, *__: unsafe.add(name_of(fd)))
    watch("fsync", lambda _, fd: unsafe.discard(name_of(fd)))
    watch(
        "mkdir",
        lambda _, path, *__, dir_fd=None: unsafe.add(
            name_of(dir_fd) if dir_fd else str(Path(path).parent)
        ),
    )
    watch("link", linked)
    write_checkpoint(tmp_path / "new" / "folder", OLD)
    assert at_swap == [set()]
    assert unsafe == set()


def test_a_part_that_does_not_come_is_found_before_the_swap(tmp_path, steps):
    """Missing, too short or too long; the checkpoint is not made."""
    saving = steps(tmp_path, OLD)
    while next(saving)[0] != "started":
        pass
    _, (first, second) = next(saving)
    with pytest.raises(FileError, match="tensor 'a': its part was not written"):
        first.finish()
    for data in (b"12345", b"x" * 50):
        with pytest.raises(FileError, match=f"expected 24 bytes of its part, got {len(data)}"):
            first.write(0, [memoryview(data)])
    del second
    saving.close()
    assert list(tmp_path.iterdir()) == []


def test_worker_0_must_see_every_file(tmp_path, steps):
    """Whole, and the one that was written; the error says what kind of folder it takes."""
    for damage in (
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b"x" * file.stat().st_size),
    ):
        saving = steps(tmp_path, OLD)
        for name, _ in saving:
            if name == "finished":
                break
        next(saving)
        (file,) = tmp_path.glob("generation-*/worker-00001.safetensors")
        damage(file)
        with pytest.raises(FileError, match=r"worker-00001.safetensors: .*all workers share"):
            list(saving)
        assert list(tmp_path.iterdir()) == []


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    """As with folders of their own on two machines."""
    save = Save(str(tmp_path / "there"), ("*",), GENERATION, 1, leads=False)
    leader = Save(str(tmp_path / "here"), ("*",), GENERATION, 0, leads=True)
    from disco_server.storage.checkpoint_read import Entry

    entry = Entry("a", (1,), np.dtype("f4"), {}, ((1, ((0, 1),)),))
    save.add([entry])
    with pytest.raises(FileError, match=r"worker 1 does not see it: .* all workers share"):
        save.start()
    leader.close()


def test_only_allowed_folders_are_written(tmp_path, write_checkpoint, read_whole):
    """What counts is where a folder really is; the flag is named."""
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(inside)
    for path in (inside / ".." / "c", inside / "out" / "c", tmp_path / "c", "/"):
        with pytest.raises(FileNotAllowed, match="start disco-worker with --allow-save"):
            write_checkpoint(path, OLD, allowed=(str(inside),))
    with pytest.raises(FileNotAllowed, match="there is none"):
        write_checkpoint(inside, OLD, allowed=())
    assert [path.name for path in inside.iterdir()] == ["out"]
    for path in (inside / "new" / "c", tmp_path / "link" / "c", inside):
        write_checkpoint(path, OLD, allowed=(str(inside),))
        assert is_old(path, read_whole)


def test_what_has_no_room_is_refused_before_it_is_written(tmp_path):
    """With how much is needed, and how much there is."""
    from disco_server.storage.checkpoint_read import Entry

    save = Save(str(tmp_path), ("*",), GENERATION, 0, leads=True)
    extent = 1 << 55
    save.add([Entry("a", (extent,), np.dtype("f8"), {}, ((0, ((0, extent),)),))])
    with pytest.raises(FileError, match="no space left on device: 288,230,376,151,711,744 bytes"):
        save.start()
    save.close()
    save.close()
    assert list(tmp_path.iterdir()) == []
