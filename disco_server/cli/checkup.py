"""The checks of ``disco doctor``: what this machine needs for sessions, section by section.

What may crash or hang is checked in child processes; the Python libraries that the
commands need are imported in one that runs this module as a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import platform
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import disco_server
from disco_client.errors import AccessDenied, ConfigError, DiscoError, NoSlots
from disco_client.text import many
from disco_client.version import __version__
from disco_server.cli.output import duration, rate, size
from disco_server.collectives.mpi_probe import probe_mpi
from disco_server.devices.probe import probe_gpus
from disco_server.observe.checks import CheckResult, State, ask, first_line, tell
from disco_server.settings import cpu_cores, visible_gpus

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from disco_client.transport.channel import ReloadingChannel
    from disco_client.transport.credentials import Credentials
    from disco_client.wire.overview import NodeView, Overview
    from disco_server.cli.options import Controller

__all__ = [
    "CheckGroup",
    "gpu_kind",
    "look_at_allreduce",
    "look_at_certificates",
    "look_at_clock",
    "look_at_controller",
    "look_at_host_name",
    "look_at_memory",
    "look_at_nodes",
    "look_at_ports",
    "sections",
]


# Checks of ``disco doctor`` for a cluster of several machines.


PORTS: Final = {7600: "--listen", 7601: "--http"}
"""The default ports of daemons, and the options that choose others."""

_ANSWER_S: Final = 1.0
_METRICS_BYTES: Final = 1 << 20
_SOON: Final = timedelta(days=14)
_TIME_ERROR: Final = 5
_UNSYNCHRONISED: Final = 0x40
_TIMEX_BYTES: Final = 256
_MAX_ERROR_AT: Final = 24
_STATUS_AT: Final = 40


def look_at_ports() -> list[CheckResult]:
    """Whether each port of the daemons is free on the loopback address, or what uses it."""
    return [_look_at_port(port, flag) for port, flag in PORTS.items()]


def _look_at_port(port: int, flag: str) -> CheckResult:
    name = f"port {port}"
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                hint = "let the process bind sockets of the loopback interface"
                return CheckResult(name, State.BROKEN, f"cannot be bound: {error.strerror}", hint)
        else:
            return CheckResult(name, State.OK, "free", facts={"free": True})
    metrics = flag == "--http" and _serves_metrics(port)
    facts = {"free": False, "controller": not metrics and _serves_disco(port), "metrics": metrics}
    if metrics:
        return CheckResult(name, State.OK, "a daemon serves its metrics there", facts=facts)
    if facts["controller"]:
        return CheckResult(name, State.OK, "a controller answers there", facts=facts)
    hint = f"nothing, if that is a daemon of yours; else choose another port with {flag}"
    return CheckResult(name, State.OK, "in use by another program", hint, facts)


def _serves_disco(port: int) -> bool:
    """Whether a controller answers at a port, even if only with a refusal."""
    try:
        from disco_client.transport.admin import ask_for_sessions
        from disco_client.transport.channel import ReloadingChannel
    except ImportError:  # reported in the section of the libraries
        return False
    with contextlib.closing(ReloadingChannel(f"127.0.0.1:{port}")) as line:
        try:
            ask_for_sessions(line, _ANSWER_S)
        except AccessDenied:
            return True
        except DiscoError:
            return False
        return True


def _serves_metrics(port: int) -> bool:
    """Whether a daemon answers at a port by HTTP, encrypted or not; its metrics name Disco."""
    anyone = ssl.create_default_context()
    # Nothing is told to it, and no certificate need be for this address.
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    lines = (
        HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S),
        HTTPSConnection("127.0.0.1", port, timeout=_ANSWER_S, context=anyone),
    )
    for line in lines:
        with contextlib.closing(line), contextlib.suppress(OSError, HTTPException):
            line.request("GET", "/metrics")
            if b"disco_build_info" in line.getresponse().read(_METRICS_BYTES):
                return True
    return False


def look_at_host_name() -> CheckResult:
    """Whether this machine resolves its own name, as MPI requires."""
    name, own = "host name", socket.gethostname()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(own, None)})
    except OSError as error:
        hint = f"name it in /etc/hosts: 127.0.1.1 {own}"
        detail = f"{own} has no address ({error.strerror})"
        return CheckResult(name, State.MISSING, detail, hint, {"name": own, "addresses": []})
    facts = {"name": own, "addresses": found}
    return CheckResult(name, State.OK, f"{own} is {', '.join(found)}", facts=facts)


def look_at_clock() -> CheckResult:
    """Whether the clock is synchronised; otherwise certificates may be refused."""
    name = "clock"
    installed = Path(disco_server.__file__).stat().st_mtime
    now = datetime.now(UTC).isoformat(" ", "seconds")
    if time.time() < installed - _SOON.total_seconds():
        hint = "set it, and have it kept right: timedatectl set-ntp true"
        return CheckResult(name, State.BROKEN, f"{now} is before Disco was installed", hint)
    found = _ask_kernel()
    if found is None:
        return CheckResult(
            name, State.OK, f"{now}; the kernel does not say whether it is kept right"
        )
    synchronised, error_s = found
    facts = {"synchronised": synchronised, "max_error_s": error_s}
    if synchronised:
        return CheckResult(name, State.OK, f"kept right within {error_s * 1e3:.0f} ms", facts=facts)
    hint = "unless somebody else keeps it right for this machine: timedatectl set-ntp true"
    return CheckResult(name, State.OK, f"{now}; not synchronised by this kernel", hint, facts)


def _ask_kernel() -> tuple[bool, float] | None:
    """Whether the clock is synchronised, and its greatest error in seconds."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    error_us = int.from_bytes(buffer.raw[_MAX_ERROR_AT : _MAX_ERROR_AT + 8], sys.byteorder)
    return state != _TIME_ERROR and not status & _UNSYNCHRONISED, error_us / 1e6


