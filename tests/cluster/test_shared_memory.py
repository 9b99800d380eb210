"""Host arrays between a client and daemons on its machine: the way they take, and its ends."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client import connect, errors
from disco_client.arrays.memory_messages import MEMORY_SCHEME, READ_BYTES, pack
from disco_client.pb import memory_pb2
from disco_client.wire.arrays import encode_head

NBYTES = 8 << 20

counts = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="counts what processes read and write in /proc"
)


class Bytes:
    """What the daemons have read from memory and written there, through the kernel."""

    def __init__(self, daemons):
        self._processes = [psutil.Process(daemon.process.pid) for daemon in daemons]

    def __call__(self):
        counters = [process.io_counters() for process in self._processes]
        return np.array([[each.read_chars, each.write_chars] for each in counters])


def carried(daemons, options):
    """How many bytes the controller and the daemon touch for an array up, and then down."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "2", *options)
    array = np.random.default_rng(1).integers(0, 256, NBYTES, "u1")
    count = Bytes(daemons.started)
    with connect(controller.address, num_workers=2) as session:
        session.copy_to_worker_0(array).numpy()
        before = count()
        ref = session.copy_to_worker_0(array)
        session.sync_worker_0()
        between = count()
        np.testing.assert_array_equal(ref.numpy(), array)
        return between - before, count() - between


@counts
def test_on_one_machine_no_process_between_touches_an_array(daemons):
    """Client and worker write and read the memory; the daemon only says where it is."""
    for ways in carried(daemons, ()):
        assert ways.max() < NBYTES // 16


@counts
def test_over_grpc_the_daemon_carries_every_byte(daemons):
    """Where it is told to; which shows that the counters of the test above count."""
    up, down = carried(daemons, ("--array-listen", "127.0.0.1:0"))
    assert up[1, 1] >= NBYTES  # the daemon writes it into the worker's memory
    assert down[1, 0] >= NBYTES  # and reads it from there
    assert max(up[0].max(), down[0].max()) < NBYTES // 16  # the controller does nothing


def test_a_broken_off_upload_fails_its_command_and_leaks_nothing(daemons, announce, eventually):
    """The worker hears why, the session goes on, and the daemon keeps no descriptor."""
    controller = daemons.controller()
    daemon = psutil.Process(daemons.worker(controller.address, "--slots", "1").process.pid)
    with connect(controller.address, num_workers=1) as session:
        session.copy_to_worker_0(np.zeros(1 << 20, "uint8")).numpy()
        before = daemon.num_fds()
        arrays = session._core.transport._arrays
        for _ in range(3):
            _, ticket = announce(session, np.zeros(1 << 20, "uint8"))
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(arrays._addresses[0].removeprefix(MEMORY_SCHEME))
                transfer = encode_head(arrays._session, arrays._key, ticket, 1 << 20, 0)
                sock.sendall(pack(memory_pb2.MemoryRequest(upload=transfer)))
                assert sock.recv(1)
            with pytest.raises(errors.RemoteError, match="the upload was broken off"):
                session.sync_all()
        session.sync_all()
        eventually(lambda: daemon.num_fds() <= before, what="the descriptors to be closed")


def test_a_session_that_ends_lets_nobody_wait(shared_daemons):
    """A connection inside a transfer is closed, although the daemon lives on."""
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "1")
    with (
        connect(controller.address, num_workers=1) as opened,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        arrays = opened._core.transport._arrays
        sock.settimeout(20)
        sock.connect(arrays._addresses[0].removeprefix(MEMORY_SCHEME))
        transfer = encode_head(arrays._session, arrays._key, 99, 8, 0)
        sock.sendall(pack(memory_pb2.MemoryRequest(upload=transfer)))
        assert sock.recv(READ_BYTES)
        opened.shutdown()
        assert sock.recv(1) == b""


def test_where_the_folder_is_gone_the_controller_relays(shared_daemons):
    """Found out at the first array and remembered; the arrays are the same."""
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "1")
    array = np.random.default_rng(3).random(100_003)
    with connect(controller.address, num_workers=1) as opened:
        arrays = opened._core.transport._arrays
        address = arrays._addresses[0]
        shutil.rmtree(Path(address.removeprefix(MEMORY_SCHEME)).parent)
        for _ in range(2):
            np.testing.assert_array_equal(opened.copy_to_worker_0(array).numpy(), array)
        assert arrays._direct == {address: None}


def lose_it_while_the_daemon_stands_still(controller, daemon, eventually):
    """Returns how an upload ended that was under way; raises how the session did."""
    failed = []

    def bring():
        try:
            session.copy_to_worker_0(np.zeros(1 << 20))
        except errors.SessionLost as error:
            failed.append(error)

    with connect(controller.address, num_workers=1) as session:
        arrays = session._core.transport._arrays
        session.copy_to_worker_0(np.zeros(1 << 20)).numpy()
        endpoint = arrays._direct[arrays._addresses[0]]
        daemon.send(signal.SIGSTOP)
        thread = threading.Thread(target=bring)
        thread.start()
        eventually(lambda: endpoint._sockets, what="the client to ask")
        controller.send(signal.SIGKILL)
        thread.join(20)
        assert failed


def test_a_daemon_that_stands_still_keeps_nobody_when_the_session_is_over(daemons, eventually):
    """Whoever waits for it in another thread learns it from the controller's end."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "1")
    with pytest.raises(errors.ControllerLost):
        lose_it_while_the_daemon_stands_still(controller, daemon, eventually)
