"""What a process gives up by itself."""

from __future__ import annotations

import os
import subprocess
import sys

from disco_server.config import WorkerConfig
from disco_server.rank.process import VARIABLE, confine, confinement_of

PROGRAM = """
import os, resource
from disco_server.rank.process import confine
confine(os.environ)
print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_DATA))
print("DISCO_CONFINEMENT" in os.environ, oct(os.umask(0)))
print([line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")][0].split()[1])
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused")
"""


def run(config):
    environ = {**os.environ, **confinement_of(config)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_limits_hold_for_good_and_the_word_is_forgotten():
    """Both limits of each, so that nothing in the process can raise them again."""
    size = 300 << 20
    limits, rest, privileges, refused = run(WorkerConfig(max_memory=size, user="nobody"))
    assert limits == f"(0, 0) ({size}, {size})"
    assert rest == "False 0o77"
    assert privileges == "1"
    assert refused == "refused"


def test_core_dumps_are_left_only_where_that_is_asked_for():
    """And without other settings nothing else is limited."""
    limits, *_ = run(WorkerConfig(core_dumps="on"))
    assert limits.endswith("(-1, -1)")
    assert confinement_of(WorkerConfig(core_dumps="on")) == {VARIABLE: ""}
    assert confinement_of(WorkerConfig()) == {VARIABLE: "core=0"}


def test_a_process_that_nobody_confines_stays_as_it_is():
    """As the workers of a program that starts them itself."""
    environ = {"OTHER": "1"}
    confine(environ)
    assert environ == {"OTHER": "1"}
