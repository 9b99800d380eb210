"""Arrays where the system has nothing left to give, at either end: row 35."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disco_client import ProcessSession, ThreadedSession, connect, errors
from fault_tools.calls import LOST, Watch, array_descriptors, unaccounted

KIB = 1 << 10
SMALL, LARGE = 1100 * KIB, 4200 * KIB
"""Both are mapped when their memory comes again; the larger one is copied in pieces."""

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"

WITHOUT_DESCRIPTORS = """
import os, resource, signal, sys
import numpy as np
import disco_client
from disco_client import errors

signal.alarm(30)  # whoever hangs is killed
if sys.argv[1] == "process":
    session = disco_client.ProcessSession(1, logs=False)
else:
    session = disco_client.connect(sys.argv[2], num_workers=1, logs=False)
array = np.arange(1 << 18)
there = session.copy_to_worker_0(array)
session.sync_all()
small = os.open(os.devnull, os.O_RDONLY)
os.close(small)
_, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (small, hard))
for copy in (there.numpy, lambda: session.copy_to_worker_0(array * 2)):
    try:
        copy()
    except errors.SessionError as error:
        print(error)
    else:
        sys.exit("the copy did not fail")
try:
    session.sync_all()
except errors.RemoteError as error:
    assert "the upload was broken off: [Errno 24] Too many open files" in str(error), error
else:
    sys.exit("the worker has an array that never came")
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
np.testing.assert_array_equal(session.copy_to_worker_0(array).numpy(), array)
session.sync_all()
session.shutdown()
"""


@pytest.mark.parametrize("kind", ["memory", "process"])
def test_a_client_without_descriptors_gets_a_typed_error_and_works_on(kind, shared_node):
    """Row 35: neither a copy, nor giving it up, nor what comes after waits for ever."""
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, kind, shared_node.address]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr


NONE_FREE = ("Too many open files", "no descriptor was free")


@contextlib.contextmanager
def no_descriptors(pid):
    """Lets a process open nothing more while a block runs."""
    used = {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in itertools.count() if number not in used)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("who", ["daemon", "rank"])
@pytest.mark.parametrize("way", ["memory", "relay"])
def test_a_node_without_descriptors_says_so_and_works_on(who, way, node):
    """Row 35: whoever copies an array hears of it, and does not wait until some are free."""
    controller, daemon = node(1)
    with connect(controller.address, num_workers=1, logs=False) as session:
        if way == "relay":
            session._core.transport._arrays._addresses.clear()
        array = np.arange(LARGE // 8)
        there = session.copy_to_worker_0(array)
        session.sync_all()
        pid = daemon.process.pid if who == "daemon" else session.workers[0].pid
        with no_descriptors(pid):
            with pytest.raises((errors.SessionError, errors.RemoteError)) as failed:
                there.numpy()
            said = [failed.value]
            for _ in range(3):  # of what fails, some descriptors become free
                said += there_and_back(session, array)
        for error in said:
            assert any(why in str(error) for why in NONE_FREE), error
        np.testing.assert_array_equal(there.numpy(), array)
        assert there_and_back(session, array) == []


# Every call ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    """Sees the calls of this process, and of those that have its folder on their path."""
    return Watch(tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def clusters(shared_daemons, watch):
    """Opens sessions of one worker on nodes that are watched, by the way of their arrays."""
    other = {"FAULT_TEST": "shared"}  # not the test's that happens to be the first one
    path = os.pathsep.join((str(watch.folder), str(WORKER_MODULES)))
    started = {}

    def open_one(way):
        listen = ("--array-listen", "127.0.0.1:0") if way == "direct" else ()
        if listen not in started:
            controller = shared_daemons.controller(**other)
            worker = shared_daemons.worker(
                controller.address, "--slots", "1", *listen, PYTHONPATH=path, **other
            )
            started[listen] = controller.address, worker.process.pid
        address, pid = started[listen]
        session = connect(address, num_workers=1, logs=False)
        if way == "relay":
            session._core.transport._arrays._addresses.clear()
        return session, pid

    return open_one


@pytest.fixture
def open_way(clusters, watch, monkeypatch):
    """Opens a session whose arrays go one way; and the pid of its daemon, where it has one."""
    opened = []

    def open_one(way):
        if way == "threads":
            session, pid = ThreadedSession(1, logs=False), None
        elif way == "processes":
            monkeypatch.syspath_prepend(str(WORKER_MODULES))
            monkeypatch.syspath_prepend(str(watch.folder))
            session, pid = ProcessSession(1, logs=False), None
        else:
            session, pid = clusters(way)
        opened.append(session)
        return session, pid

    yield open_one
    for session in opened:
        session.shutdown()


# Where product code asks the system for something while an array is on its way, by the role
# of the process. What is seen and not here fails the test: put it here, and it is injected.

KEPT = {
    "disco_client/arrays/mapped_memory.py _find: os.fstat",
    "disco_client/arrays/mapped_memory.py _find: os.readlink",
    "disco_client/arrays/mapped_memory.py _is_ours: fcntl.fcntl",
    "disco_client/arrays/shared_memory.py map_shared: mmap.mmap",
    "disco_client/arrays/shared_memory.py _read_at: os.preadv",
    "disco_client/arrays/shared_memory.py write_shared: os.pwrite",
    "disco_client/wire/arrays.py empty_array: numpy.empty",
}
"""Copying, and mapping what comes again."""

MADE = {
    "disco_client/descriptors.py opened: os.memfd_create",
    "disco_client/arrays/shared_memory.py allocate: os.ftruncate",
    "disco_client/arrays/shared_memory.py _seal: fcntl.fcntl",
    "disco_client/arrays/shared_memory.py give: os.fstat",
    "disco_server/ipc/framing.py read: socket.recvmsg_into",
    f"disco_server/ipc/framing.py read: socket.recvmsg_into{LOST}",
}
"""Making shared memory, and getting it from the other process."""

SAID = {
    "disco_client/transport/carriers.py write_rest: socket.sendall",
    "disco_client/transport/carriers.py write_some: socket.send",
    "disco_client/transport/carriers.py receive: socket.recv_into",
}
"""What goes over the session's stream beside arrays."""

