"""What is common to tensors in files of all formats."""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_server.storage.files import FileError
from disco_server.storage.folders import Where

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["LIBRARY_ERRORS", "TensorFile", "load_library", "nearest_names"]

LIBRARY_ERRORS = (OSError, RuntimeError, ValueError, TypeError, LookupError)
"""What the libraries of formats raise for files that are malformed, or that they do not know."""

_NAMED = 5


@dataclass(frozen=True, slots=True)
class TensorFile(ABC):
    """A tensor in a file or an object, of which each worker reads its own part.

    Attributes:
        path: The file.
        shape: The tensor's extents.
        dtype: The name of its dtype.
    """

    path: Where
    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        """Reads a part.

        Args:
            bounds: Of the part.
            allowed: What may be read (see `file_allowed`).

        Raises:
            FileNotAllowed: The allow-list does not cover the file.
            FileError: It is gone or was cut short, or the read failed.
        """


def nearest_names(name: str, names: Iterable[str]) -> str:
    """Lists some of the names that there are, those like the missing one first."""
    known = list(names)
    if not known:
        return "none"
    near = difflib.get_close_matches(name, known, _NAMED, 0)
    return ", ".join(map(repr, near)) + (", ..." if len(known) > len(near) else "")


def load_library(name: str, extra: str, path: str | PathLike[str]) -> Any:
    """Imports the library of a format when a file of it is met.

    Args:
        name: Of the library.
        extra: The extra of Disco's package that brings it.
        path: The file, for the error.

    Raises:
        FileError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = (
            f"this format needs the package {name.partition('.')[0]}, which cannot be imported on"
            f" this worker ({error}): pip install 'disco-runtime[{extra}]'"
        )
        raise FileError(path, problem) from None
