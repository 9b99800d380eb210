"""Batch systems through the providers of Parsl: jobs are submitted, asked for and cancelled."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from disco_client.errors import ClusterError, ConfigError, ExtraMissing, JobRefused
from disco_server.clusters.job_status import GONE, JobStatus

__all__ = ["ParslQueue", "Provider"]

_INSTALL = "pip install 'disco-runtime[queues]'"
_STATES: Final[Mapping[str, str]] = {
    "PENDING": "PENDING",
    "RUNNING": "RUNNING",
    "CANCELLED": "CANCELLED",
    "COMPLETED": "COMPLETED",
    "FAILED": "FAILED",
    "TIMEOUT": "TIMEOUT",
    "HELD": "SUSPENDED",
    "SCALED_IN": "CANCELLED",
}
"""Parsl's words for what Slurm's mean; one that is not here says nothing of the job."""


class Provider(Protocol):
    """What is used of a provider; see Parsl's ``ExecutionProvider``.

    Attributes:
        nodes_per_block: How many nodes a job has.
        script_dir: Where it writes its scripts.
    """

    nodes_per_block: int
    script_dir: str | None

    def submit(self, command: str, tasks_per_node: int, job_name: str = ...) -> object:
        """Submits a job; its number."""
        ...

    def status(self, job_ids: Sequence[object]) -> Sequence[Any]:
        """What has become of jobs."""
        ...

    def cancel(self, job_ids: Sequence[object]) -> Sequence[bool]:
        """Cancels jobs."""
        ...


class ParslQueue:
    """A batch system that a provider of Parsl knows.

    Args:
        provider: The provider.
        folder: Where it writes its scripts, and the output of jobs.

    Raises:
        ConfigError: It is no provider, or one that is in use.
        ExtraMissing: Parsl is not installed.
    """

    def __init__(self, provider: Provider, folder: Path) -> None:
        try:
            base: Any = import_module("parsl.providers.base")
        except ImportError as error:
            msg = f"expected Parsl, whose providers submit the jobs: {_INSTALL} ({error})"
            raise ExtraMissing(msg, name="parsl") from None
        if not isinstance(provider, base.ExecutionProvider):
            msg = f"provider: expected one of parsl.providers, got {type(provider).__name__}"
            raise ConfigError(msg)
        if getattr(provider, "resources", None):
            msg = "provider: expected one of its own for each cluster, got one that has jobs"
            raise ConfigError(msg)
        self._provider = provider
        self._last: dict[str, JobStatus] = {}
        self._folder = folder

    def submit(self, script: Sequence[str], name: str) -> str:
        """Submits a job that runs a command on each of its nodes.

        Args:
            script: The command, in words.
            name: What the batch system calls it.

        Returns:
            Its number.

        Raises:
            JobRefused: The batch system refuses it, or does not answer.
        """
        self._provider.script_dir = str(self._folder)
        try:
            job = self._provider.submit(shlex.join(script), 1, job_name=name)
        except Exception as error:  # a provider may raise anything
            raise JobRefused(f"{self._label} refused the job: {_said(error)}") from error
        if not job:
            raise JobRefused(f"{self._label} refused the job, and Parsl does not say why")
        self._last[str(job)] = JobStatus(str(job), "PENDING", reason=_SILENT)
        return str(job)

    def status(self, job: str) -> JobStatus:
        """What has become of a job that was submitted here.

        Raises:
            ClusterError: The batch system does not answer.
        """
        found = self._ask(f"cannot say what job {job} does", self._provider.status, [job])[0]
        known = self._last.get(job, JobStatus(job, GONE))
        state = _STATES.get(str(found.state.name), known.state)
        reason = _held(found) if state == "SUSPENDED" else str(found.message or _SILENT)
        self._last[job] = JobStatus(job, state, nodes=f"nodes of {self._label}", reason=reason)
        return self._last[job]

    def exit_status(self, job: str) -> int:
        """With which status the script of a job ended; 0 if the provider does not say.

        Raises:
            ClusterError: The batch system does not answer.
        """
        found = self._ask(f"cannot say how job {job} ended", self._provider.status, [job])[0]
        return int(found.exit_code or 0)

    def lost_nodes(self, nodes: str) -> list[str]:
        """None: providers do not say it."""
        del nodes
        return []

    def cancel(self, *jobs: str) -> None:
        """Cancels jobs; it is no error if they have ended.

        Raises:
            ClusterError: The batch system refuses, or does not answer.
        """
        running = [job for job in jobs if (now := self.status(job)).runs or now.waits]
        if running:
            self._ask(f"cannot cancel {' '.join(running)}", self._provider.cancel, running)

    @property
    def _label(self) -> str:
        return str(getattr(self._provider, "label", type(self._provider).__name__))

    def _ask(
        self, what: str, asked: Callable[[Sequence[object]], Sequence[Any]], jobs: Sequence[str]
    ) -> Sequence[Any]:
        try:
            return asked(jobs)
        except Exception as error:  # a provider may raise anything
            raise ClusterError(f"{self._label} {what}: {_said(error)}") from error


_SILENT = "the provider does not say why"


def _held(found: Any) -> str:
    return str(found.message or "it is held or suspended")


def _said(error: Exception) -> str:
    """An error in one line."""
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()
