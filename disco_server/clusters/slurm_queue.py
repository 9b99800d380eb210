"""Slurm's commands: submits jobs, asks what has become of them, and cancels them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from disco_client.clock import monotonic
from disco_client.errors import ClusterError, JobRefused
from disco_server.clusters.job_environment import inherited
from disco_server.clusters.job_status import GONE, JobStatus

__all__ = ["SlurmQueue"]

_ENDED_BY_TIME = 138
"""The exit status of the batch script when Slurm has announced the end of its time."""

_NEEDED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
_ANSWER_S = 60.0
_SILENT_S = 45.0
"""How long a slurmctld that does not answer is asked again: it may be busy, or restarted."""
_PAUSE_S = 2.0
_SILENT = re.compile("[Uu]nable to contact|timed out|Connection refused")
_OVER = re.compile("Invalid job id|already completing")
_FORMAT = "%T|%L|%N|%r"


class SlurmQueue:
    """Slurm as its commands show it.

    Raises:
        ClusterError: One of the commands is not installed here.
    """

    def __init__(self) -> None:
        if lacking := [each for each in _NEEDED if shutil.which(each) is None]:
            msg = (
                f"expected Slurm's commands on the PATH, found no {', '.join(lacking)}; "
                "run this on a login node of the Slurm cluster, or load its module there"
            )
            raise ClusterError(msg)

    def submit(
        self, options: Sequence[str], script: Sequence[str], environ: Mapping[str, str]
    ) -> str:
        """Submits a batch script with the environment of this program.

        Args:
            options: Of sbatch.
            script: The script and its arguments.
            environ: Variables that it gets besides.

        Returns:
            The number of the job.

        Raises:
            ClusterError: Slurm does not answer.
            JobRefused: Slurm refuses the job.
        """
        command = ["sbatch", "--parsable", "--export=ALL", "--no-requeue", *options, *script]
        done = self._run(command, {**inherited(), **environ})
        if done.returncode == 0:
            return done.stdout.strip().partition(";")[0]
        msg = f"Slurm refused the job: {_complaint(done)}"
        if "partition" in msg.lower():
            msg += f"; the partitions here are: {self._partitions()}"
        raise JobRefused(f"{msg} (asked for {' '.join(options)})")

    def status(self, job: str) -> JobStatus:
        """What has become of a job.

        Raises:
            ClusterError: Slurm does not answer.
        """
        asked = ("--noheader", "--states=all", f"--jobs={job}", f"--format={_FORMAT}")
        done = self._run(["squeue", *asked])
        if done.returncode and "Invalid job id" not in done.stderr:
            raise ClusterError(f"squeue cannot say what job {job} does: {_complaint(done)}")
        fields = done.stdout.strip().split("|", 3)
        if len(fields) != _FORMAT.count("|") + 1:
            return JobStatus(job, GONE)
        found = JobStatus(job, *fields)
        if found.state == "FAILED" and self.exit_status(job) == _ENDED_BY_TIME:
            return replace(found, state="TIMEOUT")
        return found

    def exit_status(self, job: str) -> int:
        """With which status the script of a job ended; 0 if Slurm does not say.

        Raises:
            ClusterError: Slurm does not answer.
        """
        done = self._run(["scontrol", "show", "job", "--oneliner", job])
        found = re.search(r"\bExitCode=(\d+):", done.stdout)
        return int(found[1]) if found else 0

    def lost_nodes(self, nodes: str) -> list[str]:
        """Which of some nodes do not answer Slurm.

        Args:
            nodes: As Slurm abbreviates them.

        Raises:
            ClusterError: Slurm does not answer.
        """
        if not nodes:
            return []
        done = self._run(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T"])
        found = [line.split() for line in done.stdout.splitlines()]
        return sorted({name for name, state in found if state[-1] == "*" or "down" in state})

    def cancel(self, *jobs: str) -> None:
        """Cancels jobs; it is no error if they have ended.

        Raises:
            ClusterError: Slurm refuses, or does not answer.
        """
        done = self._run(["scancel", *jobs])
        if done.returncode and not _OVER.search(done.stderr):
            raise ClusterError(f"scancel {' '.join(jobs)}: {_complaint(done)}")

    def _partitions(self) -> str:
        done = self._run(["sinfo", "--noheader", "--format=%R"])
        return ", ".join(sorted(set(done.stdout.split()))) or "none"

    def _run(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command; again where slurmctld does not answer."""
        began = monotonic()
        while True:
            try:
                done = subprocess.run(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_ANSWER_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ClusterError(f"{command[0]} did not end within {_ANSWER_S:g} s") from None
            if not done.returncode or not _SILENT.search(done.stderr):
                return done
            if command[0] == "sbatch" or monotonic() - began > _SILENT_S:
                # A job that was submitted again might be there twice.
                raise ClusterError(f"Slurm does not answer: {_complaint(done)}")
            time.sleep(_PAUSE_S)


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What a command complains of, in one line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line) for line in done.stderr.splitlines() if line]
    return "; ".join(lines) or f"{done.args[0]} ended with status {done.returncode}"
