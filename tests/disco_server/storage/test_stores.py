"""Objects in a store: ranges, lists, new objects, and what is refused; on a real S3 server."""

from __future__ import annotations

import os

import pytest

from disco_server.storage.files import DataFile, FileError, FileNotAllowed, absolute_path
from disco_server.storage.folders import list_names, open_folder
from disco_server.storage.stores import ObjectPath

LARGE = os.urandom(20 << 20)
"""More than two parts of an object."""


def write(url, content, chunk=1 << 20):
    """Makes an object as workers make theirs."""
    path = ObjectPath(url)
    writer = open_folder(path.parent).create(path.name, len(content))
    for at in range(0, len(content), chunk):
        writer.write(memoryview(content)[at : at + chunk], at)
    writer.finish()
    writer.close()
    return path


def test_ranges_come_from_where_they_were_asked(bucket):
    """Of an object that was written in several parts; also more than one request's bytes."""
    with DataFile(write(f"{bucket}/a/large", LARGE), ("*",)) as file:
        assert file.size == len(LARGE)
        assert file.read(5, 9 << 20) == LARGE[9 << 20 :][:5]
        assert file.read(len(LARGE) - 3, 3) == LARGE[3:]
        assert file.bytes_read == len(LARGE) + 2
        with pytest.raises(FileError, match=r"expected 8 bytes from .*, the file ends after"):
            file.read(8, len(LARGE) - 4)


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(bucket):
    """Not an array of the bytes of two objects."""
    path = write(f"{bucket}/x", b"old bytes")
    with DataFile(path, ("*",)) as file:
        assert file.read(3) == b"old"
        write(f"{bucket}/x", b"new bytes")
        with pytest.raises(FileError, match="it was replaced while it was read"):
            file.read(3)


def test_what_is_not_there_is_an_error_that_names_it(bucket):
    """A missing object, a missing bucket."""
    for url in (f"{bucket}/none", "s3://no-such-bucket-here/none"):
        with pytest.raises(FileError, match=f"^{url}: there is no such file here"):
            DataFile(ObjectPath(url), ("*",))


def test_names_are_those_directly_below(bucket):
    """Of objects, and the next parts of longer names; each once."""
    for name in ("c/x", "c/deep/y", "c/deep/z", "cx"):
        write(f"{bucket}/{name}", b"1")
    assert sorted(list_names(ObjectPath(f"{bucket}/c"))) == ["deep", "x"]
    assert sorted(list_names(ObjectPath(bucket))) == ["c", "cx"]


def test_an_object_is_made_only_where_there_is_none(bucket):
    """The second writer is told, and the first one's bytes stay."""
    folder = open_folder(ObjectPath(f"{bucket}/c"))
    assert folder.put_new("index", b"first", "")
    assert not folder.put_new("index", b"second", "")
    with DataFile(ObjectPath(f"{bucket}/c/index"), ("*",)) as file:
        assert file.read(file.size) == b"first"


def test_an_object_appears_when_it_is_finished(bucket):
    """Neither its first parts nor anything else before; and it is written in order only."""
    folder = open_folder(ObjectPath(bucket))
    writer = folder.create("x", len(LARGE))
    writer.write(memoryview(LARGE), 0)
    with pytest.raises(OSError, match=f"expected what follows byte {len(LARGE)} of it"):
        writer.write(memoryview(b"1"), 5)
    assert list_names(ObjectPath(bucket)) == []
    writer.finish()
    assert list_names(ObjectPath(bucket)) == ["x"]


def test_a_removed_folder_takes_all_below_it_and_nothing_else(bucket):
    """Names that only begin alike stay, and what is not there is no error."""
    for name in ("c/g/x", "c/g/deep/y", "c/gg", "c/h"):
        write(f"{bucket}/{name}", b"1")
    folder = open_folder(ObjectPath(f"{bucket}/c"))
    for name in ("g", "h", "none"):
        folder.remove(name)
    assert list_names(ObjectPath(f"{bucket}/c")) == ["gg"]


def test_only_what_is_allowed_is_opened(bucket):
    """By whole parts of the name; the error names what is allowed, and the flag."""
    path = write(f"{bucket}/models/x", b"good")
    for allowed in (bucket, f"{bucket}/models", f"{bucket}/models/x", "*"):
        with DataFile(path, (allowed,)) as file:
            assert file.read(4) == b"good"
    for allowed in (f"{bucket}/model", f"{bucket}/models/x/y", "/", "s3://other"):
        with pytest.raises(FileNotAllowed, match=f"{allowed}.*--allow-read {bucket}/models"):
            DataFile(path, (allowed,))
    # As a manifest may name it.
    for name in ("../secret", "..%2fsecret", "/secret", "a//b", "./x"):
        outside = ObjectPath(f"{bucket}/models") / name
        if "%" not in name:
            with pytest.raises(FileNotAllowed):
                DataFile(outside, (f"{bucket}/models",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ftp://host/x", "expected a path, or a URL that begins with file://, s3://"),
        ("s3:///x", "expected a URL such as s3://bucket/name"),
        ("s3://bucket/a/../b", "neither '.' nor '..'"),
        ("https://host/a/%2e%2e/b", "neither '.' nor '..'"),
        ("https://user:password@host/a", "without user, query and fragment"),
        ("https://host/a?sig=password", "without user, query and fragment"),
    ],
)
def test_a_url_that_no_object_can_have_is_refused(text, problem):
    """With what was expected, and without what may be a secret."""
    with pytest.raises(FileError, match=problem) as raised:
        absolute_path(text)
    assert "password" not in str(raised.value)


def test_a_url_of_a_file_is_its_path(tmp_path):
    """Whether it names this machine or not."""
    for text in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a b"):
        assert absolute_path(text) == tmp_path / "a b"
