"""Which processes of a system that is measured beside Disco are still there."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["processes_of"]


def processes_of(python: Path) -> list[psutil.Process]:
    """The processes that run with what is installed beside a Python.

    Args:
        python: The interpreter of the system's environment.
    """
    folder = str(python.parents[1])
    return [each for each in psutil.process_iter() if _is_in(each, folder)]


def _is_in(process: psutil.Process, folder: str) -> bool:
    try:
        return any(folder in part for part in process.cmdline())
    except psutil.Error:
        return False
