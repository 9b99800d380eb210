"""Imports the modules that numba compiles so that a machine compiles them once.

numba keeps what it has compiled beside a module's file. What a session brings to its workers may
lie in a folder that ends with the session, so these modules are imported from copies in the
user's cache (``XDG_CACHE_HOME``, else ``~/.cache``), in a folder for this very text of theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["compiler", "import_compiled"]

_MODULES = ("vectors", "kernels", "compiled")
"""In the order in which they import each other."""
_HERE = Path(__file__).parent
_lock = threading.Lock()


@cache
def compiler() -> str:
    """What compiles on this worker, with its release; empty where there is none."""
    try:
        return f"numba {importlib.import_module('numba').__version__}"
    except ImportError:
        return ""


def import_compiled(name: str) -> ModuleType:
    """Imports one of `_MODULES`; the first time on a machine this takes seconds.

    Other processes that need them meanwhile wait, and find what was compiled.
    """
    with _lock:
        return _import(name)


@cache
def _import(name: str) -> ModuleType:
    try:
        folder = _cache_folder()
    except (OSError, RuntimeError):  # no home, or one that this user may not write to
        return importlib.import_module(f"llm.{name}")
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for each in _MODULES[: _MODULES.index(name) + 1]:
            if f"llm.{each}" not in sys.modules:
                _import_copy(each, folder / f"{each}.py")
    return sys.modules[f"llm.{name}"]


def _cache_folder() -> Path:
    """The folder for these very modules and this numba, with the copies in it.

    Raises:
        OSError: It cannot be written, or is another user's.
        RuntimeError: This user has no home.
    """
    texts = {f"{each}.py": (_HERE / f"{each}.py").read_bytes() for each in _MODULES}
    whole = hashlib.sha256(b"\0".join([compiler().encode(), *texts.values()])).hexdigest()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "disco-llm" / whole[:16]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(folder)
    for file, text in texts.items():
        if not (folder / file).exists() or (folder / file).read_bytes() != text:
            new = folder / f"{file}.{os.getpid()}"
            new.write_bytes(text)
            new.replace(folder / file)
    return folder


def _import_copy(name: str, file: Path) -> None:
    full = f"llm.{name}"
    spec = importlib.util.spec_from_file_location(full, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101  (it ends in .py)
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(full, None)
        raise
