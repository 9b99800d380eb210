"""What is refused about files."""

from __future__ import annotations

from os import PathLike, fspath

__all__ = ["FileError", "FileNotAllowed"]


class FileError(ValueError):
    """A file is missing, cannot be read, or is not what it should be.

    Args:
        path: The file.
        problem: What is wrong.
        tensor: The tensor that it is wrong with, if it is one.
    """

    def __init__(self, path: str | PathLike[str], problem: str, *, tensor: str = "") -> None:
        about = f", tensor {tensor!r}" if tensor else ""
        super().__init__(f"{fspath(path)}{about}: {problem}")


class FileNotAllowed(PermissionError):
    """The allow-list does not cover a file."""
