"""What a machine has for work on GPUs: driver, GPUs, cupy, its compiler, NCCL.

`probe_gpus` looks in a child process, which is this module run as a program, so the
process that asks loads no driver and makes no context, and survives a driver that
does not.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from disco_server.devices.advice import extra_for, no_driver, no_gpu, no_kernel, pip
from disco_server.devices.driver import KINDS, Driver, DriverError, Kind
from disco_server.observe.findings import Finding, State, ask, first_line, tell

__all__ = ["CHECKS", "Probe", "probe_gpus"]

PROBE_S: Final = 60.0
"""Seconds until the child counts as stuck; eight cold GPUs take some ten of them."""

CHECKS: Final = ("driver", "gpus", "cupy", "kernels", "ccl")
"""The checks in their order; each needs something of those before it."""

_CRASH_HINTS: Final = {
    "driver": "see whether {tool} works; a driver that hangs or crashes wants to be reloaded, or"
    " the machine to be restarted",
    "gpus": "see whether {tool} works and what the kernel's log says of the GPUs",
    "cupy": "see what `python -c 'import cupy'` prints, and install cupy anew: {pip}",
    "kernels": "see whether {tool} works and what the kernel's log says of the GPUs",
    "ccl": "see what `python -c 'import cupy.cuda.nccl'` prints, and install it anew: {pip}",
}
_MIN_CUPY: Final = 14
_SIDE: Final = 4
_GIB: Final = 1 << 30


def probe_gpus(
    kind: str,
    devices: Iterable[int] = (),
    *,
    timeout: float = PROBE_S,
    environ: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Finds out, in a child process, what there is for one kind of GPU.

    Args:
        kind: ``cuda`` or ``rocm``.
        devices: On which GPUs a kernel is tried; none for all.
        timeout: Seconds until the child counts as stuck.
        environ: The child's environment; by default this process's.

    Returns:
        A finding for each of CHECKS; the last has the name of the library, ``nccl``
        or ``rccl``. The facts of "gpus" are ``gpus``, a list of what `Gpu` has.
    """
    what = KINDS[kind]
    words = {"tool": what.tool, "pip": pip(extra_for(kind))}
    hints = {
        what.ccl if name == "ccl" else name: hint.format(**words)
        for name, hint in _CRASH_HINTS.items()
    }
    arguments = [kind, *map(str, devices)]
    return ask(
        "disco_server.devices.probe", arguments, checks=hints, timeout=timeout, environ=environ
    )