PASSED_ON = "disco_server/ipc/carriers.py _flush: socket.send"
"""The same over the node's."""
BESIDE = (
    "disco_server/worker/machine.py ",
    "disco_server/collectives/mpich_memory.py ",
    "disco_client/output.py ",
    "disco_server/worker/array_server.py _recv: socket.send",
)
"""What threads do meanwhile that nobody waits for: they look at the machine every ten seconds,
write the log, and look for what ranks have left; and what wakes an event loop, as a finalizer may
anywhere."""

HANDED_OUT = {
    "disco_client/descriptors.py opened: os.dup",
    "disco_server/ipc/framing.py flush: socket.send",
    "disco_server/ipc/framing.py flush: socket.sendmsg",
}
"""Handing it to a rank."""

RANK = {
    *KEPT,
    *MADE,
    "disco_server/ipc/framing.py send_all: socket.send",
    "disco_server/ipc/framing.py send_with_fd: socket.send_fds",
}

STREAMED = {
    *MADE,
    PASSED_ON,
    *HANDED_OUT,
    "disco_client/arrays/shared_memory.py _read_at: os.preadv",
    "disco_client/arrays/shared_memory.py write_shared: os.pwrite",
    "disco_client/wire/arrays.py empty_array: numpy.empty",
}
"""A daemon between a rank and a stream of gRPC."""

THREAD = "disco_client/threads.py run: threading.start"
ARRAY_CLIENT = "disco_client/arrays/client.py"
CHANNEL = "disco_client/transport/channel.py"

FIRST = " in _spawn_poll_connectivity"
"""Met once in the life of a session, when it reaches the endpoint of a daemon."""

SITES: dict[str, dict[str, set[str]]] = {
    "memory": {
        "client": {
            *KEPT,
            *SAID,
            "disco_client/arrays/memory_endpoint.py _connection: socket.__init__",
            "disco_client/arrays/memory_endpoint.py _connect: socket.connect",
            "disco_client/arrays/memory_endpoint.py _send: socket.sendall",
            "disco_client/descriptors.py receive_with_descriptors: socket.recvmsg",
            f"disco_client/descriptors.py receive_with_descriptors: socket.recvmsg{LOST}",
        },
        "daemon": {
            *MADE,
            PASSED_ON,
            *HANDED_OUT,
            "disco_server/worker/array_server.py _accept: socket.accept",
            "disco_server/worker/array_server.py _recv: socket.recv",
            "disco_server/worker/array_server.py _send: socket.send_fds",
        },
        "rank": RANK,
    },
    "direct": {
        "client": {
            *SAID,
            THREAD,
            f"{ARRAY_CLIENT} _begin: threading.start in _consume_request_iterator",
            f"{ARRAY_CLIENT} _begin: threading.start in _run_channel_spin_thread",
            f"{ARRAY_CLIENT} __init__: threading.start{FIRST}",
            "disco_client/wire/arrays.py empty_array: numpy.empty",
        },
        "daemon": STREAMED,
        "rank": RANK,
    },
    "relay": {
        "client": {
            *SAID,
            THREAD,
            f"{CHANNEL} __call__: threading.start in _run_channel_spin_thread",
            f"{CHANNEL} future: threading.start in _consume_request_iterator",
            f"{CHANNEL} future: threading.start in _run_channel_spin_thread",
            "disco_client/wire/arrays.py empty_array: numpy.empty",
        },
        "daemon": STREAMED,
        "rank": RANK,
    },
    "processes": {"client": KEPT | MADE | HANDED_OUT, "rank": RANK},
    "threads": {"client": set()},
}

