"""Prints the names that a cupy offers, and those of their parameters, as JSON.

Without arguments, all names of the modules that the stand-in has; with the name of a file of
such output, only the names that are in it: so the library is asked for the stand-in's.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from functools import reduce
from pathlib import Path
from typing import Any

MODULES = (
    "cupy",
    "cupy.linalg",
    "cupy.cuda",
    "cupy.cuda.device",
    "cupy.cuda.memory",
    "cupy.cuda.nccl",
    "cupy.cuda.pinned_memory",
    "cupy.cuda.runtime",
    "cupy.cuda.stream",
)


def parameters(value: Any) -> list[str] | None:
    """The names of the parameters; none if they cannot be known, or are not fixed."""
    if isinstance(value, type) or not callable(value):
        return None
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        first = (value.__doc__ or "").partition("\n")[0]
        inside = re.search(r"^[\w.]+\((.*)\)", first)
        if inside is None:
            return None
        parts = [part.partition("=")[0].split() for part in inside[1].split(",")]
        names = [part[-1] for part in parts if part]
    else:
        if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in found):
            return None
        names = [one.name for one in found]
    return [name.lstrip("*") for name in names if name not in ("self", "*", "/")]


def offered() -> dict[str, Any]:
    """All names of the modules, and of what their classes have."""
    names = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        public = getattr(module, "__all__", [name for name in dir(module) if name[0] != "_"])
        for name in public:
            value = getattr(module, name)
            names[f"{module_name}:{name}"] = parameters(value)
            if isinstance(value, type) and value.__module__.startswith("cupy"):
                for inner in dir(value):
                    if inner[0] != "_":
                        found = inspect.getattr_static(value, inner)
                        found = getattr(value, inner) if callable(found) else None
                        names[f"{module_name}:{name}.{inner}"] = parameters(found)
    return names


def asked(names: dict[str, Any]) -> dict[str, Any]:
    """Those of some names that are there."""
    found = {}
    for name in names:
        module, _, path = name.partition(":")
        try:
            value = reduce(getattr, path.split("."), importlib.import_module(module))
        except AttributeError:
            continue
        found[name] = parameters(value)
    return found


if __name__ == "__main__":
    asked_for = sys.argv[1:]
    made = asked(json.loads(Path(asked_for[0]).read_text())) if asked_for else offered()
    sys.stdout.write(json.dumps(made))
