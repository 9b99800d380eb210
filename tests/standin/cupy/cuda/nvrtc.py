"""The compiler of kernels, of which the stand-in has the version alone."""

from __future__ import annotations

__all__ = ["getVersion"]


def getVersion() -> tuple[int, int]:
    """Its major and its minor version."""
    return 13, 2
