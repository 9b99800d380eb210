"""TVM's runtime in this process: loaded when first needed, without its compiler.

The package ``tvm`` itself is not imported: its runtime library, loaded beside the
small package ``tvm_ffi``, is all that compiled modules need, and takes a few
milliseconds instead of a second.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from disco_server.modules.base import FileRefused, Functions

__all__ = ["find_global", "runtime", "serve"]

_lock = threading.Lock()
_served: set[str] = set()
_OWN = "runtime.disco."


@functools.cache
def _load() -> Any:
    from importlib.util import find_spec

    try:
        ffi: Any = import_module("tvm_ffi")
    except ImportError:
        return None
    found = find_spec("tvm")
    if found is None or found.origin is None:
        return None
    folder = Path(os.environ.get("TVM_LIBRARY_PATH") or Path(found.origin).parent / "lib")
    suffix = ".dylib" if os.uname().sysname == "Darwin" else ".so"
    # What is loaded already, as where a program imported tvm, stays as it is.
    ctypes.CDLL(str(folder / f"libtvm_runtime{suffix}"), ctypes.RTLD_GLOBAL)
    return ffi


def runtime() -> Any:
    """The module ``tvm_ffi``, with TVM's runtime library behind it.

    Raises:
        FileRefused: TVM is not installed here.
    """
    with _lock:
        ffi = _load()
    if ffi is None:
        msg = (
            "this needs TVM, which is not installed on this worker: "
            "pip install 'disco-runtime[tvm]'"
        )
        raise FileRefused(msg)
    return ffi


def find_global(name: str) -> Callable[..., Any] | None:
    """Finds a function of TVM's registry; None where there is none, or no TVM."""
    with _lock:
        ffi = _load()
    func = None if ffi is None else ffi.get_global_func(name, allow_missing=True)
    if func is None:
        return None
    from disco_server.modules.tvm_values import TvmFunction

    return TvmFunction(func)


def serve(functions: Functions) -> None:
    """Lets compiled modules call functions of this process by their names.

    TVM's registry is one for the process, and a module looks names up when it
    starts. The collectives of ``runtime.disco`` replace what TVM may have under
    these names; of the others, those that TVM has stay TVM's. Which rank a call
    belongs to is told by its thread.

    Args:
        functions: The functions by name, looked up anew in each call.
    """
    ffi = runtime()
    from disco_server.modules.tvm_values import served

    with _lock:
        for name in functions:
            if name in _served:
                continue
            own = name.startswith(_OWN)
            if own or ffi.get_global_func(name, allow_missing=True) is None:
                ffi.register_global_func(
                    name, served(lambda name=name: functions[name]), override=own
                )
                _served.add(name)
