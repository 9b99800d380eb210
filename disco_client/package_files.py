"""Packages of the program as single files that can be sent: which files belong to one."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from disco_client.errors import ConfigError

__all__ = ["INSTALLED", "MAX_PACKAGE_BYTES", "PackageFiles", "beside", "find_package"]

INSTALLED = ("site-packages", "dist-packages")
"""The folders of which workers have their own."""

MAX_PACKAGE_BYTES = 64 << 20
"""No package has more bytes, as each worker gets all of them."""

_OURS = frozenset(("disco_client", "disco_server", "google", "grpc", "numpy", "tqdm"))
"""What a worker itself is made of."""

_WHEN = (1980, 1, 1, 0, 0, 0)
"""Of each file in an archive, so that equal contents are equal archives."""


@dataclass(frozen=True, slots=True)
class PackageFiles:
    """A package, or a module of one file, of this program.

    Attributes:
        name: The name by which it is imported.
        path: Its folder, or its file.
    """

    name: str
    path: Path

    def archive(self) -> bytes:
        """All files in one, in an order of their own, so that equal contents are equal bytes.

        Raises:
            ConfigError: It is larger than `MAX_PACKAGE_BYTES`, or has what cannot be sent.
            OSError: A file cannot be read.
        """
        files = sorted(self._files())
        if not any(file.suffix == ".py" for file in files):
            msg = f"expected a package with Python files, found none in {str(self.path)!r}"
            raise ConfigError(msg)
        self._check_size(files)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                name = file.relative_to(self.path.parent).as_posix()
                entry = zipfile.ZipInfo(name, _WHEN)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
        return content.getvalue()

    def _files(self) -> Iterator[Path]:
        """Its files, without bytecode and hidden ones.

        Raises:
            ConfigError: One is a link out of the package, or compiled for this machine.
        """
        if self.path.is_file():
            yield self.path
            return
        for folder, folders, names in os.walk(self.path, onerror=_raise):
            folders[:] = [each for each in folders if each != "__pycache__" and each[0] != "."]
            for name in folders:
                self._check_link(Path(folder, name))
            for name in names:
                file = Path(folder, name)
                if name.startswith(".") or file.suffix == ".pyc":
                    continue
                self._check_link(file)
                if name.endswith((*EXTENSION_SUFFIXES, ".pyd")):
                    msg = (
                        f"{str(file)!r} is compiled for this machine, and session.include brings"
                        f" Python and data files; install {self.name!r} on the workers"
                    )
                    raise ConfigError(msg)
                if file.is_file():
                    yield file

    def _check_link(self, path: Path) -> None:
        if path.is_symlink() and (path.is_dir() or not self._has(path)):
            what = "a folder" if path.is_dir() else "a file outside of the package"
            msg = (
                f"{str(path)!r} is a link to {what}, {os.path.realpath(path)!r}; put what the"
                f" package {self.name!r} needs of it in its place"
            )
            raise ConfigError(msg)

    def _has(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))

    def _check_size(self, files: list[Path]) -> None:
        sizes = {file: file.stat().st_size for file in files}
        if sum(sizes.values()) > MAX_PACKAGE_BYTES:
            largest = max(files, key=sizes.__getitem__)
            msg = (
                f"expected a package of at most {MAX_PACKAGE_BYTES} bytes, as each worker gets all"
                f" of it; {self.name!r} has {sum(sizes.values())}, and its largest file is"
                f" {str(largest)!r} of {sizes[largest]}; keep data outside of the package"
            )
            raise ConfigError(msg)


def _raise(error: OSError) -> None:
    raise error


def find_package(package: object) -> PackageFiles:
    """Finds a package, or a module of one file, of this program.

    Args:
        package: Its name, its folder or file, or the module.

    Raises:
        ConfigError: There is none, it is installed, or it has a name of Python's or Disco's own.
        TypeError: That is neither a name, nor a path, nor a module.
    """
    if isinstance(package, ModuleType):
        found = _of_spec(package.__name__, package.__spec__)
    elif isinstance(package, Path):
        found = _of_path(package)
    elif isinstance(package, str):
        by_path = os.sep in package or package.endswith(".py")
        found = _of_path(Path(package)) if by_path else _of_name(package)
    else:
        msg = f"expected the name or the path of a package, or a module, got {package!r}"
        raise TypeError(msg)
    if found.name in sys.stdlib_module_names or found.name in _OURS:
        whose = "Python" if found.name in sys.stdlib_module_names else "Disco"
        msg = (
            f"workers cannot import {str(found.path)!r} as {found.name!r}, a name of {whose}'s own;"
            " rename it"
        )
        raise ConfigError(msg)
    return found


def _of_path(path: Path) -> PackageFiles:
    is_module = path.suffix == ".py" and path.is_file()
    name = path.stem if is_module else path.absolute().name
    if not (is_module or path.is_dir()) or not name.isidentifier():
        msg = (
            "expected the folder of a package, or a Python file, whose name can be imported, got"
            f" {str(path)!r}"
        )
        raise ConfigError(msg)
    return PackageFiles(name, path.absolute())


def _of_name(name: str) -> PackageFiles:
    _check_top(name)
    try:
        found = find_spec(name)
    except ValueError:  # it is imported, and does not know from where
        found = None
    if found is None:
        msg = (
            f"expected a package or a module of this program, found no {name!r} where it imports"
            " from (sys.path); give its path, as in session.include('src/helpers')"
        )
        raise ConfigError(msg)
    return _of_spec(name, found)


def _check_top(name: str) -> None:
    top, _, inner = name.partition(".")
    if inner:
        msg = f"{name!r} is a part of package {top!r}; session.include({top!r}) brings all of it"
        raise ConfigError(msg)


def _of_spec(name: str, found: ModuleSpec | None) -> PackageFiles:
    _check_top(name)
    several = None if found is None else found.submodule_search_locations
    places = [*several] if several is not None else [found.origin or ""] if found else []
    if len(places) != 1:
        parts = f", which is in {', '.join(places)}" if places else ", which knows no file of it"
        msg = f"expected a package in one folder, got {name!r}{parts}; give the path of one folder"
        raise ConfigError(msg)
    path = Path(places[0])
    if any(part in INSTALLED for part in path.parts):
        msg = f"{name!r} is installed here, in {str(path)!r}; install it on the workers as well"
        raise ConfigError(msg)
    known = path.is_dir() if several is not None else path.suffix == ".py" and path.is_file()
    if not known and name not in sys.stdlib_module_names:
        msg = f"expected a package, or a module of one Python file, got {name!r} from {places[0]!r}"
        raise ConfigError(msg)
    return PackageFiles(name, path.absolute())


def beside(path: str) -> str:
    """What brings a module that workers lack, as an argument of ``session.include`` is written.

    Args:
        path: What would be its folder, or with a suffix its file, beside the file that imports it.

    Returns:
        Its name, where this program finds it by that, or its path; "" where there is none.
    """
    folder, file = Path(path), Path(f"{path}.py")
    here = folder if folder.is_dir() and any(folder.glob("*.py")) else file
    if not here.exists():
        return ""
    try:
        by_name = _of_name(folder.name).path.samefile(here)
    except (ConfigError, OSError):
        by_name = False
    return repr(folder.name if by_name else str(here))
