"""What a machine has for work on GPUs: driver, GPUs, cupy, its compiler, NCCL.

`probe_gpus` looks in a child process, which is this module run as a program, so the
calling process loads no driver and makes no context, and survives a driver that
crashes.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from disco_client.errors import ConfigError
from disco_client.text import many
from disco_server.devices.driver import KINDS, Driver, DriverError, GpuKind
from disco_server.observe.checks import CheckResult, State, ask, first_line, tell

if TYPE_CHECKING:
    from disco_server.settings import NoVisibleGpu

__all__ = [
    "CHECKS",
    "Probe",
    "explain",
    "extra_for",
    "no_driver",
    "no_gpu",
    "no_kernel",
    "pip",
    "probe_gpus",
    "require_devices",
]


# What to do where something for work on GPUs is missing or broken.


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

# Marks in the error text of a kernel.
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
        driver: The major number of the CUDA that the driver supports; 0 if unknown.
    """
    if kind == "rocm":
        return "rocm"
    return "cuda12" if driver == _OLD_CUDA else "cuda13"


def pip(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'disco-runtime[server,{extra}]'"


def no_driver(kind: GpuKind, environ: Mapping[str, str], root: Path) -> str:
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


def no_gpu(kind: GpuKind, code: int, environ: Mapping[str, str], root: Path) -> str:
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


def no_kernel(kind: GpuKind, error: str, driver: int) -> str:
    """What to do where no kernel can be compiled, or none runs.

    Args:
        kind: Of GPU.
        error: The error.
        driver: The major number of the CUDA that the driver supports; 0 if unknown.
    """
    for marks, hint in _MARKS:
        if any(mark in error for mark in marks):
            older = f"in a fresh environment, {pip('cuda12')}"
            return hint.format(tool=kind.tool, older=older if kind.name == "cuda" else "update it")
    if kind.name == "rocm":
        return "install ROCm's development packages: hiprtc, hipcc and rocblas"
    return f"the extra brings the compiler and its headers: {pip(extra_for(kind.name, driver))}"


def in_container(environ: Mapping[str, str], root: Path) -> bool:
    """Whether this process runs in a container, as far as is detectable."""
    marks = (".dockerenv", "run/.containerenv")
    return (
        any((root / mark).exists() for mark in marks)
        or "KUBERNETES_SERVICE_HOST" in environ
        or "container" in environ
    )


def _device_files(kind: GpuKind, root: Path) -> list[Path]:
    return sorted(file for pattern in kind.device_files for file in root.glob(pattern))


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
) -> list[CheckResult]:
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
        kind: GpuKind,
        devices: Iterable[int] = (),
        *,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        open_driver: Callable[[GpuKind], Driver] = Driver,
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

    def checks(self) -> list[tuple[str, Callable[[], CheckResult]]]:
        """The checks by their names."""
        return [
            ("driver", self.driver),
            ("gpus", self.gpus),
            ("cupy", self.cupy),
            ("kernels", self.kernels),
            (self._kind.ccl, self.ccl),
        ]

    def driver(self) -> CheckResult:
        """Whether the driver's library is there, and which version it supports."""
        kind = self._kind
        try:
            self._driver = self._open_driver(kind)
        except OSError as error:
            detail = f"there is no {kind.vendor} driver ({_missing(error)})"
            hint = no_driver(kind, self._environ, self._root)
            return CheckResult("driver", State.MISSING, detail, hint)
        try:
            self._version = self._driver.version()
        except DriverError as error:
            hint = no_gpu(kind, error.code, self._environ, self._root)
            return CheckResult("driver", State.BROKEN, f"the driver does not answer: {error}", hint)
        major, minor = self._version
        facts: dict[str, Any] = {"platform": kind.platform, "version": f"{major}.{minor}"}
        detail = f"speaks {kind.platform} up to {major}.{minor}"
        if release := _release(self._root):
            facts["release"] = release
            detail = f"release {release}, {detail}"
        return CheckResult("driver", State.OK, detail, facts=facts)

    def gpus(self) -> CheckResult:
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
            return CheckResult("gpus", state, f"{detail}: {error}", hint, {"gpus": []})
        facts = {"gpus": [asdict(gpu) for gpu in found]}
        if not found:
            hint = no_gpu(kind, _NO_DEVICE, self._environ, self._root)
            return CheckResult("gpus", State.MISSING, "the driver sees no GPU", hint, facts)
        self._seen = [gpu.index for gpu in found]
        texts = [f"{kind.name}:{g.index} {g.name}, {g.memory_bytes / _GIB:.0f} GiB" for g in found]
        return CheckResult("gpus", State.OK, "; ".join(texts), facts=facts)

    def cupy(self) -> CheckResult:
        """Whether cupy can be imported, and is built for this kind and this driver."""
        kind = self._kind
        packages = _cupy_packages()
        hint = pip(extra_for(kind.name, self._version[0]))
        try:
            cupy: Any = importlib.import_module("cupy")
        except ModuleNotFoundError as error:
            if error.name != "cupy":
                return CheckResult("cupy", State.BROKEN, _why(error), hint)
            return CheckResult("cupy", State.MISSING, "cupy is not installed", hint)
        except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
            return CheckResult(
                "cupy", State.BROKEN, f"cupy cannot be imported: {_why(error)}", hint
            )
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
            return CheckResult("cupy", State.BROKEN, problem[0], problem[1], facts)
        self._cupy = cupy
        detail = f"{version}, built for {kind.platform} {of[0]}.{of[1]}"
        return CheckResult("cupy", State.OK, detail, facts=facts)

    def _unfit(
        self, version: str, built: str, of: tuple[int, int], packages: list[str]
    ) -> tuple[str, str] | None:
        """Why this cupy cannot be used here, and what to do; None where it can."""
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

    def kernels(self) -> CheckResult:
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
            detail = f"there is no {names} among the {many(len(self._seen), 'GPU')} that are seen"
            hint = f"choose from {self._kind.name}:0 to {self._kind.name}:{self._seen[-1]}"
            return CheckResult("kernels", State.MISSING, detail, hint, facts)
        if failed:
            index, error = failed[0]
            more = f" (and {len(failed) - 1} more GPUs)" if len(failed) > 1 else ""
            detail = f"no kernel runs on {self._kind.name}:{index}{more}: {_missing(error)}"
            hint = no_kernel(self._kind, str(error), self._version[0])
            return CheckResult("kernels", State.BROKEN, detail, hint, facts)
        where = "the GPU" if len(wanted) == 1 else f"each of {len(wanted)} GPUs"
        return CheckResult("kernels", State.OK, f"compiled here, run on {where}", facts=facts)

    def _compiler(self) -> CheckResult:
        """Without a GPU, whether at least the compiler can be loaded."""
        try:
            major, minor = self._cupy.cuda.nvrtc.getVersion()
        except Exception as error:  # noqa: BLE001  (missing libraries raise various errors)
            detail = f"cupy's compiler cannot be loaded ({_missing(error)})"
            hint = no_kernel(self._kind, str(error), self._version[0])
            return CheckResult("kernels", State.MISSING, detail, hint)
        detail = f"the compiler {major}.{minor} is there; there is no GPU to try it on"
        return CheckResult("kernels", State.NOT_APPLICABLE, detail)

    def _try(self, index: int) -> Exception | None:
        """Runs a kernel on one GPU; returns what went wrong."""
        cupy = self._cupy
        if index not in self._seen:
            return None  # reported by another check
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

    def ccl(self) -> CheckResult:
        """Whether the collective library can be loaded, and its version."""
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
            return CheckResult(name, State.MISSING, detail, hint)
        version = _ccl_version(int(binding.get_version()))
        built = _ccl_version(int(binding.get_build_version()))
        facts = {"version": version, "built_with": built}
        return CheckResult(name, State.OK, f"{version}, cupy was built with {built}", facts=facts)


_NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE and hipErrorNoDevice


def _skipped(name: str, why: str) -> CheckResult:
    return CheckResult(name, State.NOT_APPLICABLE, f"not looked at: {why}")


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
    """The distributions that contain cupy; only one may be installed."""
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


# Refuses, when a daemon starts, devices that its sessions could not use.
#
# The check costs a child process and some seconds, and spares every session on such a
# node its failure.


_START_S: Final = 30.0
"""A machine that works answers in a few seconds; only a driver that hangs needs all."""


def require_devices(
    devices: Sequence[str], *, where: str = "devices", environ: Mapping[str, str] | None = None
) -> None:
    """Makes sure that ranks can use devices; the CPU is not checked.

    Args:
        devices: Names, ``cpu``, ``cuda:N`` or ``rocm:N``.
        where: Where they were given, for the error.
        environ: The environment that the ranks will have; by default this process's.

    Raises:
        ConfigError: They cannot; it names what is missing and what to do.
    """
    for kind in KINDS:
        wanted = [name for name in devices if name.startswith(f"{kind}:")]
        if not wanted:
            continue
        numbers = [int(name.partition(":")[2]) for name in wanted]
        found = probe_gpus(kind, numbers, timeout=_START_S, environ=environ)
        problems = [each for each in found if each.state is not State.OK]
        if problems:
            named = f"{wanted[0]} to {wanted[-1]}" if len(wanted) > 1 else wanted[0]
            raise ConfigError(_message(where, f"{named} cannot be used on this machine", problems))


def explain(error: NoVisibleGpu) -> ConfigError:
    """Makes the error for a machine without a visible GPU, which says what is missing."""
    found = probe_gpus(error.kind, timeout=_START_S)
    problems = [each for each in found if each.state is not State.OK]
    expected = f"expected a machine with a visible {error.kind} device, found none"
    if not problems:
        # WSL and some containers reach a GPU without the files that were looked for.
        many = next(len(each.facts["gpus"]) for each in found if each.name == "gpus")
        names = f"{error.kind}:{','.join(map(str, range(many)))}"
        return ConfigError(
            f"{error.where}: {expected} in the file system, but the driver sees {many};"
            f" name them: --devices {names}"
        )
    return ConfigError(_message(error.where, expected, problems))


def _message(where: str, what: str, problems: Iterable[CheckResult]) -> str:
    """One line: every cause, what to do about the first, and the command that shows the rest."""
    causes = [each for each in problems if each.state is not State.NOT_APPLICABLE]
    said = "; ".join(each.detail for each in causes)
    return (
        f"{where}: {what}: {said}. What to do: {causes[0].hint};"
        " `disco doctor --gpu` shows every check"
    )
