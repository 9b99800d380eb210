"""The checks of ``disco doctor``: what this machine needs for sessions, section by section.

What may crash or hang is looked at in child processes; the libraries of Python that
the commands need are in one that is this module run as a program.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from disco_client.version import __version__
from disco_server.cli.checkup_host import (
    look_at_certificates,
    look_at_clock,
    look_at_host_name,
    look_at_ports,
)
from disco_server.collectives.mpi_probe import probe_mpi
from disco_server.devices.probe import probe_gpus
from disco_server.observe.findings import Finding, State, ask, first_line, tell
from disco_server.settings import cpu_cores, visible_gpus

if TYPE_CHECKING:
    from disco_client.transport.credentials import Credentials

__all__ = ["Section", "gpu_kind", "look_at_memory", "sections"]

_INSTALL: Final = "pip install 'disco-runtime[server]'"
_LIBRARIES: Final = {
    # What is imported includes the generated code, which refuses what is too old for it.
    "grpcio": "disco_client.pb.controller_pb2_grpc",
    "protobuf": "disco_client.pb.controller_pb2",
    "numpy": "numpy",
    "ml_dtypes": "ml_dtypes",
    "safetensors": "safetensors",
}
_LIBRARIES_S: Final = 30.0
_SHARED: Final = Path("/dev/shm")  # noqa: S108  (where MPI and NCCL keep their shared memory)
_AMPLE: Final = 1 << 30
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Section:
    """Checks that belong together.

    Attributes:
        name: What they are about.
        required: Whether a session on the CPU needs every one of them.
        look: Makes them.
    """

    name: str
    required: bool
    look: Callable[[], list[Finding]]


def sections(kind: str, credentials: Credentials) -> tuple[Section, ...]:
    """What there is to check on one machine; ``gpu`` comes last.

    Args:
        kind: Of GPU, ``cuda`` or ``rocm``.
        credentials: What is shown to a controller.
    """
    return (
        Section(
            "machine",
            required=True,
            look=lambda: [look_at_python(), look_at_memory(), look_at_clock()],
        ),
        Section("libraries", required=True, look=probe_libraries),
        Section("collectives", required=True, look=lambda: [probe_mpi()]),
        Section("modules", required=False, look=lambda: [look_at_tvm()]),
        Section(
            "network",
            required=False,
            look=lambda: [
                look_at_host_name(),
                *look_at_ports(),
                *look_at_certificates(credentials),
            ],
        ),
        Section("gpu", required=False, look=lambda: probe_gpus(kind)),
    )


def gpu_kind() -> str:
    """The kind of GPU that this machine is meant for: that of its cupy, else of its GPUs."""
    names = [str(each.name).lower() for each in metadata.distributions() if each.name]
    if any(name.startswith("cupy-cuda") for name in names):
        return "cuda"
    if any(name.startswith("cupy-rocm") for name in names):
        return "rocm"
    return "rocm" if visible_gpus("rocm") and not visible_gpus("cuda") else "cuda"


def look_at_python() -> Finding:
    """Which Python runs this, and on how many cores."""
    version = platform.python_version()
    facts = {"version": version, "executable": sys.executable, "cores": cpu_cores()}
    detail = f"{version} at {sys.executable}, {cpu_cores()} cores"
    return Finding("python", State.OK, detail, facts=facts)


def look_at_memory(folder: Path = _SHARED) -> Finding:
    """Whether processes can share memory: without a name, and in the folder for it."""
    name = "shared memory"
    if not hasattr(os, "memfd_create"):
        return Finding(name, State.OK, "in temporary files")
    try:
        os.close(os.memfd_create("disco-doctor"))
    except OSError as error:
        hint = "let the process call memfd_create: see the container's seccomp profile"
        return Finding(name, State.BROKEN, f"memfd_create fails ({error.strerror})", hint)
    hint = f"mount a tmpfs at {folder}, to which this user may write"
    if not folder.is_dir():
        return Finding(name, State.MISSING, f"there is no {folder}, which MPI uses", hint)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(name, State.BROKEN, f"this user may not write to {folder}", hint)
    room = os.statvfs(folder)
    total, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    facts = {"total_bytes": total, "free_bytes": free}
    detail = f"memfd; {folder} has {free // _MIB} of {total // _MIB} MiB free"
    few = (
        "" if free >= _AMPLE else f"give {folder} 1 GiB (docker run --shm-size=1g) for large arrays"
    )
    return Finding(name, State.OK, detail, few, facts)


def probe_libraries() -> list[Finding]:
    """Imports, in a child process, what the commands and the workers import."""
    hint = f"install them anew: {_INSTALL}"
    checks = dict.fromkeys(("disco-runtime", *_LIBRARIES), hint)
    return ask("disco_server.cli.checkup", checks=checks, timeout=_LIBRARIES_S)


def look_at_library(name: str, module: str) -> Finding:
    """Imports one library in this process."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, State.MISSING, f"{name} is not installed", _INSTALL)
    facts = {"version": version}
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  (what a damaged or too old one raises)
        detail = f"{name} {version} cannot be imported: {first_line(error)}"
        return Finding(name, State.BROKEN, detail, f"install it anew: {_INSTALL}", facts)
    return Finding(name, State.OK, version, facts=facts)


def look_at_tvm() -> Finding:
    """Whether modules that TVM compiled can be loaded."""
    name = "apache-tvm"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        hint = "for modules that TVM compiled, pip install 'disco-runtime[server,tvm]'"
        return Finding(name, State.MISSING, "not installed, and only modules of TVM need it", hint)
    return Finding(name, State.OK, version, facts={"version": version})


def _look_at_disco() -> Finding:
    return Finding("disco-runtime", State.OK, __version__, facts={"version": __version__})


if __name__ == "__main__":
    libraries = [(n, partial(look_at_library, n, module)) for n, module in _LIBRARIES.items()]
    tell([("disco-runtime", _look_at_disco), *libraries])
