"""Folders of daemons: whose they are, and that nothing stays."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from disco_server.worker.environment import OwnFolder

HOLDER = """
import sys, time
from pathlib import Path
from disco_server.worker.environment import OwnFolder
folder = OwnFolder("mine-", Path(sys.argv[1]))
(folder.path / "left").write_text("something")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_only_its_user_enters_and_it_goes_with_what_is_in_it(tmp_path):
    """Its parent is made where there is none."""
    folder = OwnFolder("mine-", tmp_path / "above" / "made")
    assert folder.path.parent == tmp_path / "above" / "made"
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "left").write_text("something")
    folder.remove()
    assert list(folder.path.parent.iterdir()) == []


def test_daemons_that_begin_together_leave_each_other_s_alone(tmp_path):
    """One that looks for what killed ones left does not take a folder that is just made."""

    def work(_number):
        for _ in range(100):
            folder = OwnFolder("mine-", tmp_path)
            assert folder.path.exists()
            folder.remove()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_daemon_left_the_next_one_removes(tmp_path):
    """Not what a daemon that lives has beside it, and nothing of another name."""
    other = tmp_path / "another"
    other.mkdir()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        theirs = tmp_path / holder.stdout.readline().strip()
        mine = OwnFolder("mine-", tmp_path)
        assert theirs.exists()
        holder.send_signal(signal.SIGKILL)
    mine.remove()
    assert theirs.exists()
    OwnFolder("mine-", tmp_path).remove()
    assert list(tmp_path.iterdir()) == [other]
