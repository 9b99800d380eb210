"""What a machine and a process must have before ranks are started there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SESSIONS = """
import disco_client
for kind, args in (("Process", (1,)), ("Socket", (1, 1, 1, "localhost", 0))):
    try:
        getattr(disco_client, kind + "Session")(*args)
    except disco_client.ConfigError as error:
        print(error)
"""
EMPTY_PROC = 'mount -t tmpfs none /proc && exec "$@"'


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def without_proc():
    """What stands before a command that is to find nothing in /proc."""
    own = ["--map-root-user"] * bool(os.geteuid())
    prefix = ["unshare", "--mount", *own, "sh", "-c", EMPTY_PROC, "sh"]
    try:
        tried = run(*prefix, "true")
    except FileNotFoundError:
        pytest.skip("needs unshare, of util-linux")
    if tried.returncode:
        pytest.skip(f"no namespace with another /proc may be made here: {tried.stderr.strip()}")
    return prefix


def test_sessions_name_a_patched_select():
    """As gevent leaves the module: without epoll."""
    done = run(sys.executable, "-c", f"import select; del select.epoll\n{SESSIONS}")
    assert done.returncode == 0, done.stderr
    for kind, line in zip(("Process", "Socket"), done.stdout.splitlines(), strict=True):
        assert line.startswith(f"a {kind}Session needs select.epoll, which something has taken")
        assert "unpatched select is needed" in line


def test_sessions_name_a_proc_that_is_missing(without_proc):
    """Before a process is started."""
    done = run(*without_proc, sys.executable, "-c", SESSIONS)
    assert done.returncode == 0, done.stderr
    for kind, line in zip(("Process", "Socket"), done.stdout.splitlines(), strict=True):
        assert line.startswith(f"a {kind}Session needs /proc, which is not mounted here")


def test_a_worker_daemon_names_a_proc_that_is_missing(without_proc):
    """One line, with what to do; `disco local` repeats which daemon it was."""
    needs = "a worker daemon needs /proc, which is not mounted here: mount -t proc proc /proc"
    cli = [*without_proc, sys.executable, "-m"]
    alone = run(*cli, "disco_server.cli.worker", "--controller", "127.0.0.1:1")
    (line,) = alone.stderr.splitlines()
    assert (alone.returncode, line.endswith(needs)) == (2, True)
    local = run(*cli, "disco_server.cli.main", "local", "--slots", "1", "--", "true")
    first, second = local.stderr.splitlines()
    assert first.endswith(needs)
    assert "disco-worker ended with status 2 before it was ready" in second
    assert local.returncode == 1
