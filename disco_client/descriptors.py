"""Descriptors that a session needs, in a process that may open few more.

gRPC aborts the process where it finds none for its own, or tries to connect until its time is
over. So it is used only where they can be had.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Generator
from itertools import repeat

from disco_client.errors import SessionError

__all__ = [
    "OF_A_CONNECTION",
    "DescriptorRefused",
    "check_descriptors",
    "describe_refusal",
    "opening_descriptors",
]

OF_A_CONNECTION = 20
"""What opening a session over gRPC takes, and copying arrays in it: measured, 8 to 14."""

_REFUSALS = errno.EMFILE, errno.ENFILE


class DescriptorRefused(SessionError):
    """The system opens no more for this process; the message says what to do."""


def describe_refusal(error: OSError) -> str:
    """What to do about an error, to be put behind it; nothing where descriptors were there."""
    if error.errno not in _REFUSALS:
        return ""
    now = ""
    with contextlib.suppress(ImportError):
        import resource  # not where there is no such limit

        now = f", {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} now"
    return f"; raise the limit of file descriptors (ulimit -n{now}), or close some of this process"


@contextlib.contextmanager
def opening_descriptors(what: str) -> Generator[None]:
    """Makes a typed error of a descriptor that the system refuses in the block.

    Args:
        what: What it is for.

    Raises:
        DescriptorRefused: It does.
    """
    try:
        yield
    except OSError as error:
        if not (advice := describe_refusal(error)):
            raise
        msg = f"no file descriptor is left for {what} ({error}){advice}"
        raise DescriptorRefused(msg) from error


def check_descriptors(count: int, what: str) -> None:
    """Makes sure that this process may open so many more, by opening them for a moment.

    Args:
        count: How many.
        what: What they are for.

    Raises:
        DescriptorRefused: It may open fewer.
    """
    made: list[int] = []
    try:
        with opening_descriptors(f"{what}, which needs {count} more"):
            # One call, so that an exception of a signal handler finds all of them in the list.
            made.extend(map(os.open, repeat(os.devnull, count), repeat(os.O_RDONLY | os.O_CLOEXEC)))
    finally:
        deque(map(os.close, made), 0)
