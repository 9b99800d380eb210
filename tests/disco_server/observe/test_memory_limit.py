"""Whether memory ran out for a process: what the kernel's log and its counters say."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from disco_server.observe.memory_limit import MemoryWatch, memory_room
from fault_tools.cgroups import NotPermitted, limited

WAIT = "import sys; sys.stdin.read()"
HOG = "import sys; sys.stdin.readline(); kept = []\nwhile True: kept.append(b'x' * (1 << 20))"


@pytest.fixture
def group():
    """A control group with 64 MiB."""
    try:
        with limited("memory", 64 << 20) as made:
            yield made
    except NotPermitted as error:
        pytest.skip(str(error))


@pytest.fixture
def no_log(tmp_path):
    """A kernel log that cannot be read, as in most containers."""
    return tmp_path / "no-log"


def start(group, program):
    """A process in the group, which waits for a word."""
    return subprocess.Popen([*group.prefix, sys.executable, "-c", program], stdin=subprocess.PIPE)


def joined(group, child, eventually):
    """Waits until the process is in the group."""
    eventually(lambda: str(child.pid) in group.procs.read_text().split())


def test_the_counter_of_the_group_tells(group, no_log, eventually):
    """The limit is named; a later kill by hand is not taken for the same."""
    with start(group, HOG) as child:
        joined(group, child, eventually)
        watch = MemoryWatch(child.pid, no_log)
        child.communicate(b"go\n")
    why = watch.explain()
    assert why.startswith("was killed because memory ran out (the limit of its cgroup ")
    assert why.endswith(" is 64 MiB)")
    with start(group, WAIT) as child:
        joined(group, child, eventually)
        watch = MemoryWatch(child.pid, no_log)
        child.kill()
        child.communicate()
    assert watch.explain() == ""


def test_each_kill_explains_one_death(group, no_log, eventually):
    """Of two processes in a group, one of which ran out of memory, one is reported so."""
    with start(group, HOG) as hog, start(group, WAIT) as other:
        joined(group, hog, eventually)
        joined(group, other, eventually)
        watches = [MemoryWatch(child.pid, no_log) for child in (hog, other)]
        hog.communicate(b"go\n")
        other.kill()
        other.communicate()
    assert [bool(watch.explain()) for watch in watches] == [True, False]


def record(pid, seconds):
    """A line of the kernel's log."""
    when = int(seconds * 1e6)
    return f"3,999,{when},-;Out of memory: Killed process {pid} (python) total-vm:1kB\n".encode()


@pytest.mark.parametrize(
    ("pid", "later", "found"), [(4000000, 1, True), (4000000, -1, False), (40000001, 1, False)]
)
def test_the_log_of_the_kernel_tells(tmp_path, pid, later, found):
    """It names the process; what it says of another, or of an older one, does not count."""
    watch = MemoryWatch(4000000, tmp_path / "log")
    (tmp_path / "log").write_bytes(record(pid, time.clock_gettime(time.CLOCK_MONOTONIC) + later))
    assert bool(watch.explain()) is found


def test_where_nothing_can_be_known_nothing_is_said(no_log):
    """No such process, no log: the signal's name has to do."""
    assert MemoryWatch(4000000, no_log).explain() == ""


ROOM = """
import re, resource
from pathlib import Path
from disco_server.observe.memory_limit import memory_room
used = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (256 << 20), resource.RLIM_INFINITY))
before = memory_room()[1]
kept = bytearray(100 << 20)
after = memory_room()[1]
print(before <= 256 << 20, 100 << 20 <= before - after <= 110 << 20)
"""


def test_the_room_of_a_process_is_what_its_limit_leaves():
    """Without a limit there is none; that of the machine is less than all memory."""
    done = subprocess.run([sys.executable, "-c", ROOM], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
    shared, own = memory_room()
    assert own is None
    assert 0 < shared < psutil.virtual_memory().total


def test_a_group_leaves_less_room_than_the_machine(group):
    """That of its limit, without what files have of it."""
    program = "from disco_server.observe.memory_limit import memory_room; print(memory_room()[0])"
    command = [*group.prefix, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 64 << 20
