"""``disco top``: what a cluster does, for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner

from disco_client import connect
from disco_server.cli.main import main

TOP = (sys.executable, "-m", "disco_server.cli.main", "top")


@pytest.fixture(scope="module")
def busy(cluster, eventually):
    """A session one of whose ranks sleeps for as long as the tests take."""
    session = connect(cluster.address, num_workers=2, name="busy")
    array = session.empty((1024,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    session.get_global_func("time.sleep")(600)
    options = ["sessions", "busy", "--json", "--address", cluster.address]

    def asleep():
        ranks = json.loads(CliRunner().invoke(main, options).stdout)["ranks"]
        return all(rank["current"] and rank["current"]["what"] == "time.sleep" for rank in ranks)

    eventually(asleep)
    yield session
    session.shutdown()


def top(*arguments):
    return CliRunner().invoke(main, ["top", *arguments], prog_name="disco")


def test_once_is_a_picture_with_rates(cluster, busy):
    """The cluster in a line, then its sessions, then the ranks of each."""
    shown = top("--once", "--address", cluster.address)
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert f"at {cluster.address}: 2 nodes, " in lines[0]
    (row,) = [line.split() for line in lines if line.startswith("busy ")]
    assert "running" in row
    for rank in busy.workers:
        (row,) = [line.split() for line in lines if f" {rank.pid} " in line]
        assert "time.sleep" in row
        assert "0/s" in row  # known, and nothing


def test_programs_get_one_object_a_line(cluster, busy):
    """Of all sessions or of one, with the time; the reader that leaves ends it."""
    command = [*TOP, "busy", "--json", "--interval", "0.2", "--address", cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reading:
        views = [json.loads(reading.stdout.readline()) for _ in range(2)]
        reading.terminate()
    assert views[0]["time"] < views[1]["time"]
    for view in views:
        (session,) = view["sessions"]
        assert session["name"] == "busy"
        for rank in session["ranks"]:
            assert rank["current"]["what"] == "time.sleep"
            assert rank["current"]["seconds"] > 0
            assert rank["commands_per_s"] == 0.0
            assert rank["collective_bytes"] >= 4096


def test_q_ends_it_on_a_terminal(cluster, busy):
    """With exit code 0."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    command = [*TOP, "--interval", "0.2", "--address", cluster.address]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=env) as showing:
        os.close(theirs)
        shown = b""
        while b"time.sleep" not in shown:
            shown += os.read(ours, 65536)
        os.write(ours, b"q")
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass  # that is how a terminal says that nobody has it open any more
        assert showing.wait(20) == 0
    os.close(ours)


def test_what_there_is_not_is_exit_code_5(cluster):
    """As for every command that takes a session."""
    assert top("nope", "--once", "--address", cluster.address).exit_code == 5
