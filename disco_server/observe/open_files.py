"""How many files a daemon may have open, and whether that suffices for what it offers."""

from __future__ import annotations

import contextlib
import logging
import resource

__all__ = ["Need", "raise_limit"]


class Need:
    """How many files a daemon may come to have open.

    Args:
        count: How many things it offers of which each needs some.
        each: How many files one of them needs.
        what: What they are, in the plural.
        option: The option that says how many there are.
    """

    _OTHERS = 64
    """Ports, pipes, logs and what the libraries open."""

    def __init__(self, count: int, each: int, what: str, option: str) -> None:
        self.files = count * each + self._OTHERS
        self._count, self._what, self._option = count, what, option

    def check(self, logger: logging.Logger) -> None:
        """Raises this process's limit as far as it may, and warns where that is too low."""
        allowed = raise_limit()
        if allowed < self.files:
            logger.warning(
                "%d %s need up to %d open files, and this process may have %d: raise the limit"
                " (ulimit -Hn; LimitNOFILE= of a unit, --ulimit nofile= of a container), or have"
                " fewer (%s)",
                self._count,
                self._what,
                self.files,
                allowed,
                self._option,
            )


def raise_limit() -> int:
    """Raises the limit of open files from the soft to the hard one; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems allow no process as many as their hard limit says.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 31
