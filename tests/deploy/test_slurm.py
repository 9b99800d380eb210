"""The batch script, on a real Slurm of two nodes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from deploying.charts import DEPLOY
from deploying.slurm import processes_of
from fault_tools.namespaces import cut

BATCH = DEPLOY / "slurm" / "disco.sbatch"
WHERE = """
import disco_client
with disco_client.connect(num_workers=2, timeout=60) as session:
    print(sorted(place.node for place in session.workers))
"""
ENDLESS = """
import os, time
import disco_client
with disco_client.connect(num_workers=2, timeout=60) as session:
    print("ready", flush=True)
    while True:
        session.sync_all()
        time.sleep(0.1)
"""

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture
def submit(slurm_nodes, tmp_path) -> Callable[..., str]:
    """Submits a program; what its job runs must be gone with it."""
    (tmp_path / "where.py").write_text(WHERE)
    (tmp_path / "endless.py").write_text(ENDLESS)
    return lambda *command: slurm_nodes.submit(tmp_path, BATCH, *command)


def output(folder):
    file = folder / "out.txt"
    return file.read_text() if file.exists() else ""


def test_a_job_runs_on_all_of_its_nodes(slurm_nodes, submit, tmp_path, eventually):
    """The program finds a worker on each node; nothing of its cluster stays behind."""
    assert slurm_nodes.ended(submit("python", "where.py")) == "COMPLETED"
    assert "['node-a', 'node-b']" in output(tmp_path)
    assert not list(tmp_path.glob("disco-*"))
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the job to end")


def test_a_job_fails_as_its_program(slurm_nodes, submit, tmp_path, eventually):
    """The logs of the daemons stay, their keys do not."""
    assert slurm_nodes.ended(submit("sh", "-c", "python where.py; exit 3")) == "FAILED"
    (folder,) = tmp_path.glob("disco-*")
    assert {file.name for file in folder.iterdir()} == {"controller.log", "workers.log", "port"}
    assert str(folder) in output(tmp_path)
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the job to end")


@pytest.mark.parametrize("options", [(), ("--batch", "--signal=TERM")], ids=["all", "the script"])
def test_a_job_that_is_cancelled_ends_its_program_first(
    slurm_nodes, submit, tmp_path, options, eventually
):
    """Also what the program started, and whether Slurm signals it or the batch script alone."""
    job = submit("sh", "-c", "python endless.py; echo not reached")
    eventually(lambda: "ready" in output(tmp_path), 60, "the program to begin")
    slurm_nodes.run("scancel", *options, job)
    assert slurm_nodes.ended(job) in ("CANCELLED", "FAILED")
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the job to end")
    if options:  # else Slurm itself signals program and daemons at once
        assert "Lost" not in output(tmp_path)
    assert "not reached" not in output(tmp_path)


def test_a_job_loses_a_node(slurm_nodes, submit, tmp_path, eventually):
    """Its program hears which, the job ends as the program does, and the node is rid of it."""
    job = submit("python", "endless.py")
    eventually(lambda: "ready" in output(tmp_path), 60, "the program to begin")
    with cut(slurm_nodes.hosts[1]):
        assert slurm_nodes.ended(job) in ("FAILED", "NODE_FAIL")
        assert "NodeLost: lost node 'node-b'" in output(tmp_path)
    eventually(lambda: slurm_nodes.idle(1) or slurm_nodes.resume(1), 60, "both nodes to be idle")
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the job to end")
    assert slurm_nodes.idle()


def test_a_job_without_a_program_is_a_cluster(slurm_nodes, submit, tmp_path, eventually):
    """A program elsewhere uses it with what its output says, until the job is cancelled."""
    job = submit()
    eventually(lambda: output(tmp_path).count("export") == 2, 60, "the cluster to begin")
    variables = dict(re.findall(r"(DISCO_[A-Z_]+)=(\S+)", output(tmp_path)))
    assert slurm_nodes.program(tmp_path, WHERE, **variables).wait(60) == 0
    assert (tmp_path / "out").read_text() == "['node-a', 'node-b']\n"
    slurm_nodes.run("scancel", "--batch", "--signal=TERM", job)
    assert slurm_nodes.ended(job) == "COMPLETED"
    assert not list(tmp_path.glob("disco-*"))
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the job to end")