def look_at_certificates(credentials: Credentials) -> list[CheckResult]:
    """Whether the certificates and tokens that commands show a controller are valid now.

    Args:
        credentials: From the options or the environment.
    """
    if credentials.ca is None:
        detail = "none given (--tls-ca, DISCO_TLS_CA)"
        return [CheckResult("certificates", State.NOT_APPLICABLE, detail)]
    try:
        return _look_at_files(credentials.ca, credentials.cert)
    except (OSError, ValueError, ImportError) as error:
        hint = "disco certs init makes certificates"
        return [CheckResult("certificates", State.BROKEN, first_line(error), hint)]


def _look_at_files(ca: Path, cert: Path | None) -> list[CheckResult]:
    authorities = _load(ca)
    found = [_look_at_dates("authority", ca, each) for each in authorities]
    if cert is None:
        return found
    own = _load(cert)[0]
    result = _look_at_dates("own certificate", cert, own)
    if result.state is State.OK and not any(_signs(each, own) for each in authorities):
        detail = f"{cert} is not signed by {ca}"
        hint = "a controller with that authority refuses it; disco certs issue makes another"
        result = CheckResult(result.name, State.BROKEN, detail, hint)
    return [*found, result]


def _load(path: Path) -> list[Certificate]:
    from cryptography import x509

    loaded = x509.load_pem_x509_certificates(path.read_bytes())
    if not loaded:
        raise ConfigError(f"expected a certificate in {path}, found none")
    return loaded


