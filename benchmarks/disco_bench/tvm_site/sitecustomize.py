"""Loads the libraries that carry TVM's Disco; its worker processes need them too.

The wheel brings them without loading the second one. Python imports a module of
this name by itself where its folder is on the path.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

_FOUND = importlib.util.find_spec("tvm_ffi")
if _FOUND is not None and _FOUND.origin is not None:
    importlib.import_module("tvm_ffi")
    _FOLDER = Path(_FOUND.origin).parents[1] / "tvm" / "lib"
    for _name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        ctypes.CDLL(str(_FOLDER / _name), ctypes.RTLD_GLOBAL)
