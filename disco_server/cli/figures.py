"""How the commands write figures for people."""

from __future__ import annotations

__all__ = ["count", "duration", "rate", "size"]

_STEP = 1024.0
_THOUSAND = 1000.0
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TEN = 10


def size(nbytes: float) -> str:
    """Bytes: ``0``, ``512 B``, ``1.5 MiB``; rates in bytes a second are written like this too."""
    if nbytes < 1:
        return "0"
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < _STEP or unit == "TiB":
            break
        nbytes /= _STEP
    whole = unit == "B" or nbytes >= _TEN * _TEN or nbytes == int(nbytes)
    digits = 0 if whole else 1
    return f"{nbytes:.{digits}f} {unit}"


def count(value: float) -> str:
    """How many: ``17``, ``12.3k``, ``4.5M``."""
    for unit, below in (("", _THOUSAND), ("k", _THOUSAND**2), ("M", _THOUSAND**3)):
        if value < below:
            scaled = value / (below / _THOUSAND)
            return f"{scaled:.0f}{unit}" if not unit or scaled >= _TEN**2 else f"{scaled:.1f}{unit}"
    return f"{value / _THOUSAND**3:.1f}G"


def rate(value: float | None, unit: str = "") -> str:
    """How many, or how many bytes, in a second; a dash where it is not known."""
    if value is None:
        return "-"
    return f"{size(value)}/s" if unit == "B" else f"{count(value)}/s"


def duration(seconds: float) -> str:
    """Seconds: ``45 us``, ``1.2 ms``, ``3.4 s``, ``2m05s``, ``3h12m``, ``4d06h``."""
    if seconds >= _DAY:
        return f"{seconds // _DAY:.0f}d{seconds % _DAY // _HOUR:02.0f}h"
    if seconds >= _HOUR:
        return f"{seconds // _HOUR:.0f}h{seconds % _HOUR // _MINUTE:02.0f}m"
    if seconds >= _MINUTE:
        return f"{seconds // _MINUTE:.0f}m{seconds % _MINUTE // 1:02.0f}s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            value = seconds / scale
            return f"{value:.{0 if value >= _TEN else 1}f} {unit}"
    return f"{seconds * 1e6:.0f} us" if seconds > 0 else "0 s"
