"""The files that clients brought, by their content."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from disco_server.modules import cache as cache_module
from disco_server.modules.base import FileRefused
from disco_server.modules.cache import ModuleCache

# Another process that takes a file into use, or leaves one unfinished.
PROGRAM = """
import sys, pathlib
from disco_server.modules.cache import ModuleCache
cache = ModuleCache(pathlib.Path(sys.argv[1]), int(sys.argv[2]), "other")
if sys.argv[3] == "use":
    assert cache.find(sys.argv[4], ".so")
else:
    incoming = cache.begin(sys.argv[4], ".so", 10)
    incoming.append(memoryview(b"12345"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    """A cache's folder; what this process had in use is let go with the test."""
    yield tmp_path / "cache"
    for path in [path for path in cache_module._pins if tmp_path in path.parents]:
        cache_module._pins.pop(path).release()


@pytest.fixture
def other(folder):
    """Starts another process that uses the cache."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), "100", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def digest(content):
    return hashlib.sha256(content).hexdigest()


def store(cache, content, suffix=".so"):
    incoming = cache.begin(digest(content), suffix, len(content))
    incoming.append(memoryview(content))
    return incoming.finish()


def files_in(folder):
    """The files of a cache, without those that count for their owners."""
    return [path for path in folder.iterdir() if not path.name.startswith(".owner-")]


def forget(path):
    """Lets go of a file that this process has in use."""
    cache_module._pins.pop(path).release()


def test_what_was_stored_is_found_by_its_content(folder):
    """Under its digest and suffix, readable by nobody else."""
    cache = ModuleCache(folder, 100)
    assert cache.find(digest(b"one"), ".so") is None
    path = store(cache, b"one")
    assert path.read_bytes() == b"one"
    assert path.name == f"{digest(b'one')}.so"
    assert cache.find(digest(b"one"), ".so") == path
    assert cache.find(digest(b"one"), ".py") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files_in(folder) == [path]


@pytest.mark.parametrize("came", [b"onE", b"on", b""])
def test_another_content_is_refused_and_leaves_nothing(folder, came):
    """The file's name is a promise about its content."""
    incoming = ModuleCache(folder, 100).begin(digest(b"one"), ".so", 3)
    incoming.append(memoryview(came))
    with pytest.raises(FileRefused, match=r"did the file change meanwhile"):
        incoming.finish()
    assert list(folder.iterdir()) == []


def test_more_than_announced_is_refused(folder):
    """The room was made for a size."""
    incoming = ModuleCache(folder, 100).begin(digest(b"one"), ".so", 3)
    with pytest.raises(FileRefused, match="expected a file of 3 bytes"):
        incoming.append(memoryview(b"oneX"))


def test_a_file_that_is_given_up_leaves_nothing(folder):
    """As when the client went away: its register dies."""
    incoming = ModuleCache(folder, 100).begin(digest(b"one"), ".so", 3)
    incoming.append(memoryview(b"on"))
    assert len(files_in(folder)) == 1
    del incoming
    gc.collect()
    assert list(folder.iterdir()) == []


def test_a_damaged_file_is_removed(folder):
    """It is verified again each time a process begins to use it."""
    cache = ModuleCache(folder, 100)
    path = store(cache, b"one")
    forget(path)
    path.write_bytes(b"oneX")
    assert cache.find(digest(b"one"), ".so") is None
    assert not path.exists()


def test_the_longest_unused_make_room(folder):
    """As few as needed, and finding a file counts as using it."""
    cache = ModuleCache(folder, 10)
    paths = [store(ModuleCache(folder, 10, each), each.encode()) for each in ("aaa", "bbb", "ccc")]
    for age, path in enumerate(reversed(paths)):
        forget(path)
        os.utime(path, (1000 - age, 1000 - age))
    assert cache.find(digest(b"aaa"), ".so")
    forget(paths[0])
    store(cache, b"ddd")
    assert [path.exists() for path in paths] == [True, False, True]


def test_a_file_larger_than_half_of_the_cache_is_refused(folder):
    """Before anything is removed for it."""
    cache = ModuleCache(folder, 6)
    path = store(cache, b"one")
    forget(path)
    with pytest.raises(FileRefused, match=r"at most 3 bytes, half .* larger --module-cache-mib"):
        cache.begin(digest(b"four"), ".so", 4)
    assert path.exists()


def test_what_another_process_uses_is_kept(folder, other):
    """Until it ends, however it does."""
    cache = ModuleCache(folder, 7)
    path = store(cache, b"one")
    forget(path)
    user = other("use", digest(b"one"))
    kept = store(cache, b"two")
    with pytest.raises(FileRefused, match="what it holds is in use"):
        ModuleCache(folder, 7, "third").begin(digest(b"tri"), ".so", 3)
    user.send_signal(signal.SIGKILL)
    user.wait()
    assert store(ModuleCache(folder, 7, "third"), b"tri").exists()
    assert kept.exists()
    assert not path.exists()


def test_an_owner_uses_half_of_the_cache_and_others_bring_theirs(folder, other):
    """Files under way and those of its other processes count, until they are used no more."""
    store(ModuleCache(folder, 100), b"12345")
    other("use", digest(b"12345"))
    mine = ModuleCache(folder, 100, "other")
    begun = [mine.begin(digest(b"x" * 20), ".so", 20) for _ in range(2)]
    with pytest.raises(FileRefused, match=r"no room for 6 bytes in the 50 .* yours use 45"):
        mine.begin(digest(b"y" * 6), ".so", 6)
    quiet = store(ModuleCache(folder, 100, "quiet"), b"z" * 50)
    forget(quiet)
    with pytest.raises(FileRefused, match="yours use 45"):
        mine.find(digest(b"z" * 50), ".so")
    del begun
    gc.collect()
    assert store(mine, b"y" * 45).exists()
    assert quiet.exists()


def test_a_file_that_an_owner_s_processes_share_counts_once(folder, other):
    """However many of its ranks use it, and for as long as one of them does."""
    path = store(ModuleCache(folder, 100, "other"), b"x" * 40)
    users = [other("use", digest(b"x" * 40)) for _ in range(2)]
    forget(path)
    users[0].kill()
    users[0].wait()
    with pytest.raises(FileRefused, match="yours use 40"):
        ModuleCache(folder, 100, "other").begin(digest(b"y" * 11), ".so", 11)
    users[1].kill()
    users[1].wait()
    assert store(ModuleCache(folder, 100, "other"), b"y" * 11).exists()


def test_what_a_killed_process_left_is_swept(folder, other):
    """Its unfinished file goes; that of one that lives stays."""
    writers = [other("write", digest(b"0123456789")) for _ in range(2)]
    cache = ModuleCache(folder, 100)
    writers[0].send_signal(signal.SIGKILL)
    writers[0].wait()
    cache.begin(digest(b"x"), ".so", 1)
    gc.collect()
    assert len(files_in(folder)) == 1


def test_several_may_bring_the_same_file_at_once(folder):
    """All of them have it in the end, once."""
    content = b"x" * 50
    failures = []

    def bring():
        try:
            assert store(ModuleCache(folder, 1000), content).read_bytes() == content
        except Exception as error:  # noqa: BLE001  (shown below)
            failures.append(error)

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [path.read_bytes() for path in files_in(folder)] == [content]


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    """Whoever owns it could put anything there; so could whoever made a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FileRefused, match="not a folder of this user"):
        ModuleCache(tmp_path / "link", 10).begin(digest(b""), ".so", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileRefused, match="another --module-cache"):
        ModuleCache(tmp_path / "file", 10).begin(digest(b""), ".so", 0)
