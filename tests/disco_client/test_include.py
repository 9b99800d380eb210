"""Packages that a session brings: which, how often, and what is refused."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from disco_client import errors, package_files
from disco_client.core import core_of
from disco_client.package_files import find_package

HELPERS = "def scale(x):\n    return x * {factor}\n"
PROGRAM = "import disco_own_helpers\ndef run(x):\n    return disco_own_helpers.scale(x)\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes files of a program, and imports modules of it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(files, name=None):
        for path, content in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        importlib.invalidate_caches()
        return importlib.import_module(name) if name else tmp_path

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("disco_own_"):
            del sys.modules[name]


def test_a_missing_module_beside_a_file_is_named_with_what_brings_it(session, program):
    """At the first use of the file; by a name where the program finds it, otherwise by a path."""
    made = program(
        {"disco_own_main.py": PROGRAM, "disco_own_helpers.py": HELPERS.format(factor=3)},
        "disco_own_main",
    )
    with pytest.raises(errors.BadFile, match=r"session\.include\('disco_own_helpers'\) brings it"):
        session.function(made.run)
    session.include("disco_own_helpers")
    assert session.function(made.run)(2).get(3) == 6
    apart = program({"apart/other.py": "import disco_own_near\n", "apart/disco_own_near.py": ""})
    session.load_source(apart / "apart" / "other.py")
    path = str(apart / "apart" / "disco_own_near.py")
    with pytest.raises(errors.BadFile) as caught:
        session.sync_all()
    assert f"session.include({path!r}) brings it" in str(caught.value)
    session.include(path)
    session.load_source(apart / "apart" / "other.py")
    session.sync_all()


def test_a_package_is_sent_while_it_is_another(session, program):
    """The same files cost no command; bytecode and hidden files are none of its own."""
    folder = program({"disco_own_pkg/a.py": "", "disco_own_pkg/data.bin": "x" * 1000})
    session.include(folder / "disco_own_pkg")
    before = core_of(session).log.last_call
    program({"disco_own_pkg/__pycache__/a.pyc": "1", "disco_own_pkg/.git/config": "2"})
    session.include("disco_own_pkg")
    assert core_of(session).log.last_call == before
    program({"disco_own_pkg/data.bin": "y" * 1000})
    session.include("disco_own_pkg")
    assert core_of(session).log.last_call > before


def test_other_workers_have_it_after_a_checkpoint_and_a_loss(open_session, program, lose, tmp_path):
    """The commands that brought it are repeated."""
    files = {"disco_own_main.py": PROGRAM, "disco_own_helpers.py": HELPERS.format(factor=3)}
    made = program(files, "disco_own_main")
    session = open_session(2, recover="replay")
    session.include("disco_own_helpers")
    run = session.function(made.run)
    scale = session.function(made.disco_own_helpers.scale)
    session.checkpoint(tmp_path / "checkpoint")
    lose(session)
    assert run(2).get_all() == scale(2).get_all() == [6, 6]


def test_a_worker_s_other_package_of_that_name_is_not_replaced(session, program):
    """The error says where that is; the session goes on."""
    folder = program({"apart/disco_conformance_functions/__init__.py": ""})
    with pytest.raises(errors.BadFile, match="another module 'disco_conformance_functions'"):
        session.include(folder / "apart" / "disco_conformance_functions")
    session.sync_all()


REFUSED = {
    "nothing": ({}, "disco_own_none", errors.ConfigError, "found no 'disco_own_none'"),
    "no folder": ({}, "./disco_own_none", errors.ConfigError, "expected the folder of a package"),
    "no name": ({"a-b/x.py": ""}, "./a-b", errors.ConfigError, "whose name can be imported"),
    "no Python": ({"pkg/x.txt": ""}, "./pkg", errors.ConfigError, "found none in"),
    "part": ({}, "xml.dom", errors.ConfigError, r"session.include\('xml'\) brings all of it"),
    "installed": ({}, "pytest", errors.ConfigError, "'pytest' is installed here"),
    "standard": ({"json/x.py": ""}, "./json", errors.ConfigError, "a name of Python's own"),
    "Disco's": ({"numpy/x.py": ""}, "./numpy", errors.ConfigError, "a name of Disco's own"),
    "in C": ({}, "_struct", errors.ConfigError, "expected a package|Python's own"),
    "number": ({}, 5, TypeError, "expected the name or the path of a package"),
    "compiled": (
        {"pkg/x.py": "", f"pkg/fast{EXTENSION_SUFFIXES[0]}": ""},
        "./pkg",
        errors.ConfigError,
        "is compiled for this machine",
    ),
    "large": (
        {"pkg/x.py": "", "pkg/large.txt": "x" * 2000},
        "./pkg",
        errors.ConfigError,
        r"at most 1000 bytes.*its largest file is .*/pkg/large\.txt' of 2000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_package_of_the_program_is_refused(program, monkeypatch, case):
    """With what came, and what to do."""
    files, package, kind, message = REFUSED[case]
    monkeypatch.chdir(program(files))
    monkeypatch.setattr(package_files, "MAX_PACKAGE_BYTES", 1000)
    with pytest.raises(kind, match=message):
        find_package(package).archive()


def test_links_stay_in_the_package_and_portions_are_not_mixed(program, monkeypatch):
    """A link to a file of the package is that file."""
    folder = program({"disco_own_pkg/a.py": "x = 1", "other/disco_own_pkg/b.py": "", "c.py": ""})
    package = folder / "disco_own_pkg"
    plain = find_package(package).archive()
    (package / "b.py").symlink_to("a.py")
    assert len(find_package(package).archive()) > len(plain)
    (package / "c.py").symlink_to("../c.py")
    with pytest.raises(errors.ConfigError, match="a link to a file outside of the package"):
        find_package(package).archive()
    (package / "c.py").unlink()
    (package / "d").symlink_to("../other")
    with pytest.raises(errors.ConfigError, match="is a link to a folder"):
        find_package(package).archive()
    monkeypatch.syspath_prepend(str(folder / "other"))
    with pytest.raises(errors.ConfigError, match="expected a package in one folder"):
        find_package("disco_own_pkg")
