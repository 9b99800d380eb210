"""The commands where only the client is installed, and where all is."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest


def begin(name, before="pass", *arguments):
    """Runs a command's beginning, with ``--version`` alone if not told, in its own process."""
    program = f"import sys; {before}; sys.argv = {[name, *(arguments or ['--version'])]!r}\n"
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


def top_level(*extras):
    """The packages that one imports of the base requirements and of extras."""
    provided = {}
    for package, names in importlib.metadata.packages_distributions().items():
        for each in names:
            provided.setdefault(re.sub(r"[-_.]+", "-", each).lower(), set()).add(package)
    wanted = set()
    for line in importlib.metadata.requires("disco-runtime"):
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        if (extra is None) if not extras else (extra and extra[1] in extras):
            name = re.match(r"[\w.-]+", requirement)[0]
            wanted |= provided.get(re.sub(r"[-_.]+", "-", name).lower(), set())
    return wanted


def without_the_server():
    """Code that hides what the extra `server` brings beyond the client and the extra `cli`."""
    hidden = top_level("server") - top_level("cli") - top_level()
    assert {"aiohttp", "cryptography", "grpc_health"} <= hidden
    return f"sys.modules.update(dict.fromkeys({sorted(hidden)!r}))"


@pytest.mark.parametrize("command", [["status"], ["sessions"], ["top", "--once"]])
def test_the_extra_cli_is_enough_to_look_at_a_cluster(cluster, command):
    """On a laptop with click and rich beside the client."""
    done = begin("disco", without_the_server(), *command, "--json", "--address", cluster.address)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_needs_more_than_the_extra_cli_says_so(tmp_path):
    """In one line, with what to install."""
    done = begin("disco", without_the_server(), "certs", "init", str(tmp_path / "pki"))
    assert done.returncode == 2
    assert done.stderr == (
        "disco: expected what the extra `server` brings, and cryptography is not installed: "
        "pip install 'disco-runtime[server]'\n"
    )


@pytest.mark.parametrize("name", ["disco", "disco-controller", "disco-worker"])
def test_without_the_extra_a_command_says_what_to_install(name):
    """In one line, and not by a traceback."""
    done = begin(name, "sys.modules['click'] = None")
    assert done.returncode == 2
    extra = "cli" if name == "disco" else "server"
    assert done.stderr.startswith(f"{name}: expected what the extra `{extra}` brings, and click")
    assert done.stderr.count("\n") == 1


def test_a_module_of_ours_that_is_missing_is_a_fault():
    """No extra would bring it."""
    done = begin("disco", "sys.modules['disco_server.cli.main'] = None")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
