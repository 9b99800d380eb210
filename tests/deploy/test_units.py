"""The units of systemd, and the batch script of Slurm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploying.charts import DEPLOY
from deploying.slurm import processes_of
from disco_server.config import ControllerConfig, WorkerConfig

SYSTEMD = DEPLOY / "systemd"
BATCH = DEPLOY / "slurm" / "disco.sbatch"
BIN = Path(sys.executable).parent
CONFIGS = {"controller": ControllerConfig, "worker": WorkerConfig}
SRUN = """#!/usr/bin/env bash
# Runs a step on this machine: on the first node, or once for each.
for word; do
  case "$word" in --nodelist) names=first ;; disco-*) break ;; esac
  shift
done
trap 'told=1' TERM
for node in ${names:-first second}; do DISCO_NAME=$node "$@" & steps+=("$!"); done
trap 'kill "${steps[@]}"' TERM
[ -z "${told:-}" ] || kill "${steps[@]}"
wait; wait
"""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_knows_every_line(tmp_path):
    """Systemd itself finds nothing to say of the units."""
    units = []
    for file in SYSTEMD.glob("*.service"):
        unit = tmp_path / file.name
        unit.write_text(file.read_text().replace("/opt/disco/bin", str(BIN)))
        units.append(unit)
    assert len(units) == 2
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "service" not in done.stderr


@pytest.mark.parametrize("role", CONFIGS)
def test_the_daemons_take_what_the_units_give(role, tmp_path):
    """The variables, with the files that systemd puts there, and the example's settings."""
    unit = (SYSTEMD / f"disco-{role}.service").read_text()
    credentials = dict(re.findall(r"^LoadCredential=(\S+?):(\S+)$", unit, re.MULTILINE))
    variables = {}
    for line in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE):
        variables |= dict(word.split("=", 1) for word in line.split())
    used = {value.removeprefix("%d/") for value in variables.values() if value.startswith("%d/")}
    assert used == credentials.keys()
    known = {f"DISCO_{name.upper()}" for name in CONFIGS[role].table()}
    assert variables.keys() - {"HOME"} <= known
    settings = CONFIGS[role].load({}, variables, SYSTEMD / f"{role}.toml")
    assert settings.log_format == "json"
    assert settings.auth_token_file
    assert f"--config /etc/disco/{role}.toml" in unit


def test_the_batch_script_is_clean():
    """Shellcheck finds nothing."""
    done = subprocess.run([BIN / "shellcheck", BATCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def batch(tmp_path, *command):
    """Runs the batch script where Slurm's own commands start everything on this machine."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\nprintf 'localhost\\nsecond\\n'\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    env |= {
        "PATH": os.pathsep.join((str(tools), str(BIN), env["PATH"])),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost,second",
        "DISCO_SLOTS": "1",
    }
    return subprocess.run(
        ["bash", BATCH, *command],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


PROGRAM = """
import disco_client
with disco_client.connect(num_workers=2, timeout=30) as session:
    print(sorted({place.node for place in session.workers}))
"""


def test_a_job_brings_its_cluster(tmp_path):
    """The program finds a worker on each node, behind certificates; nothing stays behind."""
    done = batch(tmp_path, sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['first', 'second']\n"
    assert [file.name for file in tmp_path.iterdir()] == ["bin"]
    assert not processes_of(tmp_path)


def test_a_job_ends_as_its_program(tmp_path):
    """With its status; then the logs stay, and the keys do not."""
    done = batch(tmp_path, "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    (folder,) = tmp_path.glob("disco-7.*")
    assert {file.name for file in folder.iterdir()} == {"controller.log", "workers.log", "port"}
    assert str(folder) in done.stderr
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    "given", [("--jion", "."), ("--join",), ("--folder", "no-such-folder")], ids=" ".join
)
def test_a_job_with_a_wrong_option_is_refused(tmp_path, given):
    """Before anything is started."""
    done = batch(tmp_path, *given)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
    assert [file.name for file in tmp_path.iterdir()] == ["bin"]


def test_nodes_join_no_cluster_that_is_not_there(tmp_path):
    """The job fails, and names the folder."""
    done = batch(tmp_path, "--join", str(tmp_path))
    assert done.returncode == 1
    assert f"no cluster runs in {tmp_path}" in done.stderr
