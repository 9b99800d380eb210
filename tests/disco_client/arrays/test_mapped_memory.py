"""Shared memory that comes again stays mapped."""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.shared_memory import read_shared, write_shared

MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or not Path("/proc/self/maps").exists(),
    reason="the system has no anonymous memory, or no /proc",
)


@pytest.fixture
def mapped():
    """Up to 4 MiB stay mapped."""
    made = MappedMemory(keep_bytes=4 * MIB)
    yield made
    made.close()


def mappings(fd):
    """How often this process maps some memory."""
    return Path("/proc/self/maps").read_text().count(str(Path(f"/proc/self/fd/{fd}").readlink()))


def random(nbytes, seed=1):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


def test_what_comes_again_is_mapped(mapped, memory):
    """The first time it is not; each time the bytes are where they belong, also after others."""
    fd = memory(2 * MIB)
    for seed in (1, 2, 3):
        data = random(2 * MIB - 5, seed)
        mapped.write(fd, memoryview(data))
        assert mappings(fd) == (seed > 1)
        into = np.zeros(2 * MIB - 5, "u1")
        read_shared(fd, memoryview(into))
        np.testing.assert_array_equal(into, data)
        write_shared(fd, memoryview(data[::-1].copy()))
        mapped.read(fd, memoryview(into))
        np.testing.assert_array_equal(into, data[::-1])
    mapped.close()
    assert mappings(fd) == 0


def test_pieces_of_one_array_are_one_time(mapped, memory):
    """An array that is copied piece by piece is seen once, and all its pieces come."""
    fd, data = memory(3 * MIB), random(3 * MIB)
    for maps in (0, 1, 1):
        for at in range(0, data.size, 700_000):
            mapped.write(fd, memoryview(data)[at : at + 700_000], at)
        assert mappings(fd) == maps
        into = np.zeros(data.size, "u1")
        read_shared(fd, memoryview(into))
        np.testing.assert_array_equal(into, data)
        write_shared(fd, memoryview(bytes(data.size)))


def test_a_duplicate_is_the_same_memory_and_a_new_one_is_not(mapped, memory):
    """Whatever number a descriptor has: memory is known by itself."""
    data = [random(MIB, seed) for seed in range(6)]
    fds = [memory(MIB) for _ in data]
    for _ in range(3):
        for fd, each in zip(fds, data, strict=True):
            other = os.dup(fd)
            mapped.write(other, memoryview(each))
            os.close(other)
    for fd, each in zip(fds, data, strict=True):
        into = np.zeros(MIB, "u1")
        mapped.read(fd, memoryview(into))
        np.testing.assert_array_equal(into, each)


def test_no_more_stays_mapped_than_may(mapped, memory):
    """What was not used for longest goes; what is too large alone, or small, is never mapped."""
    fds = [memory(MIB) for _ in range(6)]
    large, small = memory(5 * MIB), memory(4096)
    for fd in (*fds, *fds, large, large, small, small):
        mapped.write(fd, memoryview(bytes(4096)))
    assert [mappings(fd) for fd in (*fds, large, small)] == [0, 0, 1, 1, 1, 1, 0, 0]


def test_few_descriptors_are_taken(memory):
    """A mapping has one; however much memory there is, there are not many."""
    mapped = MappedMemory(keep_bytes=128 * MIB)
    fds = [memory(MIB) for _ in range(20)]
    for fd in (*fds, *fds):
        mapped.write(fd, memoryview(b"data"))
    assert descriptors_of(fds) == len(fds) + 16
    assert [mappings(fd) for fd in fds] == [0] * 4 + [1] * 16
    mapped.close()
    assert descriptors_of(fds) == len(fds)


def descriptors_of(fds):
    """How many descriptors this process has of the memory of some."""
    memory, count = {os.fstat(fd).st_ino for fd in fds}, 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # one that is closed by now
            count += each.stat().st_ino in memory
    return count


def test_where_there_is_no_room_for_a_mapping_it_is_done_without(mapped, memory, monkeypatch):
    """Such as when too many files are open; the bytes are there all the same."""
    monkeypatch.setattr("disco_client.arrays.mapped_memory.map_shared", refuse)
    fd, into = memory(MIB), bytearray(3)
    for _ in range(3):
        mapped.write(fd, memoryview(b"abc"))
        mapped.read(fd, memoryview(into))
    assert into == b"abc"


def refuse(*_):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_memory_that_may_shrink_is_never_mapped(mapped):
    """Whoever maps it would end with a bus error; this way there is an error that can be raised."""
    fd = os.memfd_create("disco-array-1", os.MFD_CLOEXEC)
    os.ftruncate(fd, MIB)
    for _ in range(3):
        mapped.write(fd, memoryview(bytes(MIB)))
    assert mappings(fd) == 0
    os.ftruncate(fd, 10)
    with pytest.raises(OSError, match="expected"):
        mapped.read(fd, memoryview(bytearray(MIB)))
    os.close(fd)


def test_what_goes_beyond_the_end_is_an_error_as_without_a_mapping(mapped, memory):
    """And nothing at all is no work."""
    fd = memory(MIB)
    for _ in range(3):
        mapped.write(fd, memoryview(bytes(MIB)))
    with pytest.raises(OSError, match="expected 10 bytes"):
        mapped.read(fd, memoryview(bytearray(10)), MIB - 5)
    with pytest.raises(PermissionError):
        mapped.write(fd, memoryview(bytes(10)), MIB - 5)
    mapped.read(fd, memoryview(bytearray()), MIB)
    mapped.write(fd, memoryview(b""))


def test_threads_get_each_his_own(mapped, memory):
    """Many at a time, more than stay mapped; a mapping in use is not taken away."""
    fds = [memory(2 * MIB) for _ in range(8)]

    def work(number):
        data, into = random(2 * MIB, number), np.zeros(2 * MIB, "u1")
        for _ in range(20):
            mapped.write(fds[number], memoryview(data))
            mapped.read(fds[number], memoryview(into))
            np.testing.assert_array_equal(into, data)
            into[:] = 0

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
