"""Clusters by Parsl's providers as far as this machine is the queue; tests/deploy has Slurm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client.errors import ConfigError, ExtraMissing, JobEnded, JobRefused
from disco_server.clusters import QueueCluster

pytest.importorskip("parsl", reason="no Parsl here, whose providers submit jobs")

from parsl.launchers import SingleNodeLauncher
from parsl.providers import LocalProvider, PBSProProvider

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path) -> Iterator[None]:
    """No process of a job may outlive its test."""
    yield
    left: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            left += [process] * (str(tmp_path) in " ".join(process.cmdline()))
        except psutil.Error:
            continue
    psutil.wait_procs(left, 30)
    assert not [each for each in left if each.is_running()]


def nodes_of(cluster: QueueCluster, tag: str) -> list[str]:
    """The nodes of a session on all slots; that of the further job by another name."""
    with cluster.connect() as session:
        total = session.allreduce(session.broadcast(np.ones(2))).numpy()
        assert total.tolist() == [session.num_workers] * 2
        names = [place.node.rpartition("-")[2] for place in session.workers]
    return [name if name == "first" else tag for name in names]


def test_jobs_of_a_provider_are_a_cluster_that_grows_and_shrinks(tmp_path):
    """It has keys of its own, and nothing of it stays behind."""
    with QueueCluster(LocalProvider(), slots=2, name="one", folder=tmp_path) as cluster:
        assert nodes_of(cluster, "") == ["first"] * 2
        assert Path(cluster.tls["tls_key"]).stat().st_mode & 0o777 == 0o600
        cluster.scale(2)
        assert nodes_of(cluster, "more") == ["first", "first", "more", "more"]
        cluster.scale(1)
        assert (cluster.nodes, len(cluster.jobs)) == (1, 1)
        assert nodes_of(cluster, "more") == ["first"] * 2
        (job,) = cluster.jobs
        assert repr(cluster).startswith(f"<QueueCluster 'one', job {job}: 1 node with 2 slots each")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_ends_is_told_with_what_it_said(tmp_path, eventually):
    """At its start, and later, when it is found by `check`."""
    provider = LocalProvider(worker_init="echo no module >&2; exit 3")
    with pytest.raises(JobEnded, match="of cluster 'bad' ended with status 3: no module; logs are"):
        QueueCluster(provider, name="bad", folder=tmp_path).start()
    with QueueCluster(LocalProvider(), name="ends", folder=tmp_path) as cluster:
        daemons = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "disco_server.cli.controller" in (words := process.info["cmdline"] or ())
            and any(str(cluster.folder) in word for word in words)
        ]
        daemons[0].kill()

        def check():
            try:
                cluster.check()
            except JobEnded as error:
                return error
            return None

        error = eventually(check, 60, "the job to end")
        assert error.state == "FAILED"
        assert "ended with status 1: " in str(error)
    assert any("a daemon has ended" in file.read_text() for file in tmp_path.glob("ends/*.out"))


def test_what_is_no_provider_is_refused(tmp_path):
    """So is one that has jobs already, and what cannot be a number of slots."""
    with pytest.raises(ConfigError, match=r"expected one of parsl\.providers, got str"):
        QueueCluster("slurm")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slots: expected a number from 1 up, got 0"):
        QueueCluster(LocalProvider(), slots=0)
    used = LocalProvider()
    used.resources["1"] = {}
    with pytest.raises(ConfigError, match="expected one of its own for each cluster"):
        QueueCluster(used, folder=tmp_path)


def test_a_queue_that_is_not_here_refuses_the_job(tmp_path):
    """With what the provider says; no folder is left."""
    provider = PBSProProvider(queue="batch", launcher=SingleNodeLauncher())
    with pytest.raises(JobRefused, match="pbspro refused the job: SubmitException"):
        QueueCluster(provider, folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_without_parsl_the_error_says_what_to_install(monkeypatch, tmp_path):
    """Importing the class needs nothing."""
    monkeypatch.setitem(sys.modules, "parsl.providers.base", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'disco-runtime\[queues\]'"):
        QueueCluster(LocalProvider(), folder=tmp_path)
