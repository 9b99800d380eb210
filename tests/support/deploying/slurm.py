"""A real Slurm of two nodes on this machine, each with a network and a host name of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fault_tools.namespaces import Host, network

__all__ = ["NoSlurm", "Slurm", "processes_of", "slurm"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_NODES = ("node-a", "node-b")
_CONF = """
ClusterName=disco
SlurmctldHost={first}({first_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdTimeout=25
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_STATES = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}


class NoSlurm(Exception):
    """This machine has none, or is not one to run it as a test does."""


@dataclass
class Slurm:
    """A cluster of ``node-a`` and ``node-b``.

    Attributes:
        folder: Its configuration, state and logs.
        hosts: The nodes' networks, in the order of their names.
        login: That of a machine beside them from which programs submit jobs.
    """

    folder: Path
    hosts: list[Host]
    login: Host

    def start(self, at: int, *command: str) -> subprocess.Popen[bytes]:
        """Starts a daemon on a node."""
        with (self.folder / f"{command[0]}-{at}.out").open("wb") as out:
            return subprocess.Popen(
                [*self.hosts[at].within, *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def environment(self) -> dict[str, str]:
        """That of whoever asks Slurm for something: with our commands on the path."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
        path = os.pathsep.join((str(Path(sys.executable).parent), known["PATH"]))
        return known | {"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Runs one of Slurm's commands on the first node; its output."""
        done = subprocess.run(
            [*self.hosts[0].within, *command],
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
        return done.stdout.strip()

    def program(self, folder: Path, text: str, **env: str) -> subprocess.Popen[bytes]:
        """Starts a program on the login node; see `begin`.

        Args:
            folder: Its working folder, and that of its clusters.
            text: The program.
            env: Variables besides.
        """
        return self.begin(folder, sys.executable, "-c", text, **env)

    def begin(self, folder: Path, *command: str, **env: str) -> subprocess.Popen[bytes]:
        """Starts a command on the login node; its output is in ``out`` and ``err`` of the folder.

        Args:
            folder: Its working folder, and that of its clusters.
            command: The command.
            env: Variables besides.
        """
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            return subprocess.Popen(
                [*self.login.within, *command],
                env={**self.environment, "DISCO_JOB_DIR": str(folder), **env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def jobs(self) -> list[str]:
        """The numbers of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def submit(self, folder: Path, script: Path, *command: str) -> str:
        """Submits a batch script for both nodes, its output in ``out.txt``; the job's number."""
        wanted = ("--nodes=2", "--cpus-per-task=1", "--no-requeue", "--output=out.txt")
        return self.run("sbatch", "--parsable", *wanted, str(script), *command, cwd=folder)

    def state(self, job: str) -> str:
        """What has become of a job."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")

    def ended(self, job: str, seconds: float = 100.0) -> str:
        """Waits for the end of a job; how it ended."""
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) in _STATES and time.monotonic() < deadline:
            time.sleep(0.2)
        return state

    def resume(self, at: int) -> None:
        """Takes a node back, as an administrator would, if Slurm has taken it for down.

        By itself Slurm looks at such a node only now and then.
        """
        with contextlib.suppress(RuntimeError):  # it is not down any more, or not yet
            self.run("scontrol", "update", f"NodeName={_NODES[at]}", "State=RESUME")

    def idle(self, seconds: float = 60.0) -> bool:
        """Waits until both nodes take jobs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):  # slurmctld does not answer yet
                if self.run("sinfo", "--noheader", "--format=%T %D") == "idle 2":
                    return True
            time.sleep(0.2)
        return False


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes of jobs: those that know of certificates in a folder, or of files there."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = (process.environ().get("DISCO_TLS_CA", ""), *process.cmdline())
            if any(word.startswith(f"{folder}/") for word in words):
                found.append(process)
    return found


@contextlib.contextmanager
def slurm(folder: Path, unique: int) -> Iterator[Slurm]:
    """A cluster for the length of a block.

    Args:
        folder: An empty one, with a short path.
        unique: Tells its networks apart from those of others on this machine.

    Raises:
        NoSlurm: There are no such programs, or this is not the machine's owner.
        NoNamespaces: No networks can be made here.
    """
    lacking = [each for each in _PROGRAMS if shutil.which(each) is None]
    if lacking:
        raise NoSlurm(f"Slurm is not installed here (slurm-wlm): no {', '.join(lacking)}")
    if os.geteuid() != 0:
        raise NoSlurm("nodes of a Slurm with host names of their own are made by root alone")
    with network(unique) as joined, contextlib.ExitStack() as stack:
        nodes = [joined.join(name) for name in _NODES]
        cluster = Slurm(folder, nodes, joined.join("login"))
        _configure(cluster)
        stack.enter_context(_munge(folder / "munge"))
        for at, command in ((0, "slurmctld"), (0, "slurmd"), (1, "slurmd")):
            name = ("-N", _NODES[at]) if command == "slurmd" else ()
            stack.enter_context(_ending(cluster.start(at, command, "-D", *name)))
        if not cluster.idle():
            logs = "".join(file.read_text() for file in sorted(folder.glob("*.log")))
            raise RuntimeError(f"Slurm does not start:\n{logs}")
        yield cluster


def _configure(cluster: Slurm) -> None:
    addresses = {host.name: host.address for host in cluster.hosts}
    nodes = "\n".join(
        f"NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=2 State=UNKNOWN"
        for name, address in addresses.items()
    )
    first, first_address = next(iter(addresses.items()))
    conf = _CONF.format(
        folder=cluster.folder, first=first, first_address=first_address, nodes=nodes
    )
    (cluster.folder / "slurm.conf").write_text(conf)
    for each in ("state", "munge", *(f"spool-{name}" for name in addresses)):
        (cluster.folder / each).mkdir()


@contextlib.contextmanager
def _munge(folder: Path) -> Iterator[None]:
    """By which the daemons of a cluster know each other."""
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = {"key": key, "socket": folder / "socket"} | {
        f"{each}-file": folder / each for each in ("pid", "log", "seed")
    }
    files["key-file"] = files.pop("key")
    options = [f"--{name}={file}" for name, file in files.items()]
    with _ending(
        subprocess.Popen(
            ["munged", "--foreground", "--force", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    ):
        deadline = time.monotonic() + 20
        while not (folder / "socket").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield


@contextlib.contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
