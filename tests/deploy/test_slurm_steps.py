"""``disco run`` in a job step, on a real Slurm of two nodes: srun's processes are the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from deploying.slurm import processes_of

PROGRAM = """
import os, signal, sys
import numpy as np

def world():
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    return [comm.Get_rank(), comm.Get_size(), MPI.Get_processor_name()]

def end():
    import disco_server
    if disco_server.current_worker().worker_id == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

if __name__ == "__main__" and sys.argv[1] == "compute":
    print(session.allreduce(session.broadcast(np.ones(2))).numpy(worker_id=3))
    found = session.function(world)()
    for worker in range(4):
        print(found.debug_get_from_remote(worker))
    large = np.arange(2.0**19)
    there = session.broadcast(large)
    print([bool((there.numpy(worker_id=worker) == large).all()) for worker in range(4)])
elif __name__ == "__main__":
    session.function(end)().get()
"""

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture
def step(slurm_nodes, tmp_path, eventually) -> Callable[..., object]:
    """Starts it from the login node, two processes on each node; none of them may be left."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    started = []

    def run(what):
        command = ("srun", "--nodes=2", "--ntasks=4", "--mpi=pmi2")
        disco = (sys.executable, "-m", "disco_server.cli.main", "run")
        started.append(slurm_nodes.begin(tmp_path, *command, *disco, str(program), what))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
    eventually(lambda: not slurm_nodes.jobs(), 60, "the steps to end")
    eventually(lambda: not processes_of(tmp_path), 60, lambda: str(processes_of(tmp_path)))


def said(folder):
    return (folder / "out").read_text(), (folder / "err").read_text()


def test_its_processes_compute_in_the_world_that_slurm_has_made(step, tmp_path):
    """In Slurm's order, over both nodes; arrays of each of them reach the script."""
    status = step("compute").wait(150)
    out, err = said(tmp_path)
    where = ("node-a", "node-a", "node-b", "node-b")
    assert out.splitlines() == [
        "[4. 4.]",
        *(f"[{worker}, 4, '{name}']" for worker, name in enumerate(where)),
        "[True, True, True, True]",
    ], err
    assert status == 0


def test_a_worker_that_dies_ends_the_step(step, tmp_path):
    """The script's error names it with its host; no process waits for it."""
    assert step("end").wait(150) == 1
    assert "worker 3 on node 'node-b-3' died of SIGKILL" in said(tmp_path)[1]
