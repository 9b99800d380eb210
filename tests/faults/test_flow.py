"""Who sends faster than others take: memory stays flat. Rows 14 and 27 of the matrix."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from disco_client import batches, connect
from disco_client.pb import controller_pb2
from disco_client.transport.channel import target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS
from disco_client.wire.codec import (
    PROTOCOL,
    Action,
    EncodedBatch,
    EnvelopeKind,
    encode_value,
    envelope,
    envelopes_in,
)
from disco_server.worker.kept_replies import FULL_BYTES
from fault_tools.processes import frozen, memory
from fault_tools.proxy import Proxy

MIB = 1 << 20
SLACK = 48 * MIB
"""What gRPC's own buffers and the allocator may add; what is sent is many times that."""

FLOODED = """
import sys, time, disco_client
session = disco_client.connect(sys.argv[1], num_workers=1, logs=True)
session.import_python_module("disco_test_functions")
flood = session.get_global_func("tests.flood")
session.sync_all()
print("ready", flush=True)
sys.stdin.readline()
flood(sys.argv[2], int(sys.argv[3]))
session.sync_all()
print("done", flush=True)
"""


class Sender:
    """A thread that issues as fast as it is let, until it is told to stop."""

    def __init__(self, issue):
        self._issue = issue
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._over.is_set():
            self._issue()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def all_memory(*pids):
    """What each process uses alone."""
    return [memory(pid) for pid in pids]


def test_a_slow_worker_slows_the_client_at_the_window_of_commands(node, eventually, long_seconds):
    """Row 27: no more commands are under way than the window; nobody's memory grows."""
    controller, daemon = node(1)
    with connect(controller.address, num_workers=1, logs=False) as session:
        session._core.log.window.commands = 2048
        session.import_python_module("disco_test_functions")
        nap = session.get_global_func("tests.sleep")
        session.sync_all()

        def under_way():
            counts = session.statistics()
            return counts["issued"] - counts["acked"]

        with Sender(lambda: nap(0.0003)):
            eventually(lambda: under_way() >= 2048, what="a full window")
            pids = [os.getpid(), controller.process.pid, daemon.process.pid]
            before, most = all_memory(*pids), 0
            end = time.monotonic() + max(1.5, long_seconds)
            while time.monotonic() < end:
                most = max(most, under_way())
                time.sleep(0.01)
            after = all_memory(*pids)
        assert most <= 2048 + batches.MAX_BATCH_COMMANDS
        assert all(now - then < SLACK for then, now in zip(before, after, strict=True))
        session.sync_all()


@pytest.mark.parametrize("size", [48 << 10, 2 << 20], ids=["inline", "beside"])
def test_a_slow_worker_slows_the_client_at_the_window_of_bytes(
    open_kind, eventually, size, long_seconds
):
    """Row 27: arrays inside commands and beside them; what waits for the worker is bounded."""
    window = 8 * MIB
    session = open_kind(1)
    session._core.log.window.nbytes = session._core.log.window.beside = window
    slow = session.get_global_func("tests.slow_sum")
    session.sync_all()
    array = np.ones(size, "u1")
    name = "bytes_under_way" if size < batches.MAX_BATCH_BYTES else "array_bytes_under_way"
    with Sender(lambda: slow(0.005, array)):
        eventually(lambda: session.statistics()[name] > window, what="a full window")
        end = time.monotonic() + max(1.0, long_seconds)
        most = 0
        while time.monotonic() < end:
            most = max(most, session.statistics()[name])
            time.sleep(0.01)
    assert most <= window + 2 * MIB + batches.MAX_BATCH_BYTES
    assert memory(session.workers[0].pid) < 200 * MIB
    session.sync_all()


def shared_bytes(pid):
    """How much memory for arrays a process holds open."""
    sizes = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "disco-array" in str(fd.readlink()):
                stat = fd.stat()
                sizes[stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())


def test_arrays_for_a_busy_worker_do_not_fill_its_machine(node):
    """Row 27: uploads beyond the window wait at the client, not in the node's memory."""
    window = 16 * MIB
    controller, daemon = node(1)
    with connect(controller.address, num_workers=1, logs=False) as session:
        session._core.log.window.beside = window
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.sleep")(2.0)
        array = np.ones(4 * MIB, "u1")
        total = session.get_global_func("tests.slow_sum")
        with Sender(lambda: total(0.0, array)):
            end = time.monotonic() + 1.5
            most = 0
            while time.monotonic() < end:
                rank = shared_bytes(session.workers[0].pid)
                most = max(most, rank, shared_bytes(daemon.process.pid))
                time.sleep(0.02)
        assert most <= window + 3 * array.nbytes
        session.sync_all()


@pytest.fixture
def gate(tmp_path):
    """A file for which the worker waits before it prints."""
    return tmp_path / "gate"


def flood(controller, gate, errors):
    """A program whose worker prints 96 MiB once the gate is there."""
    command = [sys.executable, "-c", FLOODED, controller.address, str(gate), "96"]
    pipe = subprocess.PIPE
    with errors.open("wb") as said:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True)


