"""The batch script, on a real Slurm of two nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploying.charts import DEPLOY
from deploying.slurm import NoSlurm, Slurm, slurm
from fault_tools.namespaces import NoNamespaces, cut

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
RESUME = ("scontrol", "update", "NodeName=node-b", "State=RESUME")

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """A Slurm of two nodes."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path, since sockets lie in it
    folder.chmod(0o755)
    try:
        with slurm(folder, os.getpid() % 100_000) as started:
            yield started
    except (NoSlurm, NoNamespaces) as lack:
        pytest.skip(str(lack))
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def submit(cluster, tmp_path) -> Callable[..., str]:
    """Submits a program; what its job runs must be gone with it."""
    (tmp_path / "where.py").write_text(WHERE)
    (tmp_path / "endless.py").write_text(ENDLESS)
    return lambda *command: cluster.submit(tmp_path, BATCH, *command)


def left(folder):
    """The processes of a job: those that know of its certificates."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("DISCO_TLS_CA", "").startswith(str(folder)):
                found.append(process)
    return found


def output(folder):
    file = folder / "out.txt"
    return file.read_text() if file.exists() else ""


def test_a_job_runs_on_all_of_its_nodes(cluster, submit, tmp_path, eventually):
    """The program finds a worker on each node; nothing of its cluster stays behind."""
    assert cluster.ended(submit("python", "where.py")) == "COMPLETED"
    assert "['node-a', 'node-b']" in output(tmp_path)
    assert not list(tmp_path.glob("disco-*"))
    eventually(lambda: not left(tmp_path), 60, "the processes of the job to end")


def test_a_job_fails_as_its_program(cluster, submit, tmp_path, eventually):
    """The logs of the daemons stay, their keys do not."""
    assert cluster.ended(submit("sh", "-c", "python where.py; exit 3")) == "FAILED"
    (folder,) = tmp_path.glob("disco-*")
    assert {file.name for file in folder.iterdir()} == {"controller.log", "workers.log", "port"}
    assert str(folder) in output(tmp_path)
    eventually(lambda: not left(tmp_path), 60, "the processes of the job to end")


@pytest.mark.parametrize("options", [(), ("--batch", "--signal=TERM")], ids=["all", "the script"])
def test_a_job_that_is_cancelled_ends_its_program_first(
    cluster, submit, tmp_path, options, eventually
):
    """Also what the program started, and whether Slurm signals it or the batch script alone."""
    job = submit("sh", "-c", "python endless.py; echo not reached")
    eventually(lambda: "ready" in output(tmp_path), 60, "the program to begin")
    cluster.run("scancel", *options, job)
    assert cluster.ended(job) in ("CANCELLED", "FAILED")
    eventually(lambda: not left(tmp_path), 60, "the processes of the job to end")
    if options:  # else Slurm itself signals program and daemons at once
        assert "Lost" not in output(tmp_path)
    assert "not reached" not in output(tmp_path)


def test_a_job_loses_a_node(cluster, submit, tmp_path, eventually):
    """Its program hears which, the job ends as the program does, and the node is rid of it."""
    job = submit("python", "endless.py")
    eventually(lambda: "ready" in output(tmp_path), 60, "the program to begin")
    with cut(cluster.hosts[1]):
        assert cluster.ended(job) in ("FAILED", "NODE_FAIL")
        assert "NodeLost: lost node 'node-b'" in output(tmp_path)
    # As an administrator would; by itself Slurm looks at a node that is down only now and then.
    eventually(lambda: cluster.idle(1) or not cluster.run(*RESUME), 60, "both nodes to be idle")
    eventually(lambda: not left(tmp_path), 60, "the processes of the job to end")
    assert cluster.idle()
