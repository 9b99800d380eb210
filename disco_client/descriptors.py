"""Descriptors that a session needs: who has them, and whether this process may open more."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, repeat, starmap, tee
from operator import itemgetter
from typing import Any, TypeVar

from disco_client.errors import SessionError

__all__ = [
    "OF_A_CONNECTION",
    "WITH_DESCRIPTORS",
    "Descriptor",
    "DescriptorRefused",
    "check_descriptors",
    "describe_refusal",
    "opened",
    "opening_descriptors",
    "owned_in",
    "receive_with_descriptors",
]

_Message = TypeVar("_Message", bound="tuple[Any, ...]")


# Who has a descriptor.
#
# An exception of a signal handler comes between the call that makes a descriptor and the
# assignment that keeps its number, or before a `finally` closes it. So no step in Python has
# the number alone: the call in C that makes one puts it into an object that closes it.


class Descriptor(io.FileIO):
    """An open descriptor, which is closed when nothing refers to this object any more.

    It is used as a number, by ``fileno()``. To drop it is no mistake, so Python warns of none.
    """

    _finalizing = False  # FileIO has a field of that name, and warns where it is set


_own = partial(Descriptor, mode="r+b")
_numbers = struct.Struct("i").iter_unpack

WITH_DESCRIPTORS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""Receives descriptors that child processes do not inherit, on systems that have the flag."""


def opened(make: Callable[..., int], *arguments: object) -> Descriptor:
    """Calls a function in C that makes a descriptor.

    Args:
        make: It, such as ``os.dup``.
        arguments: What it takes.
    """
    return next(map(_own, starmap(make, (arguments,))))


def owned_in(ancillary: Iterable[Iterable[tuple[int, int, bytes]]]) -> Iterator[Descriptor]:
    """The descriptors that have come with messages; each may be taken from here once.

    Args:
        ancillary: The ancillary data of each message, received WITH_DESCRIPTORS.
    """
    contents = map(itemgetter(2), chain.from_iterable(ancillary))
    return starmap(_own, chain.from_iterable(map(_numbers, contents)))


def receive_with_descriptors(
    receive: Callable[..., _Message], *arguments: object
) -> tuple[_Message, list[Descriptor]]:
    """Receives a message, and the descriptors that come with it.

    Args:
        receive: The method of a socket, such as ``recvmsg``.
        arguments: What it takes, WITH_DESCRIPTORS last.
    """
    messages, again = tee(starmap(receive, (arguments,)))
    fds = owned_in(map(itemgetter(1), again))
    return next(zip(messages, map(list, (fds,)), strict=False))


# How many a process may open.
#
# gRPC aborts the process where it finds none for its own, or tries to connect until its time is
# over. So it is used only where they can be had.

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
