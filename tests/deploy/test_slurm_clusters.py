"""Clusters that a program opens, on a real Slurm of two nodes, from a login node beside them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from deploying.slurm import processes_of
from fault_tools.namespaces import cut

FULL = (
    "sbatch",
    "--parsable",
    "--nodes=2",
    "--exclusive",
    "--wrap=sleep 300",
    "--output=/dev/null",
)

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("slurm"),
]

BEGIN = """
import numpy as np
import disco_client
from disco_server.clusters import SlurmCluster
"""


@pytest.fixture
def start(slurm_nodes, tmp_path, eventually) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a program; jobs and processes of all that it began must be gone with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(text, **env):
        started.append(slurm_nodes.program(tmp_path, BEGIN + text, **env))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
    if jobs := slurm_nodes.jobs():
        slurm_nodes.run("scancel", *jobs)
    eventually(lambda: not slurm_nodes.jobs(), 60, "the jobs to end")
    eventually(lambda: not processes_of(tmp_path), 60, lambda: str(processes_of(tmp_path)))
    assert slurm_nodes.idle()


@pytest.fixture
def said(tmp_path) -> Callable[[], str]:
    """What the program has printed so far, to standard output and then to standard error."""
    return lambda: "".join((tmp_path / name).read_text() for name in ("out", "err"))


@pytest.fixture
def ran(start, said) -> Callable[..., str]:
    """Runs a program to its end; its output."""

    def run(text, status=0, **env):
        assert start(text, **env).wait(150) == status, said()
        return said()

    return run


def test_a_program_opens_a_cluster_that_ends_with_its_block(slurm_nodes, ran, tmp_path):
    """It computes on both nodes, with keys that its user alone reads; nothing stays behind."""
    text = """
import os
with SlurmCluster(nodes=2, time="10", name="first") as cluster:
    with cluster.connect() as session:
        print(sorted(place.node for place in session.workers))
        print(session.allreduce(session.broadcast(np.ones(2))).numpy())
    for path in (cluster.folder, cluster.tls["tls_key"]):
        print(oct(os.stat(path).st_mode & 0o777))
print(cluster.folder.exists(), cluster.jobs)
"""
    shown = ran(text)
    assert shown.startswith("['node-a', 'node-b']\n[2. 2.]\n0o700\n0o600\nFalse ()\n"), shown
    assert "of cluster 'first' runs on node-a,node-b" in shown
    assert not slurm_nodes.jobs()
    assert not (tmp_path / "first").exists()


def test_a_notebook_has_a_cluster_from_cell_to_cell(slurm_nodes, ran, tmp_path, eventually):
    """It calls a function of a cell, and the cluster ends with the kernel."""
    shown = ran(
        """
import nbclient, nbformat

