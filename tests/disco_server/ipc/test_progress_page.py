"""How far a rank is, on a page that two processes share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from disco_server.ipc.framing import ProgressPage

OTHER = """
import sys
from disco_server.ipc.framing import ProgressPage
page = ProgressPage(int(sys.argv[1]))
page.write(7, 2)
page.close()
"""


@pytest.fixture
def page():
    made = ProgressPage.make()
    if made is None:
        pytest.skip("this processor does not keep the order of stores")
    page, fd = made
    yield page, fd.fileno()
    page.close()
    fd.close()


def test_what_another_process_writes_is_seen(page):
    """A command counts as executed once it, or a later one, is shown."""
    mine, fd = page
    assert mine.shows(0, 0)
    assert not mine.shows(1, 0)
    subprocess.run([sys.executable, "-c", OTHER, str(fd)], pass_fds=(fd,), check=True)
    assert [mine.shows(seq, 2) for seq in (6, 7, 8)] == [True, True, False]


@pytest.mark.parametrize("known", [1, 3])
def test_it_shows_nothing_while_a_frame_is_unknown(page, known):
    """A frame that has not been read may say that a command failed."""
    mine, _ = page
    mine.write(7, 2)
    assert not mine.shows(7, known)


def test_a_processor_that_reorders_stores_has_no_page(monkeypatch):
    """There the answers come through the socket alone."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert ProgressPage.make() is None
