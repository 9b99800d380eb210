"""The commands where only the client is installed, and where all is."""

from __future__ import annotations

import subprocess
import sys

import pytest


def begin(name, before="pass"):
    """Runs a command's beginning with ``--version``, in a process of its own."""
    program = f"import sys; {before}; sys.argv = [{name!r}, '--version']\n"
    program += f"from disco_server.cli import entry; entry.{name.rpartition('-')[2]}()"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", ["disco", "disco-controller", "disco-worker"])
def test_a_command_begins(name):
    """By the name under which it is installed."""
    done = begin(name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name}, version ")


@pytest.mark.parametrize("name", ["disco", "disco-controller", "disco-worker"])
def test_without_the_extra_a_command_says_what_to_install(name):
    """In one line, and not by a traceback."""
    done = begin(name, "sys.modules['click'] = None")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: expected what the extra `server` brings, and click")
    assert done.stderr.count("\n") == 1


def test_a_module_of_ours_that_is_missing_is_a_fault():
    """No extra would bring it."""
    done = begin("disco", "sys.modules['disco_server.cli.main'] = None")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
