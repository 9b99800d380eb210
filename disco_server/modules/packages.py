"""Packages that clients brought, unpacked so that ``import`` finds them and their data files."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from disco_server.modules.base import FileRefused
from disco_server.modules.loading import import_brought, import_lock, outdate_sources

__all__ = ["import_included", "include", "is_included", "make_importable"]


@dataclass(frozen=True, slots=True)
class _Included:
    """A package that a client brought.

    Attributes:
        digest: The SHA-256 of its archive.
        folder: The folder in which it lies alone.
        origin: Its folder or file at the client.
    """

    digest: str
    folder: Path
    origin: str


_included: dict[str, _Included] = {}


def include(file: Path, digest: str, name: str, origin: str, parent: Path | None) -> None:
    """Unpacks a package and lets this process, and its children, import it.

    What was imported of another version is forgotten, so that the next import finds this one.

    Args:
        file: The archive.
        digest: The SHA-256 of its content.
        name: The name of the package.
        origin: Its folder or file at the client.
        parent: In which folder it is unpacked; None for that of temporary files.

    Raises:
        FileRefused: This process has another package of that name, or the archive is none.
    """
    with import_lock:
        known = _included.get(name)
        if known is not None and known.digest == digest:
            return
        _refuse_another(name, (origin, *((str(known.folder),) if known else ())))
        folder = Path(tempfile.mkdtemp(prefix=f"disco-{name}-", dir=parent))
        try:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(folder)
        except (OSError, zipfile.BadZipFile) as error:
            shutil.rmtree(folder, ignore_errors=True)
            msg = f"cannot unpack package {name!r} on this worker: {error}"
            raise FileRefused(msg) from error
        former = "" if known is None else str(known.folder)
        # The first entry: a daemon may have been started where another version of it is.
        sys.path[:] = [str(folder), *(each for each in sys.path if each != former)]
        importlib.invalidate_caches()
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]
        outdate_sources(name, every=known is not None)
        _included[name] = _Included(digest, folder, origin)


def make_importable(name: str, origin: str) -> None:
    """Lets the program of this process, whose thread the worker is, import a package of its own.

    Raises:
        FileRefused: It has another one of that name.
    """
    with import_lock:
        if not _refuse_another(name, (origin,)):
            sys.path.append(str(Path(origin).parent))
            importlib.invalidate_caches()


def is_included(module_name: str) -> bool:
    """Whether a module is one that a client brought, or in a package of these."""
    return module_name.partition(".")[0] in _included


def import_included(module_name: str) -> ModuleType:
    """Imports a module of a package.

    Raises:
        FileRefused: There is none, or something that it imports is missing.
    """
    known = _included.get(module_name.partition(".")[0])
    name = module_name if known is None else known.origin
    return import_brought(name, lambda: importlib.import_module(module_name))


def _refuse_another(name: str, allowed: tuple[str, ...]) -> bool:
    """Refuses a name that leads elsewhere; whether it leads anywhere.

    Raises:
        FileRefused: It does.
    """
    try:
        found = find_spec(name)
    except ValueError:  # of a file that was brought alone, and gives way
        return True
    if found is None:
        return False
    places = found.submodule_search_locations
    for place in [found.origin or "no file"] if places is None else places:
        real = Path(os.path.realpath(place))
        if not any(real.is_relative_to(os.path.realpath(each)) for each in allowed):
            msg = (
                f"this worker has another module {name!r} already, from {place}; give the package"
                " that is to be included another name"
            )
            raise FileRefused(msg)
    return True
