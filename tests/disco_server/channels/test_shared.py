"""Memory that two processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disco_server.channels.shared import allocate, map_shared, write_shared

CHILD = """
import sys
from disco_server.channels.shared import map_shared
shared = map_shared(int(sys.argv[1]), int(sys.argv[2]))
assert shared[:5] == b"hello"
shared[5:10] = b"there"
"""


@pytest.fixture
def memory():
    """Makes shared memory that is closed after the test."""
    fds = []

    def make(nbytes):
        fds.append(allocate(nbytes))
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


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
    write_shared(fd, memoryview(b"12345678"))
    shared = map_shared(fd, 8)
    os.close(fd)
    assert bytes(shared) == b"12345678"
    shared.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
def test_it_has_no_name_and_leaks_nothing_where_there_is_no_room(memory):
    """Nothing of it is in the file system, and what cannot be made leaves no descriptor."""
    target = os.readlink(f"/proc/self/fd/{memory(8)}")
    assert not Path(target).exists()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r".+"):
        allocate(-1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_shared_memory_is_not_for_children(memory):
    """A process that user code starts does not keep it alive by accident."""
    assert not os.get_inheritable(memory(8))