class Probe:
    """The checks of one kind of GPU, made in this process, in their order.

    Args:
        kind: Of GPU.
        devices: On which GPUs a kernel is tried; none for all.
        environ: The environment of this process.
        root: Where the file system starts.
        open_driver: Loads the driver.
    """

    def __init__(
        self,
        kind: Kind,
        devices: Iterable[int] = (),
        *,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        open_driver: Callable[[Kind], Driver] = Driver,
    ) -> None:
        self._kind = kind
        self._wanted = list(devices)
        self._environ = environ
        self._root = root
        self._open_driver = open_driver
        self._driver: Driver | None = None
        self._version = (0, 0)
        self._seen: list[int] = []
        self._cupy: Any = None

    def checks(self) -> list[tuple[str, Callable[[], Finding]]]:
        """The checks by their names."""
        return [
            ("driver", self.driver),
            ("gpus", self.gpus),
            ("cupy", self.cupy),
            ("kernels", self.kernels),
            (self._kind.ccl, self.ccl),
        ]

    def driver(self) -> Finding:
        """Whether the driver's library is there, and what it speaks."""
        kind = self._kind
        try:
            self._driver = self._open_driver(kind)
        except OSError as error:
            detail = f"there is no {kind.vendor} driver ({_missing(error)})"
            hint = no_driver(kind, self._environ, self._root)
            return Finding("driver", State.MISSING, detail, hint)
        try:
            self._version = self._driver.version()
        except DriverError as error:
            hint = no_gpu(kind, error.code, self._environ, self._root)
            return Finding("driver", State.BROKEN, f"the driver does not answer: {error}", hint)
        major, minor = self._version
        facts: dict[str, Any] = {"platform": kind.platform, "version": f"{major}.{minor}"}
        detail = f"speaks {kind.platform} up to {major}.{minor}"
        if release := _release(self._root):
            facts["release"] = release
            detail = f"release {release}, {detail}"
        return Finding("driver", State.OK, detail, facts=facts)

    def gpus(self) -> Finding:
        """Which GPUs this process sees."""
        if self._driver is None or self._version == (0, 0):
            return _skipped("gpus", "there is no driver to ask")
        kind = self._kind
        try:
            self._driver.start()
            found = self._driver.gpus()
        except DriverError as error:
            hint = no_gpu(kind, error.code, self._environ, self._root)
            none = error.code == _NO_DEVICE
            state = State.MISSING if none else State.BROKEN
            detail = "the driver sees no GPU" if none else "the driver does not start"
            return Finding("gpus", state, f"{detail}: {error}", hint, {"gpus": []})
        facts = {"gpus": [asdict(gpu) for gpu in found]}
        if not found:
            hint = no_gpu(kind, _NO_DEVICE, self._environ, self._root)
            return Finding("gpus", State.MISSING, "the driver sees no GPU", hint, facts)
        self._seen = [gpu.index for gpu in found]
        texts = [f"{kind.name}:{g.index} {g.name}, {g.memory_bytes / _GIB:.0f} GiB" for g in found]
        return Finding("gpus", State.OK, "; ".join(texts), facts=facts)

    def cupy(self) -> Finding:
        """Whether cupy can be imported, and is built for this kind and this driver."""
        kind = self._kind
        packages = _cupy_packages()
        hint = pip(extra_for(kind.name, self._version[0]))
        try:
            cupy: Any = importlib.import_module("cupy")
        except ModuleNotFoundError as error:
            if error.name != "cupy":
                return Finding("cupy", State.BROKEN, _why(error), hint)
            return Finding("cupy", State.MISSING, "cupy is not installed", hint)
        except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
            return Finding("cupy", State.BROKEN, f"cupy cannot be imported: {_why(error)}", hint)
        runtime = cupy.cuda.runtime
        built = "rocm" if runtime.is_hip else "cuda"
        number = int(runtime.runtimeGetVersion())
        of = (number // 10**7, number // 10**5 % 100) if runtime.is_hip else _cuda(number)
        version = str(cupy.__version__)
        facts = {
            "version": version,
            "built_for": built,
            "platform_version": f"{of[0]}.{of[1]}",
            "packages": packages,
        }
        if problem := self._unfit(version, built, of, packages):
            return Finding("cupy", State.BROKEN, problem[0], problem[1], facts)
        self._cupy = cupy
        detail = f"{version}, built for {kind.platform} {of[0]}.{of[1]}"
        return Finding("cupy", State.OK, detail, facts=facts)

    def _unfit(
        self, version: str, built: str, of: tuple[int, int], packages: list[str]
    ) -> tuple[str, str] | None:
        """Why this cupy does not do here, and what to do; None where it does."""
        kind, driver = self._kind, self._version
        wanted = pip(extra_for(kind.name, driver[0]))
        afresh = f"in a fresh environment, {wanted}"
        major = version.partition(".")[0]
        if len(packages) > 1:
            return f"{' and '.join(packages)} overwrite each other's files", afresh
        if built != kind.name:
            platform = KINDS[built].platform
            return f"cupy {version} is built for {platform}, not for {kind.platform}", afresh
        if major.isdigit() and int(major) < _MIN_CUPY:
            return f"cupy {version} is too old, {_MIN_CUPY} is needed", wanted
        if kind.name == "cuda" and driver[0] and driver[0] < of[0]:
            most = f"the driver only speaks CUDA up to {driver[0]}.{driver[1]}"
            why = f"cupy {version} is built for CUDA {of[0]}.{of[1]}, and {most}"
            return why, f"update the driver, or {afresh}"
        return None

    def kernels(self) -> Finding:
        """Whether a kernel can be compiled and runs on each GPU, with a product of matrices."""
        if self._cupy is None:
            return _skipped("kernels", "there is no cupy to compile one")
        if not self._seen:
            return self._compiler()
        wanted = self._wanted or self._seen
        absent = [index for index in wanted if index not in self._seen]
        failed = [(index, error) for index in wanted if (error := self._try(index)) is not None]
        facts = {"devices": [index for index in wanted if index not in {i for i, _ in failed}]}
        if absent:
            names = ", ".join(f"{self._kind.name}:{index}" for index in absent)
            detail = f"there is no {names} among the {len(self._seen)} GPUs that are seen"
            hint = f"choose from {self._kind.name}:0 to {self._kind.name}:{self._seen[-1]}"
            return Finding("kernels", State.MISSING, detail, hint, facts)
        if failed:
            index, error = failed[0]
            more = f" (and {len(failed) - 1} more GPUs)" if len(failed) > 1 else ""
            detail = f"no kernel runs on {self._kind.name}:{index}{more}: {_missing(error)}"
            hint = no_kernel(self._kind, str(error), self._version[0])
            return Finding("kernels", State.BROKEN, detail, hint, facts)
        many = "the GPU" if len(wanted) == 1 else f"each of {len(wanted)} GPUs"
        return Finding("kernels", State.OK, f"compiled here, run on {many}", facts=facts)

    def _compiler(self) -> Finding:
        """Without a GPU, whether at least the compiler can be loaded."""
        try:
            major, minor = self._cupy.cuda.nvrtc.getVersion()
        except Exception as error:  # noqa: BLE001  (what is not found raises errors of its own)
            detail = f"cupy's compiler cannot be loaded ({_missing(error)})"
            hint = no_kernel(self._kind, str(error), self._version[0])
            return Finding("kernels", State.MISSING, detail, hint)
        detail = f"the compiler {major}.{minor} is there; there is no GPU to try it on"
        return Finding("kernels", State.NOT_APPLICABLE, detail)

    def _try(self, index: int) -> Exception | None:
        """Runs a kernel on one GPU; returns what went wrong."""
        cupy = self._cupy
        if index not in self._seen:
            return None  # told by itself
        try:
            with cupy.cuda.Device(index):
                # float16, because its kernels include the toolkit's own headers.
                half = cupy.arange(_SIDE * _SIDE, dtype="float16").reshape(_SIDE, _SIDE)
                product = cupy.matmul(
                    (half * 2).astype("float32"), cupy.eye(_SIDE, dtype="float32")
                )
                right = product.get().reshape(-1).tolist() == [2.0 * i for i in range(_SIDE**2)]
        except Exception as error:  # noqa: BLE001  (cupy, its compiler and CUDA have many)
            return error
        return None if right else ValueError("the result is wrong")

    def ccl(self) -> Finding:
        """Whether the collective library can be loaded, in which version."""
        name = self._kind.ccl
        if self._cupy is None:
            return _skipped(name, "cupy, by which it is called, is not usable")
        hint = pip(extra_for(self._kind.name, self._version[0]))
        if self._kind.name == "rocm":
            hint = "install ROCm's package rccl"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            binding: Any = importlib.import_module("cupy.cuda.nccl")
        if not binding.available:
            reasons = [_reason(str(warning.message)) for warning in caught]
            why = next(filter(None, reasons), "cupy does not find it")
            detail = f"{name.upper()} cannot be loaded ({why})"
            return Finding(name, State.MISSING, detail, hint)
        version = _ccl_version(int(binding.get_version()))
        built = _ccl_version(int(binding.get_build_version()))
        facts = {"version": version, "built_with": built}
        return Finding(name, State.OK, f"{version}, cupy was built with {built}", facts=facts)


_NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE and hipErrorNoDevice


def _skipped(name: str, why: str) -> Finding:
    return Finding(name, State.NOT_APPLICABLE, f"not looked at: {why}")


def _release(root: Path) -> str:
    """The release of NVIDIA's kernel module; empty where there is none."""
    try:
        words = (root / "proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    numbers = (word for word in words if word.replace(".", "").isdigit() and "." in word)
    return next(numbers, "")


def _cuda(number: int) -> tuple[int, int]:
    return number // 1000, number % 1000 // 10


def _ccl_version(number: int) -> str:
    """22707 is 2.27.7; before 2.9, 2708 was 2.7.8."""
    base = 10_000 if number >= 10_000 else 1000  # noqa: PLR2004  (the first number of that form)
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _cupy_packages() -> list[str]:
    """The distributions that hold a cupy; more than one is one too many."""
    names = {str(each.name).lower() for each in metadata.distributions() if each.name}
    prefixes = ("cupy-cuda", "cupy-rocm", "amd-cupy")
    return sorted(name for name in names if name == "cupy" or name.startswith(prefixes))


def _why(error: BaseException) -> str:
    """The line of an exception that says what happened; cupy frames its own in banners."""
    lines = [line.strip() for line in str(error).splitlines()]
    if "Original error:" in lines[:-1]:
        return lines[lines.index("Original error:") + 1]
    return first_line(error)


def _missing(error: BaseException) -> str:
    """The same in few words, where it says that a library is missing."""
    text = str(error)
    names = re.findall(r"lib[\w+-]+\.so[.\d]*", text)
    if names and re.search(r"[Nn]o such file|Failure finding", text):
        return f"{names[0]} is not found"
    return _why(error)


def _reason(warning: str) -> str:
    """What cupy's warning of a library that cannot be loaded gives as its reason."""
    _, found, rest = warning.partition("Reason: ")
    return _missing(ImportError(rest.splitlines()[0])) if found and rest else ""


def _main() -> None:
    # A kernel that an earlier run compiled would hide that the compiler is gone.
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    kind, *devices = sys.argv[1:]
    tell(Probe(KINDS[kind], [int(index) for index in devices]).checks())


if __name__ == "__main__":
    _main()
