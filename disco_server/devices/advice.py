"""What to do where something for work on GPUs is missing or broken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from disco_server.devices.driver import Kind

__all__ = ["extra_for", "no_driver", "no_gpu", "no_kernel", "pip"]

_OLD_CUDA: Final = 12

# Of CUDA's driver API, by its numbers.
_CODES: Final = {
    34: "libcuda.so.1 is the toolkit's stub: take its folder out of LD_LIBRARY_PATH, and install"
    " the driver",
    802: "the GPUs wait for NVIDIA's fabric manager: start the service nvidia-fabricmanager, in"
    " the version of the driver",
    803: "the driver's library and its kernel module differ: restart the machine, or the container",
    804: "the compatibility package of CUDA does not work on these GPUs: take it out of"
    " LD_LIBRARY_PATH, and update the driver",
    999: "reload the kernel module nvidia_uvm, or restart the machine",
}

# Marks in the text of what a kernel met.
_MARKS: Final = (
    (
        ("OutOfMemory", "cudaErrorMemoryAllocation", "out of memory", "hipErrorOutOfMemory"),
        "other processes hold the GPU's memory; {tool} lists them",
    ),
    (
        ("cudaErrorDevicesUnavailable", "busy or unavailable"),
        "another process has the GPU to itself; {tool} shows it, and the compute mode",
    ),
    (
        ("no kernel image", "gpu-architecture", "NoBinaryForGpu"),
        "the GPU is too old for this version of the toolkit: {older}",
    ),
)


def extra_for(kind: str, driver: int = 0) -> str:
    """The extra to install for a kind of GPU.

    Args:
        kind: ``cuda`` or ``rocm``.
        driver: The major number of the CUDA that the driver speaks; 0 if unknown.
    """
    if kind == "rocm":
        return "rocm"
    return "cuda12" if driver == _OLD_CUDA else "cuda13"


def pip(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'disco-runtime[server,{extra}]'"


def no_driver(kind: Kind, environ: Mapping[str, str], root: Path) -> str:
    """What to do where the driver's library cannot be loaded."""
    there = bool(_device_files(kind, root))
    if in_container(environ, root):
        if there and kind.name == "cuda":
            return (
                "the container has the GPUs but not the driver: start it with"
                " NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            )
        return f"start the container with its GPUs ({kind.container})"
    if kind.name == "rocm":
        return f"install AMD's driver and ROCm; {kind.tool} must list the GPUs"
    return f"install NVIDIA's driver; {kind.tool} must list the GPUs"


def no_gpu(kind: Kind, code: int, environ: Mapping[str, str], root: Path) -> str:
    """What to do where the driver is there and sees no GPU, or does not start.

    Args:
        kind: Of GPU.
        code: The error of the driver.
        environ: The environment of the process.
        root: Where the file system starts.
    """
    if kind.name == "cuda" and code in _CODES:
        return _CODES[code]
    if kind.visible in environ:
        return f"see what {kind.visible}={environ[kind.visible]!r} hides, or unset it"
    files = _device_files(kind, root)
    closed = [file for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        groups = "; join the groups render and video" if kind.name == "rocm" else ""
        return f"this user may not open {closed[0]}: see its owner and mode{groups}"
    if in_container(environ, root) and not files:
        return f"start the container with its GPUs ({kind.container})"
    return f"see whether {kind.tool} lists the GPUs, and what the kernel's log says of them"


def no_kernel(kind: Kind, error: str, driver: int) -> str:
    """What to do where no kernel can be compiled, or none runs.

    Args:
        kind: Of GPU.
        error: What was met.
        driver: The major number of the CUDA that the driver speaks; 0 if unknown.
    """
    for marks, hint in _MARKS:
        if any(mark in error for mark in marks):
            older = f"in a fresh environment, {pip('cuda12')}"
            return hint.format(tool=kind.tool, older=older if kind.name == "cuda" else "update it")
    if kind.name == "rocm":
        return "install ROCm's development packages: hiprtc, hipcc and rocblas"
    return f"the extra brings the compiler and its headers: {pip(extra_for(kind.name, driver))}"


def in_container(environ: Mapping[str, str], root: Path) -> bool:
    """Whether this process runs in a container, as far as one can see."""
    marks = (".dockerenv", "run/.containerenv")
    return (
        any((root / mark).exists() for mark in marks)
        or "KUBERNETES_SERVICE_HOST" in environ
        or "container" in environ
    )


def _device_files(kind: Kind, root: Path) -> list[Path]:
    return sorted(file for pattern in kind.device_files for file in root.glob(pattern))
