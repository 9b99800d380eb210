"""What runs on each node of a job of a `QueueCluster`: a worker daemon, and on one a controller.

``python -m disco_server.clusters.member FOLDER SLOTS TAG``. Among the nodes of the first job, whose
tag is ``first``, the one that makes a folder before the others makes the certificates and starts
the controller; all others wait for its address. It ends when a daemon does, and ends them by
SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from disco_client.clock import monotonic
from disco_client.errors import ClusterError
from disco_client.reentry import Event
from disco_client.transport.address import Address
from disco_server.clusters.cluster_folder import ClusterFolder

__all__ = ["main"]

_READY_S = 100.0
"""How long the nodes of the first job may wait for its controller."""

_LOOK_S = 0.2
_STOP_S = 10.0
_CHECK_S = 15.0
_MISSES = 4
"""How often nobody may listen at the controller's address before a worker daemon leaves: a cluster
may end without a word, and the daemon would wait for it to come back."""


class _Daemons:
    """The daemons of this node, in the order of their start."""

    def __init__(self, files: ClusterFolder, name: str) -> None:
        self.told = Event()
        self._files, self._name = files, name
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, *options: str) -> None:
        """Starts one, with its certificate and a log of its own."""
        who = "controller" if role == "controller" else f"worker-{self._name}"
        tls = [
            word
            for argument, file in self._files.files_of(who).items()
            for word in (f"--{argument.replace('_', '-')}", file)
        ]
        with (self._files.path / f"{who}.log").open("wb") as log:
            command = [sys.executable, "-m", f"disco_server.cli.{role}", "--require-client-cert"]
            self._started.append(
                subprocess.Popen(
                    [*command, *tls, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # they end in order, worker daemons first
                )
            )

    def await_one(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something that the daemons do.

        Raises:
            ClusterError: One has ended, or it takes too long.
        """
        deadline = monotonic() + _READY_S
        while not condition():
            if self.ended() or self.told.wait(_LOOK_S):
                raise ClusterError(f"{what} did not come before the end of a daemon")
            if monotonic() > deadline:
                raise ClusterError(f"{what} did not come within {_READY_S:g} s")

    def ended(self) -> bool:
        """Whether one has ended."""
        return any(each.poll() is not None for each in self._started)

    def stop(self) -> None:
        """Ends them, worker daemons first, so that they can say goodbye."""
        for each in reversed(self._started):
            each.terminate()
            try:
                each.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


def main(arguments: Sequence[str]) -> int:
    """Runs the daemons of this node until one ends, or SIGTERM; returns the exit status.

    Args:
        arguments: The folder, the slots and the tag.
    """
    folder, slots, tag = Path(arguments[0]), arguments[1], arguments[2]
    files = ClusterFolder(folder.parent, folder.name)
    host = socket.gethostname()
    daemons = _Daemons(files, f"{host}-{tag}")

    def tell(_number: int, _frame: object) -> None:
        daemons.told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    try:
        leads = tag == "first" and _is_first(folder)
        if leads:
            _lead(files, daemons, host)
        daemons.await_one(lambda: bool(files.address), "the address of the controller")
        _certify(files, host, f"{host}-{tag}")
        address = files.address
        name = ("--name", f"{host}-{tag}")
        daemons.start("worker", "--controller", address, "--slots", slots, *name)
        return _watch(daemons, address)
    except ClusterError as error:
        sys.stderr.write(f"disco: {error}\n")
        return 1
    finally:
        daemons.stop()


def _is_first(folder: Path) -> bool:
    """Whether no other node of the first job was here before; a folder is made only once."""
    try:
        (folder / "pki").mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _lead(files: ClusterFolder, daemons: _Daemons, host: str) -> None:
    """Makes the certificates, starts the controller and says where it listens."""
    from disco_server.ipc.authority import Authority

    pki = files.path / "pki"
    authority = Authority.create()
    serving = ("localhost", "127.0.0.1", host, socket.getfqdn())
    authority.issue("controller", hosts=serving).write(pki, "controller")
    for role in ("client", "admin"):
        authority.issue(role).write(pki, role)
    authority.pem().write(pki, "ca")
    port = files.path / "port"
    daemons.start("controller", "--listen", f"{host}:0", "--port-file", str(port))
    daemons.await_one(lambda: port.exists() and bool(port.read_text()), "the controller")
    part = files.path / "address.part"
    part.write_text(f"{host}:{port.read_text().strip()}\n")
    part.replace(files.path / "address")  # whoever waits for it reads the whole of it


def _certify(files: ClusterFolder, host: str, name: str) -> None:
    """Makes the certificate of this node's worker daemon."""
    from disco_server.ipc.authority import Authority

    pki = files.path / "pki"
    authority = Authority.load(pki / "ca.pem", pki / "ca.key")
    serving = ("localhost", "127.0.0.1", host, socket.getfqdn())
    authority.issue(f"worker/{name}", hosts=serving).write(pki, f"worker-{name}")


def _watch(daemons: _Daemons, address: str) -> int:
    """Waits for the end of a daemon, of the controller elsewhere, or SIGTERM."""
    where = Address.parse(address)
    missed, looked = 0, monotonic()
    while missed < _MISSES:
        if daemons.told.wait(_LOOK_S):
            return 0
        if daemons.ended():
            sys.stderr.write("disco: a daemon has ended\n")
            return 1
        if monotonic() - looked > _CHECK_S:
            looked = monotonic()
            missed = 0 if _listens(where) else missed + 1
    sys.stderr.write(f"disco: the cluster at {address} has ended\n")
    return 0


def _listens(where: Address) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((where.host, where.port), 5):
        return True
    return False


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
