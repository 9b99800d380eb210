"""What the tests of the client share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from disco_client.arrays.shared_memory import allocate


@pytest.fixture
def memory() -> Iterator[Callable[[int], int]]:
    """Makes shared memory of so many bytes that is closed after the test."""
    fds: list[int] = []

    def make(nbytes: int) -> int:
        fds.append(allocate(nbytes))
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)
