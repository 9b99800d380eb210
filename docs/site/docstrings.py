"""Docstrings as Markdown: roles and literal blocks of reStructuredText are rewritten."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["PlainDocstrings"]

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|exc|data):`~?(?:([^`<]+?) <[^`>]+>|([^`]+))`")
_LITERAL = re.compile(r"(\S)?::$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring that is read for the reference."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Takes one object with its docstring, before sections are looked for."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = _as_markdown(obj.docstring.value)


def _as_markdown(text: str) -> str:
    text = _ROLE.sub(lambda role: f"`{role[1] or role[2]}`", text)
    return _LITERAL.sub(lambda end: f"{end[1]}:" if end[1] else "", text)
