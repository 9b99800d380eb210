"""From a file to the loader for its kind."""

from __future__ import annotations

import hashlib
import os
import sys

import pytest

from disco_client import cpu
from disco_server.modules import loading
from disco_server.modules.base import FileRefused

LOADER = """
def load(path, device):
    text = path.read_text()
    return {"words": lambda: text.split(), "where": lambda: str(device)}

def wrong(path, device):
    return 5
"""


def install(folder, *entries, name="disco-test-loader"):
    """Puts a distribution with entry points into a folder, as pip would."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{loading.GROUP}]", *entries]))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the import path, with the code of a loader."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "disco_words_loader.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("disco_words_loader", None)


def test_a_python_file_is_loaded_as_one(tmp_path):
    """The module is called what the file is."""
    (tmp_path / "a.py").write_text("def f(): return 1\n")
    module = loading.load(tmp_path / "a.py", "a.py", cpu(), {})
    assert module.functions["f"]() == 1
    assert module.name == "a.py"


def test_packages_bring_loaders_for_other_kinds(site, tmp_path):
    """By an entry point that is named as the suffix; it gets the path and the device."""
    install(site, "words = disco_words_loader:load")
    (tmp_path / "a.words").write_text("one two")
    module = loading.load(tmp_path / "a.words", "a.words", cpu(), {})
    assert module.functions["words"]() == ["one", "two"]
    assert module.functions["where"]() == "cpu:0"


def test_a_loader_must_return_functions_by_name(site, tmp_path):
    """Anything else is refused, with what it returned."""
    install(site, "words = disco_words_loader:wrong")
    (tmp_path / "a.words").write_text("")
    with pytest.raises(FileRefused, match="returned int, expected a mapping"):
        loading.load(tmp_path / "a.words", "a.words", cpu(), {})


def test_two_loaders_for_one_kind_are_refused(site, tmp_path):
    """Rather than taking one by chance; their places are named."""
    install(site, "words = disco_words_loader:load")
    install(site, "words = disco_words_loader:wrong", name="another")
    (tmp_path / "a.words").write_text("")
    with pytest.raises(FileRefused, match=r"disco_words_loader:load, disco_words_loader:wrong"):
        loading.load(tmp_path / "a.words", "a.words", cpu(), {})


@pytest.mark.parametrize("name", ["a.xyz", "a", ".py", "a.", "a.py.txt"])
def test_an_unknown_kind_is_refused_with_those_there_are(site, name):
    """Installed loaders are among them."""
    install(site, "words = disco_words_loader:load")
    with pytest.raises(FileRefused, match=r"ending in \.py, \.so, \.tar, \.words"):
        loading.refuse_kind(name)


def test_a_digest_is_that_of_the_content(tmp_path):
    """Also after the file has changed within a tick of the clock, if its size did."""
    file = tmp_path / "a"
    file.write_bytes(b"one")
    assert loading.digest_of(file) == hashlib.sha256(b"one").hexdigest()
    before = file.stat()
    file.write_bytes(b"three")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert loading.digest_of(file) == hashlib.sha256(b"three").hexdigest()


def test_what_is_no_file_is_refused(tmp_path):
    """Missing, a folder, or a pipe that nobody writes to."""
    with pytest.raises(FileRefused, match="No such file"):
        loading.digest_of(tmp_path / "nope")
    os.mkfifo(tmp_path / "pipe")
    for name in ("", "pipe"):
        with pytest.raises(FileRefused, match="is something else"):
            loading.digest_of(tmp_path / name)
