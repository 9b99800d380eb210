"""Loads compiled TVM libraries: Relax executables for its virtual machine, and plain ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disco_client.wire.values import Device
from disco_server.modules.base import FileRefused, Functions
from disco_server.modules.tvm_runtime import runtime, serve
from disco_server.modules.tvm_values import TvmFunction

__all__ = ["ModuleFunctions", "load"]

_CPU = 1
_POOLED = 2
_HOST = (_CPU, 0, _POOLED)
_START = "vm_load_executable"
_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
_SOURCES = (".o", ".c", ".cc", ".cpp")

_lock = threading.Lock()
_libraries: dict[tuple[Path, str], tuple[Any, tuple[str, ...]]] = {}
_digests: dict[Path, str] = {}


class ModuleFunctions(Mapping[str, Callable[..., Any]]):
    """The functions of a module of TVM.

    Attributes:
        module: The module itself.
    """

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        """Takes a module and the names to show; it may have further functions."""
        self.module = module
        self._names = tuple(names)

    def __getitem__(self, name: str) -> TvmFunction:
        if not self.module.implements_function(name):
            raise KeyError(name)
        return TvmFunction(self.module.get_function(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(path: Path, digest: str, device: Device, functions: Functions) -> Functions:
    """Loads a library once in this process, and starts a virtual machine for this rank.

    Args:
        path: A ``.so``, or a ``.tar`` of object files that is linked first.
        digest: The SHA-256 of its content, in hexadecimal.
        device: Where it runs.
        functions: What it may call by name, the collectives among them.

    Raises:
        FileRefused: It is no library of TVM, or needs functions that are not there,
            or TVM or a linker is missing, or the device is a GPU.
    """
    if device.kind != "cpu":
        msg = (
            f"{path.name} is a library of TVM, which runs on CPUs here, and this worker computes"
            f" on {device}; load it in a session whose slots are CPUs"
        )
        raise FileRefused(msg)
    ffi = runtime()
    serve(functions)
    with _lock:
        known = _libraries.get((path, digest))
        if known is None:
            known = _open(ffi, path, digest)
            # Never unloaded: its memory may outlive every reference to it.
            _libraries[path, digest] = known
    library, names = known
    if not library.implements_function(_START):
        return ModuleFunctions(library, names)
    machine = library.get_function(_START)()
    try:
        machine.get_function("vm_initialization")(*_HOST, *_HOST)
    except Exception as error:
        msg = f"cannot start {path.name}: {error}"
        raise FileRefused(msg) from error
    return ModuleFunctions(machine, names)


def _open(ffi: Any, path: Path, digest: str) -> tuple[Any, tuple[str, ...]]:
    """Loads a library into the process; returns it and the names of its functions.

    The system's loader takes a path it has loaded before for the same library,
    whatever is in the file by now, so that another content is loaded from a copy.
    """
    with tempfile.TemporaryDirectory(prefix="disco-load-") as folder:
        library = path
        if path.suffix == ".tar":
            library = _link(path, Path(folder))
        elif _digests.setdefault(path, digest) != digest:
            library = Path(folder, f"{digest}.so")
            shutil.copyfile(path, library)
        try:
            module = ffi.load_module(str(library))
        except (RuntimeError, OSError, ValueError) as error:
            msg = f"expected a library that TVM compiled in {str(path)!r}, got: {error}"
            raise FileRefused(msg) from error
        return module, _names_of(module, library)


def _link(path: Path, folder: Path) -> Path:
    """Makes a shared library of the object files in an archive."""
    parts: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and member.name.endswith(_SOURCES):
                    # By number: names in an archive may lead anywhere.
                    part = folder / f"{len(parts)}{Path(member.name).suffix}"
                    part.write_bytes(content.read())
                    parts.append(str(part))
    except (tarfile.TarError, EOFError, OSError) as error:
        msg = f"expected an archive of object files in {str(path)!r}, got: {error}"
        raise FileRefused(msg) from error
    if not parts:
        msg = f"expected object files in {str(path)!r}, found none"
        raise FileRefused(msg)
    library = folder / "linked.so"
    _run_linker([_compiler(path), "-shared", "-fPIC", "-o", str(library), *parts], path)
    return library


def _run_linker(command: Sequence[str], path: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip()[-1000:]
        msg = f"cannot link {str(path)!r}: {command[0]} exited with {done.returncode}: {said}"
        raise FileRefused(msg)


def _compiler(path: Path) -> str:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    msg = (
        f"linking {str(path)!r} needs a compiler on this worker, found none of "
        f"{', '.join(_COMPILERS)}; export the module as .so instead"
    )
    raise FileRefused(msg)


def _names_of(library: Any, path: Path) -> tuple[str, ...]:
    """The names of a library's functions, for messages."""
    if library.implements_function("as_text"):
        text = str(library.get_function("as_text")())
        return tuple(re.findall(r"^@(\S+):$", text, re.MULTILINE))
    # Functions of plain libraries are symbols with this prefix.
    names = re.findall(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)", path.read_bytes())
    return tuple(sorted({name.decode() for name in names}))
