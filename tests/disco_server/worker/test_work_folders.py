"""Folders of sessions: whose they are, and that nothing stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from disco_server.config import Account
from disco_server.worker.environment import WorkFolders


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_may_be_another_user_s(tmp_path):
    """Who gets to it through folders that show no names."""
    folders = WorkFolders(tmp_path, Account("nobody", 65534, 65534, (), Path("/")))
    mine = Path(folders.make(1, 0))
    assert (mine.stat().st_uid, stat.S_IMODE(mine.stat().st_mode)) == (65534, 0o700)
    for above in (mine.parent, mine.parent.parent):
        assert (above.stat().st_uid, stat.S_IMODE(above.stat().st_mode)) == (0, 0o711)
    folders.close()
