"""A machine with GPUs for tests, where there is none: its libraries are replaced.

The driver is a small C library under the driver's own name, cupy a package of that
name. What asks them, the child process included, is the real thing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STANDIN = Path(__file__).parents[1] / "standin"


DRIVER = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
int cuInit(unsigned flags) {
    if (getenv("STAND_IN_CRASH")) raise(SIGSEGV);
    if (getenv("STAND_IN_HANG")) pause();
    return number("STAND_IN_INIT", 0);
}
int cuDriverGetVersion(int *out) { *out = number("STAND_IN_CUDA", 13000); return 0; }
int cuDeviceGetCount(int *out) { *out = number("STAND_IN_GPUS", 2); return 0; }
int cuDeviceGet(int *out, int index) { *out = index; return 0; }
int cuDeviceGetName(char *out, int size, int gpu) {
    return snprintf(out, size, "Stand-in %d", gpu) < 0;
}
int cuDeviceTotalMem_v2(size_t *out, int gpu) { *out = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int *out, int which, int gpu) { *out = which == 75 ? 9 : 0; return 0; }
int cuGetErrorName(int code, const char **out) {
    *out = code == 100 ? "CUDA_ERROR_NO_DEVICE" : 0;
    return *out ? 0 : 1;
}
"""

CUPY = {
    "__init__.py": """
import numpy
from cupy import cuda
__version__ = "14.2.0"
class ndarray(numpy.ndarray):
    def get(self):
        return numpy.asarray(self)
def arange(*args, **more):
    if cuda.runtime.fault:
        raise RuntimeError(cuda.runtime.fault)
    return numpy.arange(*args, **more).view(ndarray)
def eye(*args, **more):
    return numpy.eye(*args, **more).view(ndarray)
matmul = numpy.matmul
""",
    "cuda/__init__.py": """
import contextlib
import os
class runtime:
    is_hip = False
    fault = os.environ.get("STAND_IN_FAULT")
    runtimeGetVersion = staticmethod(lambda: 13020)
class nvrtc:
    getVersion = staticmethod(lambda: (13, 2))
Device = contextlib.nullcontext
""",
    "cuda/nccl.py": """
available = True
def get_version():
    return 23203
def get_build_version():
    return 22707
""",
}


class Machine:
    """What child processes of a test find on their machine, as far as GPUs go.

    Attributes:
        folder: Where packages are that they find first.
        libraries: Where the dynamic linker finds libraries first.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.libraries = folder / "packages", folder / "libraries"
        self.folder.mkdir()
        self.libraries.mkdir()
        self._monkeypatch = monkeypatch
        path = filter(None, (str(self.folder), os.environ.get("PYTHONPATH")))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(self.libraries))
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "DISCO_DEVICES"):
            monkeypatch.delenv(name, raising=False)

    def set(self, **variables: object) -> None:
        """Sets variables of the environment."""
        for name, value in variables.items():
            self._monkeypatch.setenv(name, str(value))

    def module(self, name: str, text: str) -> None:
        """Puts a module in front of all others."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cupy(self, init: str | None = None) -> None:
        """Installs a cupy that is numpy; with `init`, one whose import runs that."""
        for name, text in CUPY.items():
            self.module(f"cupy/{name}", text)
        if init is not None:
            self.module("cupy/__init__.py", init)

    def distribution(self, name: str, version: str = "14.2.0") -> None:
        """Lets a distribution look installed."""
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.module(f"{name.replace('-', '_')}-{version}.dist-info/METADATA", text)

    def driver(self) -> None:
        """Installs a driver that sees two GPUs and speaks CUDA 13.0."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler to make a driver of")
        library = self.libraries / "libcuda.so.1"
        command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=DRIVER, text=True, check=True)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of which a test says what is installed there; at first nothing for GPUs."""
    return Machine(tmp_path, monkeypatch)


def cupy_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "cupy"]


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in in cupy's place, new for each test and gone with it.

    Processes that a session starts meanwhile find it too.
    """
    for name in [*os.environ]:
        if name.startswith("STANDIN_") or name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    before = {name: sys.modules.pop(name) for name in cupy_modules()}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(STANDIN), *sys.path])
        import cupy  # pyright: ignore[reportMissingImports]

        assert cupy.STANDIN, "these tests are not meant for a real GPU"
        yield cupy
    if hub := sys.modules.get("cupy._machine.nccl_hub"):
        hub.end_hub()
    for name in cupy_modules():
        del sys.modules[name]
    sys.modules.update(before)