TRIES = 5
"""How often a call is waited for that the system makes only at times, as a thread that may
be there still."""


_sizes = itertools.count(1)


def fresh():
    """Arrays of sizes that no memory has which is kept: it is made, then known, then mapped."""
    more = next(_sizes) * 4 * KIB
    for nbytes in (SMALL + more, LARGE + more):
        yield np.arange(nbytes // 8)


def there_and_back(session, array):
    """Copies an array to the worker and back; returns the errors, all of them typed."""
    ref, found = None, []
    try:
        ref = session.copy_to_worker_0(array)
    except errors.SessionLost:
        raise
    except errors.SessionError as error:
        found.append(error)
    try:
        session.sync_all()
    except errors.RemoteError as error:
        found.append(error)
    if ref is None:
        assert len(found) == 2, "the worker has an array that did not come"
        return found
    try:
        np.testing.assert_array_equal(ref.numpy(), array)
    except errors.SessionLost:
        raise
    except errors.RemoteError as error:
        found.append(error)
    except errors.SessionError as error:
        assert not found, "the worker was not poisoned"
        found.append(error)
    else:
        assert not found, "the worker was not poisoned"
    return found


def rounds(session):
    """Goes by all sites of a way; yields the errors of each copy there and back."""
    for array in fresh():
        for _ in range(3):
            yield there_and_back(session, array)


def unaccounted_in(role, session):
    """How many descriptors of arrays have been lost by the client or the rank."""
    if role == "rank":
        return session.get_global_func("tests.unaccounted")().debug_get_from_remote(0)
    return unaccounted() if role == "client" else 0


@pytest.mark.timeout(180)  # on a machine that has much else to do
@pytest.mark.parametrize(
    ("way", "role"),
    [(way, role) for way, roles in SITES.items() for role in roles if role != "rank"]
    + [("memory", "rank"), ("processes", "rank")],
)
def test_every_call_may_fail(way, role, open_way, watch, eventually):
    """Row 35: each that asks for a descriptor, memory, a socket or a thread; nobody hangs.

    Whoever called gets a typed error, and the worker poison; or neither notices. The
    session works on, and what was open is closed.
    """
    session, daemon = open_way(way)
    before = array_descriptors(daemon) if daemon else 0
    if way != "threads":
        session.import_python_module("disco_test_functions")
    session.sync_all()
    with watch.client.watching():
        first = sorted(site for site in SITES[way][role] if site.endswith(FIRST))
        for site in first:
            assert fails(f"{role}: {site}", session, watch), f"{site} did not fail"
        with watch.recording():
            assert not any(rounds(session))
        for site in watch.recorded():
            who, _, what = site.partition(": ")
            if what.startswith(BESIDE):
                continue
            if who == "daemon" and not daemon:
                assert what == PASSED_ON  # a heartbeat of the daemon of another way
                continue
            assert what in SITES[way][who], f"not known, so nobody has seen it fail: {site}"
        start = unaccounted_in(role, session)
        for site in sorted(SITES[way][role].difference(first)):
            assert fails(f"{role}: {site}", session, watch), f"{site} did not fail"
            assert there_and_back(session, np.arange(SMALL // 8)) == [], f"after {site}"
            eventually(
                lambda: unaccounted_in(role, session) <= start,
                what=f"as many descriptors as before {site}",
            )
    session.shutdown()
    if daemon:
        eventually(lambda: array_descriptors(daemon) <= before, what="all memory given back")


def fails(site, session, watch):
    """Lets a call fail once while arrays come and go."""
    for _ in range(TRIES):
        watch.arm(site)
        any(watch.fired for _ in rounds(session))
        if watch.disarm():
            return True
    return False
