"""The lines of a program that issue commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType
from typing import TypeAlias

from disco_client.errors import IssuedAt

__all__ = ["Site", "call_site", "locate"]

_PACKAGE = str(Path(__file__).parent) + os.sep

Site: TypeAlias = tuple[CodeType, int]
"""A position in code: cheap to take, and turned into a line when somebody asks."""

_outside: dict[str, bool] = {}
"""File names of code met so far: whether they are outside this package."""


def call_site() -> Site:
    """The innermost code position outside this package."""
    frame = sys._getframe(2)  # noqa: SLF001  (the one way that costs a fraction of a microsecond)
    while not _is_outside(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _is_outside(filename: str) -> bool:
    known = _outside.get(filename)
    if known is None:
        known = _outside[filename] = not filename.startswith(_PACKAGE)
    return known


def locate(site: Site) -> IssuedAt:
    """The file, line and function of a position."""
    code, lasti = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
    return IssuedAt(code.co_filename, line, code.co_name)
