"""Clusters on Slurm as far as no Slurm is needed; tests/deploy has the rest."""

from __future__ import annotations

import pytest

from disco_client.errors import ClusterError, ConfigError, NoSuchCluster
from disco_server.clusters import SlurmCluster
from disco_server.clusters.cluster_folder import ClusterFolder, ClusterRecord

RECORD = ClusterRecord("7", 2, 4, ("--time=10",), ("8", "9"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 0}, "nodes: expected a number from 1 up, got 0"),
        ({"slots": 1.5}, "slots: expected a number from 1 up, got 1.5"),
        ({"gpus": -1}, "gpus: expected a number from 0 up, got -1"),
        ({"time": "1h"}, "time: expected minutes, H:MM:SS or D-HH:MM:SS, as '1:00:00', got '1h'"),
        ({"timeout": -1}, "timeout: expected seconds from 0 up, or None, got -1"),
        ({"name": "a b"}, "expected a name of at most 64 letters, digits, '.', '_' and '-'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_job_cannot_ask_for_is_refused(wrong, said):
    """Before anything is submitted, with what was expected and what came."""
    with pytest.raises(ConfigError) as caught:
        SlurmCluster(**wrong)
    assert str(caught.value).startswith(said)


def test_a_machine_without_slurm_is_told(monkeypatch, tmp_path):
    """The error names the commands that are not there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="found no sbatch, squeue, scancel, scontrol, sinfo"):
        SlurmCluster(folder=tmp_path)


def test_a_record_is_read_as_it_was_written(tmp_path):
    """By another program, in a folder that only the user reads."""
    folder = ClusterFolder(tmp_path / "new", "one")
    folder.create()
    folder.write(RECORD)
    assert ClusterFolder(tmp_path / "new", "one").read() == RECORD
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ClusterError, match="expected a name that no cluster has"):
        folder.create()


def test_an_unknown_cluster_is_told_with_those_that_there_are(tmp_path):
    """Also one of which nothing but logs is left."""
    for name in ("one", "two", "ended"):
        folder = ClusterFolder(tmp_path, name)
        folder.create()
        folder.write(RECORD)
    (folder.path / "controller.log").write_text("why it ended\n")
    folder.remove(logs=False)
    for name in ("ended", "never"):
        with pytest.raises(NoSuchCluster, match=f"got {name!r}; in {tmp_path} there are: one, two"):
            SlurmCluster.attach(name, folder=tmp_path)
    assert (folder.path / "controller.log").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 1}', "nothing"])
def test_a_record_of_something_else_is_refused(tmp_path, content):
    """It is named, and not taken for a cluster."""
    folder = ClusterFolder(tmp_path, "one")
    folder.create()
    (folder.path / "cluster.json").write_text(content)
    with pytest.raises(ConfigError, match=r"expected the record of a cluster in .*cluster\.json"):
        folder.read()


def test_a_folder_with_keys_that_others_may_read_is_refused(tmp_path):
    """The error says how to close it."""
    folder = ClusterFolder(tmp_path, "one")
    folder.create()
    folder.write(RECORD)
    folder.path.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        folder.read()
