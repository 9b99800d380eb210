"""Stores of arrays that are made beside their place, by processes that may be killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading

import pytest

from disco_server.storage.files import FileError
from disco_server.storage.store_place import StorePlace

SAVES = """
import sys
from pathlib import Path
from disco_server.storage.store_place import StorePlace

path, folder = Path(sys.argv[1]), sys.argv[2] == "folder"
for number in range(1 << 40):
    place = StorePlace(path, f"{number:016x}")
    place.make(folder=folder)
    for name in ("a", "b"):
        (place.beside / name if folder else place.beside).write_text(str(number))
    place.put()
    print(number, flush=True)
"""
STEPS = """
import sys
from pathlib import Path
from disco_server.storage.store_place import StorePlace

place = StorePlace(Path(sys.argv[1]), "f" * 16)
place.make(folder=True)
print("made", flush=True)
sys.stdin.readline()
place.put()
"""


def contents(path):
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [each.read_text() for each in files]


def save(path, text, token="0" * 16):
    place = StorePlace(path, token)
    place.make(folder=True)
    (place.beside / "a").write_text(text)
    place.put()


@pytest.fixture
def saving(tmp_path):
    """A process that makes a store, and puts it in its place when it is told."""
    command = [sys.executable, "-c", STEPS, tmp_path / "s"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"made\n"
        yield process
        process.kill()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_killed_process_leaves_a_whole_store(tmp_path, kind):
    """At whatever moment; the next save removes what it was making."""
    path, last = tmp_path / "s[1]", -1
    for seed in range(8):
        command = [sys.executable, "-c", SAVES, path, kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(random.Random(seed).randint(1, 40)):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            last = int(([last, *process.stdout.read().split()])[-1])
        held = contents(path)
        assert held in ([str(last)] * len(held), [str(last + 1)] * len(held))
        assert len(held) == (2 if kind == "folder" else 1)
    place = StorePlace(path, "a" * 16)
    place.make(folder=kind == "folder")
    assert {each.name for each in tmp_path.iterdir()} == {"s[1]", place.beside.name}
    place.close()
    assert [each.name for each in tmp_path.iterdir()] == ["s[1]"]


def test_one_save_at_a_time(tmp_path, saving):
    """A second one waits for the first, and at last says what is in the way."""
    with pytest.raises(FileError, match="another session is saving here at this moment"):
        StorePlace(tmp_path / "s", "0" * 16).make(folder=True, wait_s=0)
    save(tmp_path / "other", "beside it")
    saving.communicate(b"\n")
    assert contents(tmp_path / "s") == []
    save(tmp_path / "s", "next")
    assert contents(tmp_path / "s") == ["next"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "s"]


def test_a_save_goes_on_when_the_one_before_is_killed(tmp_path, saving):
    """It need not wait for longer than that takes."""
    place = StorePlace(tmp_path / "s", "0" * 16)
    threading.Timer(0.2, saving.kill).start()
    place.make(folder=True)
    assert [each.name for each in tmp_path.iterdir()] == [place.beside.name]
    place.close()


def test_a_store_that_was_moved_aside_comes_back(tmp_path):
    """Where names cannot be exchanged, a process may end between two renames."""
    save(tmp_path / "s", "former")
    (tmp_path / "s").rename(tmp_path / f".s.{'1' * 16}.former")
    place = StorePlace(tmp_path / "s", "2" * 16)
    place.make(folder=True)
    place.close()
    assert contents(tmp_path / "s") == ["former"]


def test_what_is_not_a_save_s_is_left_alone(tmp_path):
    """Links, and names that only begin alike."""
    target = tmp_path / "target"
    target.mkdir()
    names = [f".s.{'g' * 16}", f".s.{'1' * 15}", f".s.{'1' * 16}.zarr", f".t.{'1' * 16}"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / f".s.{'3' * 16}").symlink_to(target)
    save(tmp_path / "s", "new")
    there = {each.name for each in tmp_path.iterdir()}
    assert there == {"s", "target", f".s.{'3' * 16}", *names}
