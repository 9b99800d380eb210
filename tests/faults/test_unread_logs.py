"""Daemons whose standard error is a pipe that nobody reads."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from disco_client import connect

UNREAD = """
import fcntl, os, sys
ours, theirs = os.pipe()
fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
os.write(theirs, b"." * 4096)
os.dup2(ours, 100)
os.dup2(theirs, 2)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command with such a pipe, full already; its other end is the command's descriptor 100."""

SESSIONS = 3


def read_log(daemon, until, eventually):
    """Reads a daemon's log until it has a text, and returns all of it."""
    text = b""
    with Path(f"/proc/{daemon.process.pid}/fd/100").open("rb", buffering=0) as log:
        os.set_blocking(log.fileno(), False)

        def read():
            nonlocal text
            text += log.read(1 << 20) or b""
            return until in text.decode()

        eventually(read, what=lambda: f"{until!r} in {text.decode()[-2000:]}")
    return text.decode()


@pytest.mark.parametrize("unread", ["controller", "worker"])
def test_a_log_that_nobody_reads_holds_up_no_daemon(daemons, printed, eventually, unread):
    """Row 39: it serves sessions as ever, and its log comes when it is read."""
    prefixes = {unread: [sys.executable, "-c", UNREAD]}
    daemons.prefix = prefixes.get("controller", [])
    controller = daemons.controller()
    daemons.prefix = prefixes.get("worker", [])
    worker = daemons.worker(controller.address, "--slots", "1")
    for number in range(SESSIONS):
        with connect(
            controller.address, num_workers=1, timeout=20, name=f"session-{number}"
        ) as session:
            session.import_python_module("disco_test_functions")
            session.get_global_func("tests.say")(f"line {number}")
            session.sync_all(timeout=20)
            said = f"] line {number}\n"
            eventually(lambda: said in printed(), what="what a rank printed")  # noqa: B023
    daemon = {"controller": controller, "worker": worker}[unread]
    text = read_log(daemon, f"session-{SESSIONS - 1}", eventually)
    assert "session-0" in text
    assert "dropped" not in text


def test_a_daemon_ends_whoever_reads_its_log(daemons):
    """Row 39: what nobody reads is lost then, and the daemon ends as it should."""
    daemons.prefix = [sys.executable, "-c", UNREAD]
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "1")
    for daemon in (worker, controller):
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