def _signs(authority: Certificate, cert: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        cert.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _look_at_dates(name: str, path: Path, cert: Certificate) -> CheckResult:
    now, begins, ends = datetime.now(UTC), cert.not_valid_before_utc, cert.not_valid_after_utc
    facts = {"file": str(path), "valid_from": begins.isoformat(), "valid_until": ends.isoformat()}
    again = "make another: disco certs issue, or whoever made this one"
    if now > ends:
        return CheckResult(
            name, State.BROKEN, f"{path} was valid until {ends:%Y-%m-%d}", again, facts
        )
    if now < begins:
        hint = "see whether the clock of this machine is right"
        detail = f"{path} is valid from {begins:%Y-%m-%d %H:%M} on"
        return CheckResult(name, State.BROKEN, detail, hint, facts)
    hint = again if ends - now < _SOON else ""
    return CheckResult(name, State.OK, f"{path} is valid until {ends:%Y-%m-%d}", hint, facts)


_INSTALL: Final = "pip install 'disco-runtime[server]'"
_LIBRARIES: Final = {
    # The imports include the generated code, which refuses libraries too old for it.
    "grpcio": "disco_client.pb.controller_pb2_grpc",
    "protobuf": "disco_client.pb.controller_pb2",
    "numpy": "numpy",
    "ml_dtypes": "ml_dtypes",
}
_LIBRARIES_S: Final = 30.0
_SHARED: Final = Path("/dev/shm")  # noqa: S108  (where MPI and NCCL keep their shared memory)
_AMPLE: Final = 1 << 30
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckGroup:
    """Checks that belong together.

    Attributes:
        name: What they are about.
        required: Whether a session on the CPU needs every one of them.
        look: Runs them.
    """

    name: str
    required: bool
    look: Callable[[], list[CheckResult]]


def sections(kind: str, credentials: Credentials) -> tuple[CheckGroup, ...]:
    """The checks of one machine; ``gpu`` comes last.

    Args:
        kind: The kind of GPU, ``cuda`` or ``rocm``.
        credentials: Shown to a controller.
    """
    return (
        CheckGroup(
            "machine",
            required=True,
            look=lambda: [look_at_python(), look_at_memory(), look_at_clock()],
        ),
        CheckGroup("libraries", required=True, look=probe_libraries),
        CheckGroup("collectives", required=True, look=lambda: [probe_mpi()]),
        CheckGroup("modules", required=False, look=lambda: [look_at_tvm()]),
        CheckGroup(
            "network",
            required=False,
            look=lambda: [
                look_at_host_name(),
                *look_at_ports(),
                *look_at_certificates(credentials),
            ],
        ),
        CheckGroup("gpu", required=False, look=lambda: probe_gpus(kind)),
    )


def gpu_kind() -> str:
    """The kind of GPU that this machine is meant for: that of its cupy, else of its GPUs."""
    names = [str(each.name).lower() for each in metadata.distributions() if each.name]
    if any(name.startswith("cupy-cuda") for name in names):
        return "cuda"
    if any(name.startswith("cupy-rocm") for name in names):
        return "rocm"
    return "rocm" if visible_gpus("rocm") and not visible_gpus("cuda") else "cuda"


def look_at_python() -> CheckResult:
    """Which Python runs this, and on how many cores."""
    version = platform.python_version()
    facts = {"version": version, "executable": sys.executable, "cores": cpu_cores()}
    detail = f"{version} at {sys.executable}, {many(cpu_cores(), 'core')}"
    return CheckResult("python", State.OK, detail, facts=facts)


def look_at_memory(folder: Path = _SHARED) -> CheckResult:
    """Whether processes can share memory: without a name, and in the folder for it."""
    name = "shared memory"
    if not hasattr(os, "memfd_create"):
        return CheckResult(name, State.OK, "in temporary files")
    try:
        os.close(os.memfd_create("disco-doctor"))
    except OSError as error:
        hint = "let the process call memfd_create: see the container's seccomp profile"
        return CheckResult(name, State.BROKEN, f"memfd_create fails ({error.strerror})", hint)
    hint = f"mount a tmpfs at {folder}, to which this user may write"
    if not folder.is_dir():
        return CheckResult(name, State.MISSING, f"there is no {folder}, which MPI uses", hint)
    if not os.access(folder, os.W_OK | os.X_OK):
        return CheckResult(name, State.BROKEN, f"this user may not write to {folder}", hint)
    room = os.statvfs(folder)
    total, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    facts = {"total_bytes": total, "free_bytes": free}
    detail = f"memfd; {folder} has {free // _MIB} of {total // _MIB} MiB free"
    few = (
        "" if free >= _AMPLE else f"give {folder} 1 GiB (docker run --shm-size=1g) for large arrays"
    )
    return CheckResult(name, State.OK, detail, few, facts)


def probe_libraries() -> list[CheckResult]:
    """Imports, in a child process, what the commands and the workers import."""
    hint = f"install them anew: {_INSTALL}"
    checks = dict.fromkeys(("disco-runtime", *_LIBRARIES), hint)
    return ask("disco_server.cli.checkup", checks=checks, timeout=_LIBRARIES_S)


def look_at_library(name: str, module: str) -> CheckResult:
    """Imports one library in this process."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return CheckResult(name, State.MISSING, f"{name} is not installed", _INSTALL)
    facts = {"version": version}
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  (a damaged or outdated one may raise anything)
        detail = f"{name} {version} cannot be imported: {first_line(error)}"
        return CheckResult(name, State.BROKEN, detail, f"install it anew: {_INSTALL}", facts)
    return CheckResult(name, State.OK, version, facts=facts)


def look_at_tvm() -> CheckResult:
    """Whether modules that TVM compiled can be loaded."""
    name = "apache-tvm"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        hint = "for modules that TVM compiled, pip install 'disco-runtime[server,tvm]'"
        return CheckResult(
            name, State.MISSING, "not installed, and only modules of TVM need it", hint
        )
    return CheckResult(name, State.OK, version, facts={"version": version})


def _look_at_disco() -> CheckResult:
    return CheckResult("disco-runtime", State.OK, __version__, facts={"version": __version__})


if __name__ == "__main__":
    libraries = [(n, partial(look_at_library, n, module)) for n, module in _LIBRARIES.items()]
    tell([("disco-runtime", _look_at_disco), *libraries])


# Checks of ``disco doctor --cluster``: releases, latencies, and a collective.


_ROUNDS: Final = 5
_SIZES: Final = (64 << 10, 4 << 20)
_WAIT_S: Final = 30.0
_UPDATE: Final = "install the same release on all machines"


def look_at_controller(line: ReloadingChannel, view: Overview) -> CheckResult:
    """The controller's release, and how long a call from here takes.

    Args:
        line: A channel to the controller.
        view: Its cluster.
    """
    from disco_client.transport.admin import ask_for_sessions

    took: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        ask_for_sessions(line)
        took.append(time.perf_counter() - started)
    facts = {"version": view.version, "latency_s": min(took)}
    hint = "" if view.version == __version__ else f"{_UPDATE}; this one has {__version__}"
    detail = f"{view.version}, a call from here takes {duration(min(took))}"
    return CheckResult("controller", State.OK, detail, hint, facts)


def look_at_nodes(view: Overview) -> list[CheckResult]:
    """Each node's release, and the round trip between it and the controller."""
    if not view.nodes:
        hint = "start worker daemons: disco-worker --controller HOST:PORT"
        return [CheckResult("nodes", State.MISSING, "no worker daemon is there", hint)]
    return [_look_at_node(node, view.version) for node in view.nodes]


def _look_at_node(node: NodeView, version: str) -> CheckResult:
    name = f"node {node.name}"
    facts = {"version": node.version, "state": node.state, "latency_s": node.latency_s}
    hint = "see the log of its disco-worker"
    if node.state == "away":
        return CheckResult(name, State.BROKEN, "its connection is broken", hint, facts)
    if node.latency_s is None:
        return CheckResult(name, State.BROKEN, "it did not answer within a second", hint, facts)
    hint = "" if node.version == version else f"{_UPDATE}; the controller has {version}"
    state = "" if node.state == "ready" else f", {node.state}"
    detail = (
        f"{node.version}, {duration(node.latency_s)} from the controller and back, "
        f"{node.used} of {node.slots} slots used{state}"
    )
    return CheckResult(name, State.OK, detail, hint, facts)


def look_at_allreduce(controller: Controller, view: Overview) -> CheckResult:
    """Whether the workers of all free slots can run an allreduce, and how fast it is."""
    from disco_server.cli.measuring import free_workers, measure_allreduce

    name = "allreduce"
    try:
        workers = free_workers(view)
    except NoSlots:
        return CheckResult(name, State.NOT_APPLICABLE, "not measured, because no slot is free")
    try:
        with controller.open_session(
            num_workers=workers, name="disco-doctor", logs=False, timeout=_WAIT_S
        ) as session:
            found = [f for nbytes in _SIZES for f in measure_allreduce(session, nbytes, _ROUNDS)]
            nodes = len({rank.node for rank in session.workers})
    except DiscoError as error:
        hint = "MPI needs the machines with workers to reach each other; see disco bench"
        return CheckResult(name, State.BROKEN, first_line(error), hint)
    rates = [each for each in found if each.unit == "B/s"]
    text = ", ".join(f"{size(each.nbytes)} at {rate(each.best, 'B')}" for each in rates)
    facts = {"workers": workers, "nodes": nodes, "figures": [each.as_dict() for each in found]}
    detail = f"{many(workers, 'worker')} on {many(nodes, 'node')}: {text}"
    return CheckResult(name, State.OK, detail, facts=facts)
