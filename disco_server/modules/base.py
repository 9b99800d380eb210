"""What a module is, which files may become one, and what is wrong with the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from disco_server.settings import UPLOADS, file_allowed

__all__ = ["FileRefused", "Functions", "LoadNotAllowed", "LoadRules", "LoadedModule", "Loader"]

Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""A module's functions by name; it may make them on first access."""

Loader: TypeAlias = Callable[..., Functions]
"""What the entry-point group ``disco.module_loaders`` names, by suffix.

An entry point's name is the suffix of the files, without its dot. Its object is
called as ``loader(path, device)``, with a `pathlib.Path` that exists and the
rank's `disco_client.Device`, each time a session loads such a file, on each rank
and in the rank's own thread. It returns a mapping from names to functions.
"""


class FileRefused(OSError):
    """A file is missing, cannot be read, or is not what it should be.

    Args:
        message: What is said of it.
        missing: Where a module that it imports would be at the client, beside it, if that is
            what is missing: the path without a suffix.
    """

    def __init__(self, message: str, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class LoadNotAllowed(PermissionError):
    """The node's settings do not let sessions load this file."""


@dataclass(frozen=True, slots=True)
class LoadRules:
    """What a session may load on this node, and where uploads are kept.

    Attributes:
        allow: Folders and files, UPLOADS or ``*`` (see `WorkerConfig.allow_load`).
        cache: The folder of uploaded files; None where there is none.
        cache_bytes: How many bytes of them are kept.
        owner: Who has the session, which may use half of them.
        in_program: Whether the worker is a thread of the program, and has its modules.
    """

    allow: tuple[str, ...] = ()
    cache: Path | None = None
    cache_bytes: int = 0
    owner: str = ""
    in_program: bool = False

    def check_file(self, path: Path) -> Path:
        """Returns a file's real path.

        Raises:
            LoadNotAllowed: It may not be loaded; also where it does not exist, so
                that the error does not disclose which files exist.
        """
        real = Path(os.path.realpath(path))
        # Files that other sessions uploaded are not reachable by path.
        uploaded = self.cache is not None and real.is_relative_to(os.path.realpath(self.cache))
        if uploaded:
            self.check_uploads(path)
        elif not file_allowed(real, self.allow):
            msg = (
                f"loading {str(path)!r} is not allowed on this worker; "
                f"start disco-worker with --allow-load {real.parent}"
            )
            raise LoadNotAllowed(msg)
        return real

    def allowed(self, path: Path) -> Path | None:
        """A file's real path, or what it would be; None where it may not be loaded."""
        try:
            return self.check_file(path)
        except LoadNotAllowed:
            return None

    def check_uploads(self, path: Path) -> None:
        """Makes sure that files which clients upload may be loaded.

        Raises:
            LoadNotAllowed: They may not be loaded.
        """
        if not {UPLOADS, "*"}.intersection(self.allow):
            msg = (
                f"{str(path)!r} is not on this worker as the client has it, or may not be loaded "
                "from there, and loading what clients bring is not allowed; start disco-worker "
                f"with --allow-load {UPLOADS} or --allow-load {path.absolute().parent}"
            )
            raise LoadNotAllowed(msg)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModule:
    """A module in a register.

    Attributes:
        name: Its name in errors: the name of its file.
        functions: What it offers.
    """

    name: str
    functions: Functions

    def __repr__(self) -> str:
        return f"<module {self.name!r}>"
