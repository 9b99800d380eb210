"""Worlds of MPI; what its ranks do together is in `test_collectives`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_alone(program: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PMI_")}
    return subprocess.run(
        [*command, sys.executable, "-c", program],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_one_worker_needs_no_launcher():
    """A session of one worker works without any launcher, refusals included."""
    done = run_alone("""
import numpy as np
from disco_server.collectives.types import MismatchError, ReduceOp
from disco_server.collectives.select import open_groups
with open_groups("", worker_id=0, num_workers=1) as groups:
    groups.position = 1
    src, dst = np.arange(6.0), np.zeros(6)
    groups.world.allreduce(src, dst, ReduceOp.AVG)
    assert (src == dst).all()
    for name in ("allgather", "broadcast", "scatter", "gather", "all_to_all"):
        dst[:] = 0
        getattr(groups.world, name)(src, dst)
        assert (src == dst).all()
    groups.world.barrier()
    groups.cannot_enter(1)
    assert not groups.poll()
    try:
        groups.world.allreduce(src, dst[:3], ReduceOp.SUM)
    except MismatchError as error:
        print(error.ranks, error)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(0,) allreduce(sum) of float64[6]")


def test_a_strange_world_is_refused():
    """A world that is not the session's is named with both sizes."""
    done = run_alone("""
from disco_server.collectives.types import UnavailableError
from disco_server.collectives.mpi import MpiGroups
try:
    MpiGroups.create(1, 2)
except UnavailableError as error:
    print(error)
""")
    assert "rank 0 of 1 in the MPI world, but worker 1 of 2 in the session" in done.stdout


@pytest.fixture
def mpiexec() -> str:
    """MPI's own launcher."""
    found = shutil.which("mpiexec", path=Path(sys.executable).parent)
    if found is None:
        pytest.skip("this environment has no mpiexec beside Python")
    return found


def test_a_launchers_world_is_used(mpiexec):
    """Under mpiexec the world is the one that it made."""
    done = run_alone(
        """
import os
import numpy as np
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.mpi import MpiGroups
with MpiGroups.create(int(os.environ["PMI_RANK"]), 2) as groups:
    groups.position = 1
    data = np.ones(3)
    groups.world.allreduce(data, data, ReduceOp.SUM)
    print(data)
""",
        mpiexec,
        "-n",
        "2",
    )
    # Lines of two processes may run into one another.
    assert done.stdout.count("[2. 2. 2.]") == 2, done.stderr


@pytest.mark.parametrize(("seed", "said"), [("random", 1), ("5", 0)])
def test_a_launcher_s_ranks_that_hash_differently_are_told(mpiexec, seed, said):
    """It cannot be changed once they run; one of them says what to do."""
    program = """
import os
from disco_server.collectives.mpi import MpiGroups
with MpiGroups.create(int(os.environ["PMI_RANK"]), 2) as groups:
    groups.world.barrier()
"""
    done = run_alone(program, mpiexec, "-n", "2", PYTHONHASHSEED=seed)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("start all of them with the same PYTHONHASHSEED") == said
