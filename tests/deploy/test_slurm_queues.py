"""Clusters by a provider of Parsl, on a real Slurm of two nodes, from a login node beside them."""

from __future__ import annotations

import pytest

from deploying.slurm import processes_of

pytest.importorskip("parsl", reason="no Parsl here, whose providers submit jobs")

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("slurm"),
]

PROGRAM = """
import subprocess
import numpy as np
import disco_client
from disco_server.clusters import QueueCluster
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

def provider():
    return SlurmProvider(nodes_per_block=2, launcher=SrunLauncher(), exclusive=True)

with QueueCluster(provider(), name="parsl") as cluster:
    with cluster.connect() as session:
        print(sorted(place.node for place in session.workers))
        print(session.allreduce(session.broadcast(np.ones(2))).numpy())
    try:
        QueueCluster(provider(), name="second", timeout=1).start()
    except disco_client.JobPending as error:
        print("pending", error.job.isdigit())
    subprocess.run(["scancel", cluster.job], check=True)
    while True:
        try:
            cluster.check()
        except disco_client.JobEnded as error:
            print(error.state, cluster.job == error.job)
            break
"""


def test_a_cluster_of_two_nodes_is_used_waited_for_and_ended(slurm_nodes, tmp_path, eventually):
    """What Parsl says of a job is told in the words of other clusters."""
    process = slurm_nodes.program(tmp_path, PROGRAM)
    status = process.wait(150)
    shown = (tmp_path / "out").read_text().splitlines()
    assert status == 0, (tmp_path / "err").read_text()
    assert shown[:3] == ["['node-a-first', 'node-b-first']", "[2. 2.]", "pending True"]
    assert shown[3].endswith(" True")
    eventually(lambda: not slurm_nodes.jobs(), 60, "the jobs to end")
    eventually(lambda: not processes_of(tmp_path), 60, "the processes of the jobs to end")
    assert slurm_nodes.idle()