@pytest.mark.parametrize("who", ["client", "controller"])
def test_who_stands_still_does_not_fill_the_others(node, gate, eventually, tmp_path, who):
    """Row 14: what the worker prints meanwhile is dropped; then all goes on, answers included."""
    controller, daemon = node(1, lease=60)
    errors = tmp_path / "errors"
    with flood(controller, gate, errors) as client:
        assert client.stdout.readline() == "ready\n"
        client.stdin.write("\n")
        client.stdin.flush()
        eventually(lambda: "about to print much" in daemon.stderr, what="the worker's beginning")
        running = [daemon.process.pid]
        if who == "client":
            running.append(controller.process.pid)
        before = all_memory(*running)
        with frozen(client.pid if who == "client" else controller.process.pid):
            gate.touch()
            over = gate.with_name(f"{gate.name}.over")
            eventually(over.exists, 50, what="the end of what the worker prints")
            after = all_memory(*running)
        assert client.stdout.readline() == "done\n", errors.read_text()[-3000:]
    assert all(now - then < SLACK for then, now in zip(before, after, strict=True))


HELD = """
import sys, disco_client
session = disco_client.connect(sys.argv[1], num_workers=1, logs=False)
kept = session.copy_to_worker_0([1.0] * 100_000)
session.sync_all()
print(session.workers[0].pid, flush=True)
sys.stdin.readline()
"""


def test_the_session_of_a_frozen_client_ends_at_its_lease(daemons, eventually):
    """Row 14: worker and registers are gone, its slot is free, and another session works on.

    That a frozen peer is seen at all is tested with gRPC's options; here its connection
    breaks at once.
    """
    controller = daemons.controller("--session-lease", "1")
    daemons.worker(controller.address, "--slots", "2")
    pipe = subprocess.PIPE
    with (
        Proxy(controller.address, controller.frames) as proxy,
        connect(controller.address, num_workers=1, logs=False) as other,
        subprocess.Popen(
            [sys.executable, "-c", HELD, proxy.address], stdin=pipe, stdout=pipe, text=True
        ) as client,
    ):
        try:
            rank = int(client.stdout.readline())
            with frozen(client.pid):
                proxy.cut()
                proxy.heal()
                eventually(lambda: not psutil.pid_exists(rank), what="the end of its worker")
                other.sync_all()
                with connect(controller.address, num_workers=1, logs=False) as successor:
                    successor.sync_all()
        finally:
            client.kill()


QUESTIONS = 5000
ANSWER = np.ones(60_000, "u1")
"""So many of them are several times what a node keeps of answers."""


def asking(session):
    """A batch that puts an array on worker 0, and asks for it again and again."""
    batch = EncodedBatch()
    put = batch.commands.add(action=Action.COPY_TO_WORKER0, reg=1, workers=[0])
    encode_value(put.args.add(), ANSWER)
    put.args.add().bool = True
    for _ in range(QUESTIONS):
        batch.commands.add(action=Action.DEBUG_GET_FROM_REMOTE, reg=1, workers=[0])
    payload = batch.SerializeToString()
    return envelope(
        EnvelopeKind.BATCH, payload, session=session, first_seq=1, last_seq=len(batch.commands)
    )


def test_a_client_that_never_reads_fills_nobody_s_memory(node, eventually, long_seconds):
    """Row 14: its worker waits at last; others are served, and the lease frees what it had."""
    controller, daemon = node(2, lease=1)
    create = controller_pb2.CreateSession(
        protocol=PROTOCOL, version="0", num_workers=1, num_groups=1, timeout_s=20
    )
    session, over = queue.SimpleQueue(), threading.Event()

    def say():
        yield envelope(EnvelopeKind.CREATE, create.SerializeToString())
        yield asking(session.get())
        over.wait(60)

    pids = [controller.process.pid, daemon.process.pid]
    with (
        connect(controller.address, num_workers=1, logs=False) as other,
        grpc.insecure_channel(target(controller.address), options=CHANNEL_OPTIONS) as channel,
    ):
        other.sync_all()
        before = all_memory(*pids)
        call = channel.stream_stream("/disco.v1.SessionService/Open")(say())
        received = next(
            each
            for _, each in itertools.chain.from_iterable(map(envelopes_in, call))
            if each.kind == EnvelopeKind.READY
        )
        (rank,) = controller_pb2.SessionReady.FromString(received.payload).ranks
        session.put(received.session)
        eventually(lambda: memory(pids[1]) - before[1] > 40 * MIB, what="answers that wait")
        end = time.monotonic() + max(1.5, long_seconds)
        while time.monotonic() < end:
            other.sync_all()
        after = all_memory(*pids)
        assert all(now - then < FULL_BYTES + SLACK for then, now in zip(before, after, strict=True))
        assert psutil.pid_exists(rank.pid)
        call.cancel()
        over.set()
        eventually(lambda: not psutil.pid_exists(rank.pid), what="the end of its worker")
        other.sync_all()
