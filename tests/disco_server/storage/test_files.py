"""Opening and reading data files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from disco_server.storage.files import DataFile, FileError, FileNotAllowed, check_allowed


def test_bytes_come_from_where_they_were_asked(write):
    """Into a buffer or as bytes, and they are counted."""
    with DataFile(write(b"0123456789"), ("*",)) as file:
        out = bytearray(4)
        file.read_into(memoryview(out), 3)
        assert (bytes(out), file.read(2, 8), file.read(1)) == (b"3456", b"89", b"0")
        assert (file.size, file.bytes_read) == (10, 7)


def test_a_file_that_ends_too_early_is_an_error(write):
    """Not an array with a tail of garbage."""
    with (
        DataFile(write(b"0123456789"), ("*",)) as file,
        pytest.raises(FileError, match="expected 8 bytes from offset 6, the file ends after 4"),
    ):
        file.read(8, 6)


def test_only_what_is_allowed_is_opened(tmp_path, write):
    """Neither through a link nor through .. does a session get out; the flag is named."""
    inside = tmp_path / "models"
    inside.mkdir()
    secret = write(b"secret", "secret")
    good = write(b"good", "models/good")
    (inside / "link").symlink_to(secret)
    (inside / "fine").symlink_to(good)
    allowed = (str(inside),)
    for name in ("good", "fine"):
        with DataFile(inside / name, allowed) as file:
            assert file.read(4) == b"good"
    for path in (secret, inside / "link", inside / ".." / "secret"):
        with pytest.raises(FileNotAllowed, match="--allow-read"):
            DataFile(path, allowed)
    with pytest.raises(FileNotAllowed, match="there is none"):
        check_allowed(good, ())


def test_what_is_no_file_is_refused_at_once(tmp_path):
    """A missing file, a folder, and a pipe that nobody writes, which would block."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="there is no such file here"):
        DataFile(tmp_path / "none", ("*",))
    for name in ("", "pipe"):
        with pytest.raises(FileError, match="expected a file, this is something else"):
            DataFile(tmp_path / name, ("*",))
    with pytest.raises(FileError, match="cannot be opened: File name too long"):
        DataFile(tmp_path / ("x" * 300), ("*",))


def open_files(folder):
    """How many files below a folder this process has open."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # one that is closed by now
            count += fd.readlink().is_relative_to(folder)
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are not listed here")
def test_files_are_closed(write, tmp_path):
    """Leaving the block closes them, and what is refused never stays open."""
    with DataFile(write(b"0"), ("*",)):
        assert open_files(tmp_path) == 1
    with pytest.raises(FileError):
        DataFile(write(b"0").parent, ("*",))
    assert open_files(tmp_path) == 0
