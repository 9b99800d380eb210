"""What a rank's process does with memory that was freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import disco_client

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)
PROGRAM = """
import resource
import numpy as np
from disco_server.rank.process import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keeps = keep_freed_memory()
np.ones(2 << 20), np.ones(2 << 20)  # 16 MiB each
before = faults()
for _ in range(20):
    np.ones(2 << 20)
print(keeps, faults() - before)
"""


def run(**variables):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**env, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    keeps, faults = done.stdout.split()
    return keeps == "True", int(faults)


def test_freed_memory_is_used_again():
    """Arrays that come and go take no page from the system but the first time."""
    keeps, faults = run()
    assert keeps
    assert faults < 1000, "20 arrays of 4096 pages each"


def test_variables_of_the_library_count_more():
    """Whoever says how memory is handled is not overruled."""
    keeps, _ = run(MALLOC_TRIM_THRESHOLD_="131072")
    assert not keeps


def test_ranks_keep_their_memory(monkeypatch):
    """Those of a session, where nobody said otherwise."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with disco_client.ProcessSession(1) as session:
        rank = session.workers[0].pid
        ones = session.get_global_func("numpy.ones")

        def faults():
            session.sync_all()
            fields = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()
            return int(fields[7])  # minflt of proc(5)

        ones(2 << 20), ones(2 << 20)
        before = faults()
        for _ in range(20):
            ones(2 << 20)
        assert faults() - before < 1000
