"""Names of the files in which MPICH shares memory, and their removal."""

from __future__ import annotations

import subprocess
import sys

from disco_server.collectives import mpich_memory
from disco_server.collectives.mpich_memory import kvsname, nameless_memory, sweep_shared_memory

SESSION = 0xD15C0


def test_memory_in_use_is_not_swept(tmp_path):
    """A file of the right name stays while any process maps it."""
    program = """
import mmap, sys
file = open(sys.argv[1], "r+b")
held = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""
    path = tmp_path / f"mpich_shm_{mpich_memory._hash_name(kvsname(SESSION)):x}_0"
    path.write_bytes(b"x" * 4096)
    stranger = tmp_path / f"mpich_shm_{mpich_memory._hash_name('another'):x}_0"
    stranger.write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        assert sweep_shared_memory(kvsname(SESSION), tmp_path) == []
        holder.stdin.close()
    assert sweep_shared_memory(kvsname(SESSION), tmp_path) == [path]
    assert stranger.exists()


def test_names_differ_by_session_and_attempt():
    """No two starts share a key-value space."""
    names = {kvsname(session, attempt) for session in (1, 2**63) for attempt in (0, 1)}
    assert len(names) == 4


def test_the_names_are_gone_after_the_start(tmp_path):
    """And only they."""
    mine = tmp_path / f"mpich_shm_{mpich_memory._hash_name(kvsname(SESSION)):x}_0"
    other = tmp_path / "mpich_shm_1_0"
    with nameless_memory(kvsname(SESSION), first=True, folder=tmp_path):
        mine.write_bytes(b"x")
        other.write_bytes(b"x")
    assert list(tmp_path.iterdir()) == [other]


def test_a_rank_that_is_killed_while_mpi_starts_leaves_nothing(tmp_path, eventually):
    """A shell removes the file in its place."""
    program = f"""
import os, pathlib, signal
from disco_server.collectives.mpich_memory import kvsname, nameless_memory
folder = pathlib.Path({str(tmp_path)!r})
with nameless_memory(kvsname({SESSION}), first=True, folder=folder):
    (folder / {f"mpich_shm_{mpich_memory._hash_name(kvsname(SESSION)):x}_0"!r}).write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    eventually(lambda: not list(tmp_path.iterdir()), what="the file to go")
