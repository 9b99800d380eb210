"""A cluster in jobs of any batch system that a provider of Parsl knows."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from disco_client.errors import ConfigError
from disco_server.clusters.cluster_folder import ClusterFolder, ClusterRecord
from disco_server.clusters.job_cluster import JobCluster
from disco_server.clusters.job_environment import for_script
from disco_server.clusters.parsl_queue import ParslQueue

if TYPE_CHECKING:
    from disco_server.clusters.parsl_queue import Provider

__all__ = ["QueueCluster"]

_SCRIPT = "node.sh"
_OUTPUTS = (".err", ".out", ".stderr", ".stdout")
"""How providers call what a job printed."""


class QueueCluster(JobCluster):
    """A controller and worker daemons in jobs of PBS, LSF, SGE and others; a context manager.

    A provider of `Parsl <https://parsl.readthedocs.io>`_ submits the jobs, each of its
    ``nodes_per_block`` nodes, and its launcher starts a daemon on each node: with several nodes
    that must be one such as ``MpiExecLauncher`` or ``SrunLauncher``. All else is as with
    `SlurmCluster`, but that it always ends with the block, or with the program: only the
    provider's object knows its jobs.

    Args:
        provider: An object of ``parsl.providers``, made for this cluster.
        slots: How many slots each node has.
        name: Its name; None makes one.
        folder: A folder that all nodes share, for the files of all clusters. None takes
            ``DISCO_JOB_DIR``, else ``~/.local/state/disco/queues``.
        timeout: How many seconds to wait in the queue; None for as long as it takes.

    Attributes:
        name: Its name.
        folder: The folder of its files.
        address: Where the controller listens; empty until it is started.

    Raises:
        ConfigError: An argument is wrong.
        ExtraMissing: Parsl is not installed.

    Examples:
        >>> provider = PBSProProvider(queue="batch", nodes_per_block=4, cpus_per_node=16,
        ...                           walltime="1:00:00", launcher=MpiExecLauncher())
        >>> with QueueCluster(provider, slots=16) as cluster:
        ...     with cluster.connect() as session:
        ...         print(session.num_workers)
        64
    """

    def __init__(
        self,
        provider: Provider,
        slots: int = 1,
        *,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise ConfigError(f"slots: expected a number from 1 up, got {slots!r}")
        files = ClusterFolder.of(folder, name or f"disco-{secrets.token_hex(3)}", "queues")
        # Beside it, since some providers look there for what has become of a job that was ended.
        self._scripts = files.path.with_name(f".{files.name}.jobs")
        self._jobs = ParslQueue(provider, self._scripts)
        each = provider.nodes_per_block
        record = ClusterRecord("", each, slots, ())
        super().__init__(self._jobs, files, record, each=each, timeout=timeout)
        self._tags: dict[str, str] = {}

    def _submit(self, *, joins: bool) -> str:
        # The number of a job is not known in it by the name that the provider has for it.
        tag = secrets.token_hex(3) if joins else "first"
        self._scripts.mkdir(mode=0o700, exist_ok=True)
        command = ("bash", str(self._write_script()), tag)
        try:
            job = self._jobs.submit(command, f"disco.{self.name}")
        except BaseException:
            if not self.jobs:
                shutil.rmtree(self._scripts, ignore_errors=True)
            raise
        self._tags[job] = tag
        return job

    def _ends_named(self, job: str) -> str:
        return f"-{self._tags[job]}"

    def _last_lines(self) -> str:
        for file in self._scripts.iterdir():
            if file.suffix in _OUTPUTS and file.stat().st_size:
                shutil.copy(file, self.folder / f"{file.name}.out")
        return super()._last_lines()

    def stop(self) -> None:
        """Ends all jobs of the cluster, waits for their end, and removes its files; idempotent.

        Logs stay if the cluster ended by a fault of its own.

        Raises:
            ClusterError: The batch system does not answer.
        """
        super().stop()
        shutil.rmtree(self._scripts, ignore_errors=True)

    def _write_script(self) -> Path:
        """What each node runs; batch systems hand down no environment, or another one."""
        variables = [
            f"export {name}={shlex.quote(value)}" for name, value in sorted(for_script().items())
        ]
        words = (sys.executable, "-m", "disco_server.clusters.member", str(self.folder))
        command = (
            f'exec {shlex.join((*words, str(self._record.slots)))} "$1"'
            f' >> {shlex.quote(str(self.folder))}/"job-$1.out" 2>&1'
        )
        script = self.folder / _SCRIPT
        script.touch(mode=0o600)
        script.write_text("\n".join(("#!/bin/bash", *variables, command, "")))
        return script
