"""Which files may become a module."""

from __future__ import annotations

import pytest

from disco_server.modules.base import LoadedModule, LoadNotAllowed, LoadRules


@pytest.fixture
def files(tmp_path):
    """A folder that is allowed, a file in it, and one beside it."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "in.py").write_text("")
    (tmp_path / "out.py").write_text("")
    return tmp_path


def test_a_folder_covers_what_lies_in_it(files):
    """And a file itself; the path that comes back has no links."""
    rules = LoadRules((str(files / "allowed"),))
    assert rules.check_file(files / "allowed" / "in.py") == (files / "allowed" / "in.py").resolve()
    assert LoadRules((str(files / "out.py"),)).check_file(files / "out.py")
    assert LoadRules(("*",)).check_file(files / "out.py")


@pytest.mark.parametrize("path", ["out.py", "allowed/../out.py", "allowed/link.py", "allowed2/x"])
def test_nothing_leads_out_of_it(files, path):
    """Neither dots nor links nor a longer name; the message says which flag to set."""
    (files / "allowed" / "link.py").symlink_to(files / "out.py")
    rules = LoadRules((str(files / "allowed"), "uploads"))
    with pytest.raises(LoadNotAllowed, match=r"start disco-worker with --allow-load /"):
        rules.check_file(files / path)


def test_nothing_is_allowed_unless_it_is_said(files):
    """An empty list means no file at all, and no upload."""
    with pytest.raises(LoadNotAllowed):
        LoadRules().check_file(files / "out.py")
    with pytest.raises(LoadNotAllowed, match="--allow-load uploads"):
        LoadRules((str(files),)).check_uploads(files / "out.py")


def test_a_link_to_an_allowed_folder_is_followed(files):
    """The person who allows a folder may name it by a link."""
    (files / "link").symlink_to(files / "allowed")
    assert LoadRules((str(files / "link"),)).check_file(files / "allowed" / "in.py")


def test_uploads_are_not_reached_by_their_path(files):
    """What lies in the cache is another session's upload, whatever folder is allowed."""
    rules = LoadRules((str(files),), cache=files / "allowed", cache_bytes=1)
    with pytest.raises(LoadNotAllowed, match="--allow-load uploads"):
        rules.check_file(files / "allowed" / "in.py")
    both = LoadRules(("uploads",), cache=files / "allowed", cache_bytes=1)
    assert both.check_file(files / "allowed" / "in.py")
    assert LoadRules(("*",), cache=files / "allowed").check_file(files / "allowed" / "in.py")


def test_a_module_shows_its_name():
    """That is what a client sees that fetches one."""
    assert repr(LoadedModule("m.so", {})) == "<module 'm.so'>"
