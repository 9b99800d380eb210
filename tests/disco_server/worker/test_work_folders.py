"""Folders of sessions: whose they are, and that nothing stays."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disco_server.limits import Account
from disco_server.worker.work_folders import WorkFolders

HOLDER = """
import sys, time
from pathlib import Path
from disco_server.worker.work_folders import WorkFolders
folders = WorkFolders(Path(sys.argv[1]))
print(folders.make(7, 0), flush=True)
time.sleep(600)
"""


def test_each_rank_has_one_of_its_own_and_it_goes_with_the_session(tmp_path):
    """Nobody else enters it; another session's stay."""
    folders = WorkFolders(tmp_path / "made")
    one, two, other = (Path(folders.make(*ids)) for ids in ((1, 0), (1, 1), (2, 0)))
    assert len({one, two, other}) == 3
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    (one / "left").write_text("something")
    folders.remove(1)
    assert not one.parent.exists()
    assert other.exists()
    folders.remove(3)
    folders.close()
    folders.close()
    assert list((tmp_path / "made").iterdir()) == []


def test_nothing_is_made_before_a_session_needs_it(tmp_path):
    """A daemon that runs nothing leaves no folder, however it ends."""
    folders = WorkFolders(tmp_path)
    folders.remove(1)
    folders.close()
    assert list(tmp_path.iterdir()) == []


def test_daemons_that_begin_together_leave_each_other_s_alone(tmp_path):
    """One that looks for what killed ones left does not take a folder that is just made."""

    def work(number):
        for session in range(100):
            folders = WorkFolders(tmp_path)
            made = Path(folders.make(session, number))
            assert made.exists()
            folders.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_daemon_left_the_next_one_removes(tmp_path):
    """And not what a daemon that lives has beside it."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        theirs = Path(holder.stdout.readline().strip())
        ours = WorkFolders(tmp_path)
        mine = Path(ours.make(1, 0))
        assert theirs.exists()
        holder.send_signal(signal.SIGKILL)
    ours.close()
    assert theirs.exists()
    assert not mine.exists()
    after = WorkFolders(tmp_path)
    after.make(1, 0)
    assert not theirs.exists()
    after.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_may_be_another_user_s(tmp_path):
    """Who gets to it through folders that show no names."""
    folders = WorkFolders(tmp_path, Account("nobody", 65534, 65534, (), Path("/")))
    mine = Path(folders.make(1, 0))
    assert (mine.stat().st_uid, stat.S_IMODE(mine.stat().st_mode)) == (65534, 0o700)
    for above in (mine.parent, mine.parent.parent):
        assert (above.stat().st_uid, stat.S_IMODE(above.stat().st_mode)) == (0, 0o711)
    folders.close()
