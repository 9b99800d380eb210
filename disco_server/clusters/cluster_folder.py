"""What is kept of a cluster in a folder that its user alone reads, and that its nodes share."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from disco_client.errors import ClusterError, ConfigError, NoSuchCluster
from disco_client.transport.credentials import Credentials

__all__ = ["ClusterFolder", "ClusterRecord", "clusters_in", "shared_folder"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RECORD = "cluster.json"
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What another program needs to know of a cluster.

    Attributes:
        job: The number of its first job, which has the controller.
        nodes: How many nodes that has.
        slots: How many slots each node has; 0 for one for each GPU.
        options: Of sbatch, for all of its jobs; without the number of nodes.
        joined: The jobs of a node each that have joined it, the oldest first.
    """

    job: str
    nodes: int
    slots: int
    options: tuple[str, ...]
    joined: tuple[str, ...] = field(default=())


def shared_folder(given: str | os.PathLike[str] | None, kind: str = "slurm") -> Path:
    """The folder of all clusters: as given, else ``DISCO_JOB_DIR``, else one in the user's home.

    Args:
        given: The folder.
        kind: What those in the user's home are called.
    """
    named = given or os.environ.get("DISCO_JOB_DIR")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else Path("~/.local/state").expanduser()
    return home / "disco" / kind


def clusters_in(base: Path) -> Iterator[ClusterFolder]:
    """The clusters of a folder, by their names."""
    for record in sorted(base.glob(f"*/{_RECORD}")):
        yield ClusterFolder(base, record.parent.name)


class ClusterFolder:
    """The folder of one cluster; the batch script writes certificates and address into it.

    Args:
        base: The folder of all clusters.
        name: The name of this one.

    Attributes:
        name: The same.
        path: The folder.

    Raises:
        ConfigError: It cannot have this name.
    """

    def __init__(self, base: Path, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            msg = f"expected a name of at most 64 letters, digits, '.', '_' and '-', got {name!r}"
            raise ConfigError(msg)
        self.name = name
        self.path = base / name

    def create(self) -> None:
        """Makes it.

        Raises:
            ClusterError: There is a cluster of this name.
            ConfigError: It cannot be made.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            msg = (
                f"expected a name that no cluster has, {self.path} is there; attach to that"
                f" cluster, or stop it: disco cluster stop --on slurm {self.name}"
            )
            raise ClusterError(msg) from None
        except OSError as error:
            msg = f"folder: {error.filename} cannot be made: {error.strerror}"
            raise ConfigError(msg) from None

    def write(self, record: ClusterRecord) -> None:
        """Keeps the record; a reader finds the former one or this."""
        part = self.path / f".{_RECORD}.{os.getpid()}"
        part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        part.replace(self.path / _RECORD)

    def read(self) -> ClusterRecord:
        """Reads the record.

        Raises:
            ConfigError: Something else is there, or others may read it.
            NoSuchCluster: There is none.
        """
        file = self.path / _RECORD
        try:
            content = file.read_text(encoding="utf-8")
            if self.path.stat().st_mode & 0o077:
                msg = f"{self.path} holds keys, and others may read it: chmod 700 {self.path}"
                raise ConfigError(msg)
        except OSError:
            known = ", ".join(each.name for each in clusters_in(self.path.parent)) or "none"
            msg = f"expected a cluster, got {self.name!r}; in {self.path.parent} there are: {known}"
            raise NoSuchCluster(msg) from None
        try:
            found = ClusterRecord(**json.loads(content))
        except (TypeError, ValueError):
            msg = f"expected the record of a cluster in {file}, which has something else"
            raise ConfigError(msg) from None
        return replace(found, options=tuple(found.options), joined=tuple(found.joined))

    @property
    def address(self) -> str:
        """Where the controller listens; empty until it does, and after its end."""
        # Listed first, because a file system that nodes share may know an old listing only.
        try:
            names = os.listdir(self.path)  # noqa: PTH208  (the names alone)
            return (self.path / "address").read_text().strip() if "address" in names else ""
        except FileNotFoundError:
            return ""

    def files_of(self, role: str) -> dict[str, str]:
        """The certificates of a role, as `disco_client.connect` takes them."""
        pki = self.path / "pki"
        names = {"tls_ca": "ca.pem", "tls_cert": f"{role}.pem", "tls_key": f"{role}.key"}
        return {argument: str(pki / file) for argument, file in names.items()}

    def credentials(self) -> Credentials:
        """An administrator's."""
        return Credentials.read(**self.files_of("admin"), environ={})

    def last_lines(self) -> str:
        """What jobs and daemons said last, in one line."""
        said: list[str] = []
        for file in sorted(self.path.glob("*.out")) + sorted(self.path.glob("*.log")):
            said += file.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return " / ".join(said[-_LAST_LINES:])

    def remove(self, *, logs: bool) -> None:
        """Removes it, or all but the logs."""
        if logs:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        shutil.rmtree(self.path / "pki", ignore_errors=True)
        for name in ("address", _RECORD):
            (self.path / name).unlink(missing_ok=True)

    @classmethod
    def of(cls, given: str | os.PathLike[str] | None, name: str, kind: str = "slurm") -> Self:
        """The one of a name, in the folder of all clusters; see `shared_folder`."""
        return cls(shared_folder(given, kind), name)
