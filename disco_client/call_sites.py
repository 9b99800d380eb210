"""The lines of a program that issue commands, and the scopes to which they belong."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType
from typing import TypeAlias

from disco_client.errors import IssuedAt
from disco_client.scopes import NO_SCOPE, Scope

__all__ = ["Site", "call_site", "locate", "pass_over"]

_PACKAGE = str(Path(__file__).parent) + os.sep

Site: TypeAlias = tuple[CodeType, int, Scope]
"""A position in code, cheap to take and turned into a line on request; and the scope."""

_inside: set[str] = set()
_outside: set[str] = set()
"""File names of code seen so far, in this package and outside of it."""


def call_site(scope: Scope = NO_SCOPE) -> Site:
    """The innermost code position outside this package, with the scope that issues there."""
    frame = sys._getframe(2)  # noqa: SLF001  (the one way that costs a fraction of a microsecond)
    code = frame.f_code
    while code.co_filename in _inside or not _is_outside(code.co_filename):
        back = frame.f_back
        if back is None:
            break
        frame, code = back, back.f_code
    return code, frame.f_lasti, scope


def pass_over(filename: str) -> None:
    """Takes a file for a part of this package: what it issues is issued where it was called.

    Args:
        filename: As its code has it.
    """
    _outside.discard(filename)
    _inside.add(filename)


def _is_outside(filename: str) -> bool:
    if filename in _outside:
        return True
    met = _inside if filename.startswith(_PACKAGE) else _outside
    met.add(filename)
    return met is _outside


def locate(site: Site) -> IssuedAt:
    """The file, line and function of a position."""
    code, lasti, _ = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
    return IssuedAt(code.co_filename, line, code.co_name)
