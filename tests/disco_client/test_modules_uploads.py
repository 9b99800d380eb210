"""Files of modules: what a node may load, and what the client brings it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import termios
import threading
from pathlib import Path

import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.modules import _shown
from disco_client.notebook import WorkTable

# Each process reads the file of its own working folder under this path, so that
# it exists at the client and not on the workers, or is another one there.
HERE = "/proc/self/cwd"
CACHE = ("--module-cache", "cache")

needs_proc = pytest.mark.skipif(
    not Path(HERE).exists(), reason=f"needs {HERE}, to give client and workers different files"
)


@pytest.fixture
def at_client(tmp_path, monkeypatch):
    """Writes a file that only the client has; returns its path."""
    folder = tmp_path / "client"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def write(name, content):
        (folder / name).write_text(content)
        return f"{HERE}/{name}"

    return write


@pytest.fixture
def nodes(daemons):
    """Starts worker daemons with their own options; returns a session's opener."""
    controller = daemons.controller()
    opened = []

    def start(*options, nodes=1, slots=2):
        running = [
            daemons.worker(controller.address, "--slots", slots, "--name", f"n{i}", *options)
            for i in range(nodes)
        ]

        def open_one(workers=nodes * slots):
            session = connect(controller.address, num_workers=workers)
            opened.append(session)
            return session

        open_one.folders = [daemon.folder for daemon in running]
        return open_one

    yield start
    for session in opened:
        session.shutdown()


@pytest.mark.parametrize("allowed", [True, False])
def test_functions_of_tvm_need_an_allow_list_that_covers_it(nodes, allowed):
    """They may read and write files, as the package tvm may."""
    session = nodes(*(("--allow-module", "tvm") if allowed else ()), slots=1)()
    session.get_global_func("testing.echo")
    with contextlib.nullcontext() if allowed else pytest.raises(errors.FunctionNotFound):
        session.sync_all()


@needs_proc
def test_a_file_of_the_client_is_brought_once(nodes, at_client):
    """To each node; another session finds it there. The cache is the daemon's user's alone."""
    open_one = nodes("--allow-load", "uploads", *CACHE, nodes=2)
    path = at_client("model.py", "def f(): return 7\n")
    first = open_one()
    result = first.load_vm_module(path)["f"]()
    assert [result.debug_get_from_remote(w) for w in range(4)] == [7] * 4
    first.shutdown()
    kept = [next((folder / "cache").glob("[!.]*")) for folder in open_one.folders]
    assert [re.fullmatch(r"[0-9a-f]{64}\.py", file.name) is not None for file in kept] == [True] * 2
    before = [(file.stat().st_ino, file.stat().st_mode & 0o777) for file in kept]
    assert [mode for _, mode in before] == [0o600] * 2
    second = open_one()
    assert second.load_vm_module(path)["f"]().debug_get_from_remote(3) == 7
    assert [(file.stat().st_ino, file.stat().st_mode & 0o777) for file in kept] == before


@needs_proc
def test_a_compiled_module_of_the_client_is_brought(nodes, at_client, tvm_modules):
    """With its kind."""
    open_one = nodes("--allow-load", "uploads", *CACHE)
    shutil.copy(tvm_modules / "basics.so", at_client("basics.so", "")[len(HERE) + 1 :])
    session = open_one()
    module = session.load_vm_module(f"{HERE}/basics.so")
    array = session.broadcast(np.ones((3, 4), "float32"))
    assert module["transpose"](array).numpy(1).shape == (4, 3)


@needs_proc
def test_the_client_s_content_decides(nodes, at_client):
    """A worker's file of that path is used where it is the same, and not where it differs."""
    open_one = nodes("--allow-load", "*", "--allow-module", "os", *CACHE)
    path = at_client("model.py", "def f(): return __file__\n")
    session = open_one()
    where = session.get_global_func("os.getcwd")()
    folders = [Path(where.debug_get_from_remote(worker)) for worker in range(2)]
    for folder in folders:
        shutil.copy("model.py", folder / "model.py")
    found = session.load_vm_module(path)["f"]().debug_get_from_remote(0)
    assert found == str((folders[0] / "model.py").resolve())
    session.sync_all()  # the node's other worker has loaded it, too
    for folder in folders:
        (folder / "model.py").write_text("def f(): return 'old'\n")
    found = session.load_vm_module(path)["f"]().debug_get_from_remote(0)
    assert Path(found).parent == (open_one.folders[0] / "cache").resolve()


