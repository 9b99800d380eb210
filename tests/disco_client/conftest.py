"""What the tests of the client share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from disco_client.arrays.shared_memory import allocate
from disco_client.descriptors import Descriptor


@pytest.fixture
def memory() -> Iterator[Callable[[int], int]]:
    """Makes shared memory of so many bytes that is closed after the test."""
    fds: list[Descriptor] = []

    def make(nbytes: int) -> int:
        fds.append(allocate(nbytes))
        return fds[-1].fileno()

    yield make
    for fd in fds:
        fd.close()
