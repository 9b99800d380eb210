"""``disco local --detach``: a cluster that goes on when the terminal is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest


@pytest.fixture
def disco(tmp_path):
    """Runs ``disco`` with settings of its own; a cluster that is left is ended."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")}
    kept |= {"DISCO_CONTEXTS": str(tmp_path / "contexts.json"), "XDG_STATE_HOME": str(tmp_path)}

    def run(*arguments, program=("-m", "disco_server.cli.main"), **more):
        return subprocess.run(
            [sys.executable, *program, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**kept, **more},
            start_new_session=True,  # a terminal of its own, which is closed when it returns
            check=False,
        )

    yield run
    run("local", "--stop")


def runs(process):
    """Whether it does, though whoever should have waited for its end has not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


PROGRAM = """
import disco_client
with disco_client.connect(num_workers=2) as session:
    session.sync_all()
    print(session.num_workers)
"""


def test_programs_find_it_until_it_is_stopped(disco, tmp_path):
    """It has the options that were given; nothing of it is left."""
    started = disco("local", "--nodes", "2", "--slots", "1", "--detach", "--json")
    assert started.returncode == 0, started.stderr
    about = json.loads(started.stdout)
    family = [psutil.Process(pid) for pid in (about["pid"], *about["pids"])]
    shown = disco("status", "--json")
    assert [node["slots"] for node in json.loads(shown.stdout)["nodes"]] == [1, 1]
    ran = disco(program=("-c", PROGRAM))
    assert ran.stdout == "2\n", ran.stderr
    again = disco("local", "--detach")
    assert (again.returncode, "a detached cluster runs already" in again.stderr) == (2, True)
    stopped = disco("local", "--stop")
    assert stopped.stdout == f"stopped {about['address']}\n", stopped.stderr
    assert not any(map(runs, family))
    assert json.loads(disco("context", "list", "--json").stdout) == []
    assert (tmp_path / "disco" / "local.log").exists()
    assert disco("local", "--stop").returncode == 2


def test_one_that_has_ended_by_itself_makes_room(disco):
    """As after a restart of the machine: starting another one just works, and stopping too."""
    first = json.loads(disco("local", "--slots", "1", "--detach", "--json").stdout)
    process = psutil.Process(first["pid"])
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs([process, *map(psutil.Process, first["pids"])], timeout=30)
    second = disco("local", "--slots", "1", "--detach", DISCO_ADDRESS="localhost:1")
    assert second.returncode == 0, second.stderr
    assert "DISCO_ADDRESS names another one, localhost:1" in second.stderr
    assert disco("local", "--stop").returncode == 0


def test_one_that_cannot_start_says_why(disco):
    """With the end of its log, and without a context that leads nowhere."""
    failed = disco("local", "--detach", "--listen", "192.0.2.1:1", "--insecure")
    assert failed.returncode == 1
    assert "ended with status" in failed.stderr
    assert "192.0.2.1" in failed.stderr
    assert json.loads(disco("context", "list", "--json").stdout) == []


def test_a_command_and_a_detached_cluster_exclude_one_another(disco):
    """Both ways."""
    for option in ("--detach", "--stop"):
        refused = disco("local", option, "--", sys.executable, "-c", "")
        assert refused.returncode == 2
        assert f"expected no command with {option}" in refused.stderr
