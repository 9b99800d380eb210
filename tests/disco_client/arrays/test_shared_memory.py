"""Memory that two processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disco_client.arrays.shared_memory import (
    SharedPool,
    allocate,
    map_shared,
    read_shared,
    write_shared,
)
from disco_client.wire.arrays import empty_array

CHILD = """
import sys
from disco_client.arrays.shared_memory import map_shared
shared = map_shared(int(sys.argv[1]), int(sys.argv[2]))
assert shared[:5] == b"hello"
shared[5:10] = b"there"
"""


def test_what_is_written_is_what_is_mapped(memory):
    """An array of several pages comes back bit for bit, and fresh memory is zero."""
    array = np.arange(70_001, dtype="float64")
    fd = memory(array.nbytes + 16)
    write_shared(fd, memoryview(array.view(np.uint8)), 16)
    with map_shared(fd, array.nbytes + 16) as shared:
        assert shared[:16] == bytes(16)
        np.testing.assert_array_equal(np.frombuffer(shared[16:], "float64"), array)


def test_another_process_reads_and_writes_the_same_memory(memory):
    """Given the descriptor; what it writes is there without anything being sent back."""
    fd = memory(4096)
    write_shared(fd, memoryview(b"hello"))
    with map_shared(fd, 4096) as shared:
        subprocess.run([sys.executable, "-c", CHILD, str(fd), "4096"], pass_fds=[fd], check=True)
        assert shared[:10] == b"hellothere"


def test_a_mapping_outlives_its_descriptor():
    """So descriptors need not be kept for as long as arrays live."""
    fd = allocate(8)
    write_shared(fd.fileno(), memoryview(b"12345678"))
    shared = map_shared(fd.fileno(), 8)
    fd.close()
    assert bytes(shared) == b"12345678"
    shared.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
def test_it_has_no_name_and_leaks_nothing_where_there_is_no_room(memory):
    """Nothing of it is in the file system, and what cannot be made leaves no descriptor."""
    target = Path(f"/proc/self/fd/{memory(8)}").readlink()
    assert not target.exists()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for size in (-1, 1 << 64):
        with pytest.raises(OSError, match=r".+"):
            allocate(size)
    # Fewer where an earlier test's are closed meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system cannot seal memory")
@pytest.mark.parametrize("size", [0, 8191, 8193])
def test_nobody_can_change_its_size(memory, size):
    """Neither end can take memory away that the other one maps, nor add to it."""
    fd = memory(8192)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, size)
    write_shared(fd, memoryview(bytes(8192)))
    with pytest.raises(PermissionError):
        write_shared(fd, memoryview(b"more"), 8192)
    assert os.fstat(fd).st_size == 8192


def test_without_sealed_memory_a_file_serves(memory, monkeypatch):
    """On a system that has no anonymous memory: one that has no name any more."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    fd = memory(10)
    write_shared(fd, memoryview(b"0123456789"))
    into = bytearray(10)
    read_shared(fd, memoryview(into))
    assert into == b"0123456789"
    assert os.fstat(fd).st_nlink == 0


def test_shared_memory_is_not_for_children(memory):
    """A process that user code starts does not keep it alive by accident."""
    assert not os.get_inheritable(memory(8))


@pytest.fixture
def pool():
    """A pool that keeps up to 100 bytes."""
    made = SharedPool(keep_bytes=100)
    yield made
    made.close()


def test_a_pool_hands_out_the_smallest_that_fits_and_each_once(pool):
    """What two arrays need at one time is never the same memory."""
    given = {size: pool.take(size) for size in (20, 50, 10)}
    assert len(set(given.values())) == 3
    for fd in given.values():
        pool.give(fd)
    assert pool.take(15) == given[20]
    assert pool.take(15) == given[50]
    new = pool.take(15)
    assert new not in given.values()
    for fd in (given[20], given[50], new):
        fd.close()


def test_a_pool_keeps_no_more_than_it_may(pool):
    """What is too much is closed at once, the rest with the pool."""
    first, second, small = pool.take(60), pool.take(60), pool.take(30)
    for fd in (first, second, small):
        pool.give(fd)
    assert [fd.closed for fd in (first, second, small)] == [False, True, False]
    pool.close()
    pool.close()
    assert first.closed
    assert small.closed


def test_it_can_be_read_without_a_mapping(memory):
    """Into memory of one's own; less than was asked for is an error."""
    fd = memory(10)
    write_shared(fd, memoryview(b"0123456789"))
    into = bytearray(10)
    read_shared(fd, memoryview(into))
    assert into == b"0123456789"
    read_shared(fd, memoryview(into)[:3], 7)
    assert into == b"7893456789"
    with pytest.raises(OSError, match="expected 11 bytes of shared memory at 0, got 10"):
        read_shared(fd, memoryview(bytearray(11)))


@pytest.mark.parametrize("shift", [0, 1, 16, 64])
def test_it_is_read_to_where_it_belongs(memory, shift):
    """Wherever a buffer begins, each byte comes to its place, and none beside the buffer."""
    data = np.random.default_rng(shift).integers(0, 256, 1_000_003, "u1")
    fd = memory(data.size)
    write_shared(fd, memoryview(data))
    room = empty_array((data.size + 128,), np.dtype("u1"))
    room[...] = 7
    read_shared(fd, memoryview(room)[shift : shift + data.size])
    np.testing.assert_array_equal(room[shift : shift + data.size], data)
    assert set(room[:shift]) | set(room[shift + data.size :]) == {7}
    with pytest.raises(OSError, match="expected"):
        read_shared(fd, memoryview(room)[shift : shift + data.size + 1])