@needs_proc
def test_a_large_file_is_brought_in_parts(nodes, at_client):
    """More than one part to more than one node, and not at all where it does not fit."""
    open_one = nodes(
        "--allow-load", "uploads", "--module-cache-mib", "80", *CACHE, nodes=2, slots=1
    )
    session = open_one()
    path = at_client("large.py", "def f(): return 3\n" + "# " + "x" * (35 << 20))
    assert session.load_vm_module(path)["f"]().debug_get_from_remote(1) == 3
    other = at_client("larger.py", "def f(): return 4\n" + "# " + "x" * (41 << 20))
    with pytest.raises(errors.BadFile, match="larger --module-cache-mib"):
        session.load_vm_module(other)
    session.sync_all()


@needs_proc
def test_what_is_not_allowed_is_refused_with_the_flag(nodes, at_client, tvm_modules):
    """A daemon loads nothing unless it is told to: neither its own files nor a client's."""
    session = nodes()()
    with pytest.raises(errors.NotAllowed, match="--allow-load uploads"):
        session.load_vm_module(at_client("model.py", "def f(): return 7\n"))
    for path in (tvm_modules / "basics.so", "/etc/../tmp/nowhere.py"):
        with pytest.raises(errors.NotAllowed, match="--allow-load /"):
            session.load_vm_module(path).debug_get_from_remote(0)
    session.sync_all()


def test_an_allowed_folder_is_loaded_from(nodes, tmp_path):
    """And nothing beside it."""
    (tmp_path / "in").mkdir()
    for name in ("in/a.py", "b.py"):
        (tmp_path / name).write_text("def f(): return 7\n")
    session = nodes("--allow-load", tmp_path / "in")()
    assert session.load_vm_module(tmp_path / "in" / "a.py")["f"]().debug_get_from_remote(0) == 7
    with pytest.raises(errors.NotAllowed):
        session.load_vm_module(tmp_path / "in" / ".." / "b.py")


@needs_proc
def test_sessions_may_bring_the_same_file_at_once(nodes, at_client):
    """Each gets a working module, and the cache holds it once."""
    open_one = nodes("--allow-load", "uploads", *CACHE, slots=4)
    path = at_client("model.py", "def f(): return 7\n" + "#" * (1 << 20))
    sessions = [open_one(1) for _ in range(4)]
    results = []

    def load(session):
        results.append(session.load_vm_module(path)["f"]().debug_get_from_remote(0))

    threads = [threading.Thread(target=load, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [7] * 4
    assert len(list((open_one.folders[0] / "cache").glob("[!.]*"))) == 1


@needs_proc
def test_packages_on_the_workers_bring_loaders(daemons, at_client, tmp_path):
    """A distribution with an entry point is all it takes; its files may be brought too."""
    site = tmp_path / "site"
    info = site / "words_loader-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words-loader\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[disco.module_loaders]\nwords = words_loader:load\n")
    (site / "words_loader.py").write_text(
        "def load(path, device):\n"
        "    return {'count': lambda: len(path.read_text().split()), 'on': lambda: str(device)}\n"
    )
    controller = daemons.controller()
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    daemons.worker(
        controller.address, "--slots", 2, "--allow-load", "uploads", *CACHE, PYTHONPATH=path
    )
    with connect(controller.address, num_workers=2) as session:
        module = session.load_vm_module(at_client("some.words", "one two three"))
        assert module["count"]().debug_get_from_remote(1) == 3
        assert module["on"]().debug_get_from_remote(0) == "cpu:0"


def test_a_bar_is_shown_for_large_files_on_a_terminal_only(monkeypatch, capsys):
    """And stays silent in a log file."""

    def bar_of(size, name):
        return WorkTable().track("load_module", name, size, _shown(size))

    with bar_of(100 << 20, "m.so") as bar:
        bar.update(50 << 20)
    assert capsys.readouterr().err == ""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", 0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with bar_of(1000, "small.so") as bar:
            bar.update(1000)
        with bar_of(100 << 20, "large.so") as bar:
            bar.update(100 << 20)
        terminal.flush()
        shown = screen.read(4096).decode()
    assert "large.so" in shown
    assert "small.so" not in shown
