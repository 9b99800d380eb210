"""``disco run`` in a job step: what MPI's launcher started becomes one session."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import tempfile
import zlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disco_client.errors import ConfigError, ConnectionFailed
from disco_server.cli.options import avoid_grpc_forks, quieten_grpc
from disco_server.config import Address
from disco_server.security import Guard

if TYPE_CHECKING:
    from disco_server.embedded.launched import LaunchedSession
    from disco_server.ipc.authority import Authority
    from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = ["find_launcher", "leave", "open_launched", "serve_launched"]

_DAYS = 365.0
_HERE = ("localhost", "127.0.0.1")
_OTHERS = ("PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Variables of launchers that speak another protocol."""


def find_launcher() -> LauncherPmi:
    """The MPI launcher that started this process.

    Raises:
        ConfigError: None did, or one that speaks another protocol.
        ConnectionFailed: It does not answer.
    """
    from disco_server.worker.launcher_pmi import LauncherPmi

    found = LauncherPmi.take(os.environ)
    if found is not None:
        return found
    msg = (
        "expected --workers N for a session on a cluster, or an MPI launcher that started this"
        " process: srun --mpi=pmi2, or mpiexec of MPICH"
    )
    if other := next((name for name in _OTHERS if name in os.environ), ""):
        msg += f"; the one that did ({other}) does not speak PMI-1"
    raise ConfigError(msg)


def leave(launcher: LauncherPmi) -> None:
    """Tells the other processes that there will be no session; for the first one."""
    with contextlib.suppress(ConnectionFailed):
        launcher.share("")
    launcher.close()


@contextlib.contextmanager
def open_launched(launcher: LauncherPmi, wanted: Mapping[str, Any]) -> Generator[LaunchedSession]:
    """Opens the session, in the launcher's first process; the block ends it.

    Args:
        launcher: The launcher.
        wanted: Arguments of the session, by their names.

    Raises:
        ConfigError: An argument is wrong, or this machine cannot listen.
        ConnectionFailed: The launcher is gone.
        NoSlots: Not all processes joined in time.
        WorkerLost: A worker process could not be started.
    """
    _prepare()
    from disco_server.embedded.launched import LaunchedSession, listen
    from disco_server.ipc.authority import Authority

    authority = Authority.create(days=_DAYS)
    host = socket.gethostname()
    with _certified(authority, "controller", (host,)) as guard:
        try:
            node = listen(launcher, guard)
        except BaseException:
            leave(launcher)
            raise
        pem = authority.pem()
        keys = {"cert": pem.cert.decode(), "key": pem.key.decode()}
        try:
            launcher.share(_packed({"host": host, "port": node.address.port, **keys}))
        except BaseException:
            node.stop()
            raise
        session = LaunchedSession(node, launcher, **wanted)
        try:
            yield session
        finally:
            session.shutdown()


def serve_launched(launcher: LauncherPmi) -> int:
    """Serves the session, in every other process of the launcher; returns the exit code.

    Raises:
        ConfigError: This machine lacks what ranks need.
        ConnectionFailed: The launcher is gone.
    """
    text = launcher.share("")
    if not text:  # the first process says why
        return 0
    _prepare()
    from disco_server.embedded.launched import join
    from disco_server.ipc.authority import Authority
    from disco_server.observe import logs

    logs.setup("warning")
    said = _unpacked(text)
    host = socket.gethostname()
    near = said["host"] == host
    where = Address("127.0.0.1" if near else said["host"], said["port"])
    with tempfile.TemporaryDirectory(prefix="disco-") as name:
        folder = Path(name)
        (folder / "ca.pem").write_text(said["cert"])
        (folder / "ca.key").touch(0o600)
        (folder / "ca.key").write_text(said["key"])
        authority = Authority.load(folder / "ca.pem", folder / "ca.key")
    hosts = (host, *_addresses_towards(where))
    with _certified(authority, f"worker/{launcher.node_name}", hosts) as guard:
        return join(launcher, where, guard)


def _prepare() -> None:
    quieten_grpc()
    avoid_grpc_forks()


@contextlib.contextmanager
def _certified(authority: Authority, identity: str, hosts: Sequence[str]) -> Generator[Guard]:
    """Files of a certificate in a folder that only this user can enter."""
    from disco_server.worker.environment import OwnFolder

    folder = OwnFolder("disco-step-")
    try:
        ca = folder.path / "ca.pem"
        ca.write_bytes(authority.pem().cert)
        issued = authority.issue(identity, hosts=(*_HERE, *hosts), days=_DAYS)
        cert, key = issued.write(folder.path, "own")
        yield Guard(tls_cert=cert, tls_key=key, tls_ca=ca, require_client_cert=True)
    finally:
        folder.remove()


def _addresses_towards(where: Address) -> list[str]:
    """This machine's address on the way to another one."""
    from disco_server.worker.array_server import choose_address

    found = choose_address(where)
    return [found.host] if found is not None else []


def _packed(said: Mapping[str, Any]) -> str:
    """As a text without blanks, as short as it may be."""
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(said).encode())).decode()


def _unpacked(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(base64.urlsafe_b64decode(text)))
    except ValueError as error:
        msg = f"expected the address of the launcher's first process, got {text!r:.60}: {error}"
        raise ConfigError(msg) from None
    return found
