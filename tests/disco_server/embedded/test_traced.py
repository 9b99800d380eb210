"""Programs whose functions are traced, as by a debugger, beside workers that are threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler
import sys
import time

import disco_client
import disco_server

faulthandler.dump_traceback_later(40, exit=True)


@disco_server.register_func("traced.wait")
def wait():
    while True:  # until it is interrupted; short sleeps, as one long one could not be
        time.sleep(0.001)


def interrupted():
    with disco_client.ThreadedSession(2) as session:
        for _ in range(10):
            session.get_global_func("traced.wait")()
            session.interrupt()
            try:
                session.sync_all()
            except disco_client.Interrupted:
                pass


def ended():
    for _ in range(3):
        session = disco_client.ThreadedSession(2)
        session.get_global_func("traced.wait")()
        session.shutdown()


def trace(frame, event, arg):
    return trace


def traced():
    return "traced"


{what}()
sys.settrace(trace)
print(traced())
sys.settrace(None)
"""


@pytest.mark.parametrize("what", ["interrupted", "ended"])
def test_a_traced_function_begins_after_workers_were_interrupted_or_ended(what):
    """Python 3.11 would never begin it, had interrupts left it something to raise."""
    program = [sys.executable, "-c", PROGRAM.replace("{what}", what)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.returncode) == ("traced\n", 0), done.stderr
