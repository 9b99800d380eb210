"""A cluster in jobs of Slurm, for a program on a login node."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from disco_client.errors import ConfigError
from disco_server.clusters.cluster_folder import (
    ClusterFolder,
    ClusterRecord,
    clusters_in,
    shared_folder,
)
from disco_server.clusters.job_cluster import JobCluster
from disco_server.clusters.job_status import JobStatus
from disco_server.clusters.slurm_queue import SlurmQueue

__all__ = ["ClusterStatus", "SlurmCluster", "list_clusters"]

_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}")
_ANNOUNCE_S = 60
"""How long before its end Slurm tells a job of it, so that its daemons end in order."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as a list shows it.

    Attributes:
        name: Its name.
        nodes: How many nodes were asked for.
        slots: How many slots each of them has.
        address: Where its controller listens; empty while it does not.
        job: What has become of its first job.
    """

    name: str
    nodes: int
    slots: int
    address: str
    job: JobStatus


def list_clusters(folder: str | os.PathLike[str] | None = None) -> list[ClusterStatus]:
    """All clusters of this user, by their names; also those that ended and were not stopped.

    Args:
        folder: See `SlurmCluster`.

    Raises:
        ClusterError: Slurm's commands are not here, or it does not answer.
        ConfigError: A folder has something else than a cluster.
    """
    queue, found = SlurmQueue(), list[ClusterStatus]()
    for each in clusters_in(shared_folder(folder)):
        record = each.read()
        nodes = record.nodes + len(record.joined)
        status = queue.status(record.job)
        address = each.address if status.runs else ""
        found.append(ClusterStatus(each.name, nodes, record.slots, address, status))
    return found


class SlurmCluster(JobCluster):
    """A controller and worker daemons in a job of Slurm; a context manager.

    It is started by ``with`` or :meth:`start`, which wait for the job in the queue and say why it
    waits, and ended at the end of the block, by :meth:`stop`, or with the program. This runs where
    sbatch does, on a login node, which must reach the compute nodes over TCP.

    The cluster has certificates of its own, in a folder that only this user can read and all
    nodes share. Whoever can read them is the user, so that what sessions may import, read, save
    and load is not restricted, unless the environment has ``DISCO_ALLOW_MODULES`` and so on.

    Args:
        nodes: How many nodes.
        slots: How many slots each has, which is ``--cpus-per-task``; beside `gpus`, how many CPUs.
        time: How long the job may take, as Slurm writes it: ``"30"`` minutes, ``"1:00:00"``,
            ``"2-00:00:00"``. None for what the partition gives. The cluster ends a minute
            earlier, in order.
        gpus: How many GPUs each node has, which are its slots then.
        partition: The partition; None for Slurm's default.
        account: The account; None for the user's default.
        options: Further options of sbatch, such as ``"--mem=8G"``.
        name: The name by which other programs attach; None makes one.
        folder: A folder that all nodes share, for the files of all clusters. None takes
            ``DISCO_JOB_DIR``, else ``~/.local/state/disco/slurm``.
        timeout: How many seconds to wait in the queue; None for as long as it takes.
        detach: Whether the cluster goes on when the block, or the program, ends.

    Attributes:
        name: Its name.
        folder: The folder of its files.
        address: Where the controller listens; empty until it is started.

    Raises:
        ClusterError: Slurm's commands are not installed here.
        ConfigError: An argument is wrong.

    Examples:
        >>> with SlurmCluster(nodes=4, slots=16, time="1:00:00") as cluster:
        ...     with cluster.connect() as session:
        ...         print(session.num_workers)
        64
    """

    def __init__(  # noqa: PLR0913  (what a person may say, each by its name)
        self,
        nodes: int = 1,
        slots: int = 1,
        *,
        time: str | None = None,
        gpus: int = 0,
        partition: str | None = None,
        account: str | None = None,
        options: Sequence[str] = (),
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        detach: bool = False,
    ) -> None:
        for what, count, least in (("nodes", nodes, 1), ("slots", slots, 1), ("gpus", gpus, 0)):
            if not isinstance(count, int) or count < least:
                raise ConfigError(f"{what}: expected a number from {least} up, got {count!r}")
        if time is not None and not _TIME.fullmatch(time):
            msg = f"time: expected minutes, H:MM:SS or D-HH:MM:SS, as '1:00:00', got {time!r}"
            raise ConfigError(msg)
        asked = [f"--cpus-per-task={slots}"]
        given = {"gpus-per-node": gpus, "time": time, "partition": partition, "account": account}
        asked += [f"--{option}={value}" for option, value in given.items() if value]
        files = ClusterFolder.of(folder, name or f"disco-{secrets.token_hex(3)}")
        record = ClusterRecord("", nodes, gpus or slots, (*asked, *options))
        self._slurm = SlurmQueue()
        super().__init__(self._slurm, files, record, timeout=timeout, detach=detach)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        folder: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> Self:
        """Returns to a cluster that another program has left running; waits until it is ready.

        The end of a ``with`` block does not end it; :meth:`stop` does.

        Args:
            name: Its name.
            folder: See the class.
            timeout: How many seconds to wait if it is still in the queue.
            wait: False returns at once, whatever its jobs do, so that it can be stopped.

        Raises:
            ClusterError: Slurm's commands are not here, or the controller does not answer.
            ConfigError: The folder has something else than a cluster.
            JobEnded: Its job has ended.
            JobPending: Its job still waits in the queue, and is left there.
            NoSuchCluster: There is none of this name.
        """
        record = ClusterFolder.of(folder, name).read()
        found = cls(record.nodes, record.slots, name=name, folder=folder, detach=True)
        found._record = record
        if wait:
            found.wait_ready(timeout)
        return found

    def detach(self) -> str:
        """Lets the cluster go on when the block, or the program, ends; returns its name."""
        self._let_go()
        return self.name

    def _submit(self, *, joins: bool) -> str:
        options = [
            f"--job-name={self.name}",
            f"--chdir={self.folder}",
            "--output=job-%j.out",
            f"--signal=B:USR1@{_ANNOUNCE_S}",
            *self._record.options,
            "--nodes=1" if joins else f"--nodes={self._record.nodes}",
        ]
        mode = "--join" if joins else "--folder"
        return self._slurm.submit(options, (str(_batch_script()), mode, str(self.folder)), {})

    def _note(self, **changed: Any) -> None:
        super()._note(**changed)
        self._files.write(self._record)


def _batch_script() -> Path:
    """The script of deploy/slurm, which a release has beside this file."""
    released = Path(__file__).with_name("disco.sbatch")
    if released.exists():
        return released
    return Path(__file__).parents[2] / "deploy" / "slurm" / "disco.sbatch"
