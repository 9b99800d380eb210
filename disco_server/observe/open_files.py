"""How many files a daemon may have open, and whether that suffices for what it offers."""

from __future__ import annotations

import contextlib
import logging
import resource

__all__ = ["Need", "most_by_grpc", "raise_limit", "share_of_strangers"]


_OTHERS = 64
"""Ports, pipes, logs and what the libraries open."""


class Need:
    """How many files a daemon may come to have open.

    Args:
        count: How many things it offers of which each needs some.
        each: How many files one of them needs.
        what: What they are, in the plural.
        option: The option that says how many there are.
    """

    def __init__(self, count: int, each: int, what: str, option: str) -> None:
        self.files = (count * each + _OTHERS) * 3 // 2  # a third is the strangers'
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
    return _limit()


def share_of_strangers() -> int:
    """How many files this process may have open for those who have not said who they are."""
    return _limit() // 3


def most_by_grpc(wanted: int) -> int:
    """How many connections a gRPC port may take, so that there is room at the other ports.

    Args:
        wanted: How many it would take where there are files enough.
    """
    return max(1, min(wanted, _limit() - share_of_strangers() - _OTHERS))


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 31