cells = [
    "from disco_server.clusters import SlurmCluster\\n"
    "cluster = SlurmCluster(nodes=2, name='cells')\\ncluster.start()",
    "session = cluster.connect()\\n"
    "def increased(x):\\n    return x + 1\\n"
    "print(session.function(increased)(41).get(), session.num_workers)",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
print(notebook.cells[1].outputs[0].text)
""",
        HOME=str(tmp_path),
    )
    assert shown.startswith("42 2\n"), shown
    eventually(lambda: not slurm_nodes.jobs(), 60, "the job to end")
    assert not (tmp_path / "cells").exists()


def test_another_program_comes_back_to_a_cluster(ran, slurm_nodes):
    """With its session and what that holds; the one that stops it is the last that finds it."""
    shown = ran("""
with SlurmCluster(nodes=2, name="kept", detach=True) as cluster:
    session = cluster.connect()
    session.publish("weights", session.broadcast(np.ones(2)))
    print("session", session.detach())
""")
    assert len(slurm_nodes.jobs()) == 1
    session = shown.split()[1]
    shown = ran(f"""
with SlurmCluster.attach("kept") as cluster:
    with disco_client.attach({session!r}, address=cluster.address, **cluster.tls) as session:
        print(session.published("weights").numpy(worker_id=1))
    print(cluster.nodes, cluster.jobs)
""")
    assert shown.startswith(f"[1. 1.]\n2 ('{slurm_nodes.jobs()[0]}',)\n"), shown
    shown = ran("""
SlurmCluster.attach("kept").stop()
try:
    SlurmCluster.attach("kept")
except disco_client.NoSuchCluster as error:
    print(error)
""")
    assert shown.startswith("expected a cluster, got 'kept'"), shown
    assert not slurm_nodes.jobs()


def test_a_cluster_grows_and_shrinks(ran, slurm_nodes):
    """Further jobs join the controller; none in use is ended, and one that ends is reported."""
    shown = ran("""
import subprocess

def sessions_nodes(count):
    with cluster.connect(count) as session:
        return sorted({place.node for place in session.workers})

with SlurmCluster(nodes=1, name="grows", options=["--exclusive"]) as cluster:
    cluster.scale(2)
    joined = cluster.jobs[1]
    print([name.replace("-" + joined, "-JOB") for name in sessions_nodes(2)], cluster.nodes)
    with cluster.connect(2):
        try:
            cluster.scale(1)
        except disco_client.ClusterError as error:
            print(str(error).replace("-" + joined, "-JOB"))
    print(len(sessions_nodes(2)))
    cluster.scale(1)
    print(sessions_nodes(1), cluster.nodes, len(cluster.jobs))
    for wrong in (0, 2.5):
        try:
            cluster.scale(wrong)
        except disco_client.ConfigError as error:
            print(error)
    try:
        cluster.scale(4, timeout=3)
    except disco_client.JobPending as error:
        print(error.reason, cluster.nodes)
    subprocess.run(["scancel", cluster.jobs[1]], check=True)
    while cluster.nodes > 1:
        cluster.check()
    print(sessions_nodes(1))
""")
    lines = shown.splitlines()
    assert lines[0] == "['node-a', 'node-b-JOB'] 2", shown
    assert lines[1].startswith("sessions use slots of node-b-JOB, so that 2 nodes stay; end"), shown
    assert lines[2:4] == ["2", "['node-a'] 1 1"], shown
    assert lines[4:6] == [
        f"nodes: expected 1 at least, which the first job has, got {wrong}" for wrong in (0, 2.5)
    ]
    assert lines[6] in ("Resources 2", "Priority 2"), shown
    assert lines[7] == "['node-a']"
    assert "was cancelled, by its user or an administrator; 1 node left" in shown
    assert not slurm_nodes.jobs()


def test_a_full_queue_is_told_with_its_reason(ran, slurm_nodes):
    """The wait says why it waits, and after its time the job is out of the queue."""
    full = slurm_nodes.run(*FULL)
    shown = ran(
        """
try:
    with SlurmCluster(nodes=2, name="late", timeout=4):
        print("not reached")
except disco_client.JobPending as error:
    print(error.reason, isinstance(error, TimeoutError))
    raise
""",
        status=1,
    )
    assert shown.startswith("Resources True\n"), shown
    waits = "of cluster 'late' waits in the queue: Resources (no nodes are free for it)"
    assert f"disco: job {int(full) + 1} {waits}" in shown
    assert f"JobPending: after 4 s job {int(full) + 1} {waits}; wait longer" in shown
    assert slurm_nodes.jobs() == [full]


def test_a_job_that_is_cancelled_in_the_queue_is_told(start, said, slurm_nodes, eventually):
    """The wait ends, and says that it was cancelled."""
    slurm_nodes.run(*FULL)
    waiting = start("SlurmCluster(nodes=2, name='gone').start()")
    eventually(lambda: "waits in the queue: Resources" in said(), 60, "the job to wait")
    job = max(slurm_nodes.jobs(), key=int)
    slurm_nodes.run("scancel", job)
    assert waiting.wait(60) == 1
    assert f"JobEnded: job {job} of cluster 'gone' was cancelled, by" in said()


ENDLESS = """
with SlurmCluster(nodes=2, name="ends") as cluster, cluster.connect() as session:
    print("ready", flush=True)
    while True:
        session.sync_all()
"""


def test_a_job_that_is_cancelled_later_is_told(start, said, slurm_nodes, tmp_path, eventually):
    """The session's error gets a note that says it; the cluster's files are removed."""
    running = start(ENDLESS)
    eventually(lambda: "ready" in said(), 60, said)
    (job,) = slurm_nodes.jobs()
    slurm_nodes.run("scancel", job)
    assert running.wait(100) == 1
    assert f"\njob {job} of cluster 'ends' was cancelled, by" in said(), said()
    assert not (tmp_path / "ends").exists()


def test_a_node_that_goes_away_is_told(start, said, slurm_nodes, tmp_path, eventually):
    """By the session when the controller misses it, then by the cluster when Slurm does."""
    losing = start("""
import time
with SlurmCluster(nodes=2, name="loses") as cluster:
    try:
        with cluster.connect() as session:
            print("ready", flush=True)
            while True:
                session.sync_all()
    except disco_client.NodeLost as error:
        print("lost", error.node, flush=True)
    while True:
        cluster.check()
        time.sleep(0.5)
""")
    eventually(lambda: "ready" in said(), 60, said)
    (job,) = slurm_nodes.jobs()
    with cut(slurm_nodes.hosts[1]):
        assert losing.wait(150) == 1
    assert "lost node-b\n" in said()
    message = f"JobEnded: job {job} of cluster 'loses' ended because a node went away: node-b"
    assert message in said(), said()
    # What Slurm does itself, but not always at once: it takes a node that is back within ten
    # seconds of the job's end for one that has not heard of that.
    for process in processes_of(tmp_path):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURMD_NODENAME") == "node-b":
                process.kill()
    eventually(lambda: slurm_nodes.idle(1) or slurm_nodes.resume(1), 60, "both nodes")


def test_the_end_of_its_time_is_told(ran):
    """In words, and as the state of the error."""
    shown = ran("""
import time
try:
    with SlurmCluster(nodes=1, name="short", time="1") as cluster:
        while True:
            cluster.check()
            time.sleep(0.5)
except disco_client.JobEnded as error:
    print(error.state, error)
""")
    assert shown.startswith("TIMEOUT job "), shown
    assert "of cluster 'short' has reached its time limit\n" in shown


@pytest.mark.parametrize("how", ["exit", "terminate"])
def test_a_cluster_ends_with_its_program(start, said, slurm_nodes, how, tmp_path, eventually):
    """Also where that has no block, and by SIGTERM."""
    # A signal that comes before `signal.pause` is entered would be waited for without an end.
    end = "" if how == "exit" else "while True:\n    signal.sigtimedwait((), 1)"
    leaving = start(f"""
import signal
cluster = SlurmCluster(name="cell")
cluster.start()
print("ready", flush=True)
{end}
""")
    if how == "terminate":
        eventually(lambda: "ready" in said(), 60, said)
        leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(100) == (0 if how == "exit" else 128 + signal.SIGTERM), said()
    assert "ready" in said()
    assert not slurm_nodes.jobs()
    assert not (tmp_path / "cell").exists()


def test_a_job_that_slurm_refuses_is_an_error_at_once(ran, tmp_path):
    """It names the partitions that there are, and leaves nothing."""
    shown = ran("""
try:
    SlurmCluster(partition="gpus", name="never").start()
except disco_client.JobRefused as error:
    print(error)
""")
    assert shown.startswith("Slurm refused the job: "), shown
    assert "invalid partition specified: gpus" in shown
    assert "the partitions here are: all (asked for " in shown
    assert not (tmp_path / "never").exists()


def test_daemons_that_do_not_start_are_told_with_their_log(ran, tmp_path):
    """Where the job ends by itself; the logs stay, and the keys do not."""
    shown = ran(
        """
try:
    SlurmCluster(name="faulty").start()
except disco_client.JobEnded as error:
    print(error.state, error)
""",
        DISCO_WINDOW="none",
    )
    assert shown.startswith("FAILED job "), shown
    assert "DISCO_WINDOW: expected a whole number" in shown
    assert f"logs are in {tmp_path}/faulty" in shown
    assert "controller.log" in {each.name for each in (tmp_path / "faulty").iterdir()}
    assert not (tmp_path / "faulty" / "pki").exists()


def test_commands_start_list_and_stop_a_cluster(slurm_nodes, start, tmp_path):
    """Other commands and programs find it, as it is the current context meanwhile."""
    env = {**slurm_nodes.environment, "DISCO_JOB_DIR": str(tmp_path)}
    env["DISCO_CONTEXTS"] = str(tmp_path / "contexts.json")

    def disco(*arguments, status=0):
        done = subprocess.run(
            [*slurm_nodes.login.within, sys.executable, "-m", "disco_server.cli.main", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    size = ("--nodes", "2", "--time", "5")
    assert "which is the context 'typed' now" in disco("cluster", "start", "typed", *size)
    (listed,) = json.loads(disco("cluster", "list", "--on", "slurm", "--json"))
    known = {"cluster": "typed", "state": "RUNNING", "nodes": 2, "slots": 1}
    assert known.items() <= listed.items()
    names = {each["name"] for each in json.loads(disco("status", "--json"))["nodes"]}
    assert names == {"node-a", "node-b"}
    assert "RUNNING" in disco("cluster", "list")
    disco("cluster", "start", "typed", status=2)
    assert disco("cluster", "stop", "typed", "--on", "slurm") == "stopped typed\n"
    assert not slurm_nodes.jobs()
    assert json.loads(disco("context", "list", "--json")) == []
    assert "expected a cluster, got 'typed'" in disco("cluster", "stop", "typed", status=5)
