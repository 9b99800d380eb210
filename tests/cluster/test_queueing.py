"""Sessions that do not fit wait in order of arrival, and learn what they wait for."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest
from click.testing import CliRunner

from disco_client import Session, connect, errors
from disco_client.pb import controller_pb2, controller_pb2_grpc
from disco_client.transport.channel import target
from disco_server.cli.local import LocalCluster
from disco_server.cli.main import main


@pytest.fixture
def background():
    """Runs calls that wait in threads of their own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="module")
def small_cluster():
    """One node of two slots, and its controller."""
    with LocalCluster(1, 2) as running:
        yield running


@pytest.fixture
def slots(small_cluster, await_free_slots):
    """The address of a controller with one node of two slots, both free."""
    await_free_slots(small_cluster.address)
    return small_cluster.address


def queued(address: str) -> int:
    """How many sessions the controller says are waiting."""
    with grpc.insecure_channel(target(address)) as channel:
        stub = controller_pb2_grpc.SessionServiceStub(channel)
        found = stub.List(controller_pb2.ListRequest(), timeout=5)
    return sum(session.state == "queued" for session in found.sessions)


def test_no_slots_says_what_there_is_and_who_holds_it(slots):
    """After the timeout the error has the numbers, the holder and its owner."""
    with connect(slots, num_workers=2, name="greedy"):
        began = time.monotonic()
        with pytest.raises(errors.NoSlots) as raised:
            connect(slots, num_workers=1, timeout=1.0)
        waited = time.monotonic() - began
    error = raised.value
    assert isinstance(error, TimeoutError)
    assert waited >= 1.0
    assert (error.total_slots, error.free_slots) == (2, 0)
    assert "2 slots on 1 node, 0 of them free" in str(error)
    assert "session 'greedy' holds 2 (" in str(error)
    assert "timeout=" in str(error)


def test_a_session_larger_than_the_cluster_is_told_so(slots):
    """All slots are free and yet too few: the error says so at once, as no others will come."""
    with pytest.raises(errors.NoSlots, match="more nodes or slots, or ask for fewer") as raised:
        connect(slots, num_workers=3, timeout=600.0)
    assert (raised.value.total_slots, raised.value.free_slots) == (2, 2)


def test_a_waiting_session_starts_when_another_ends(slots, background, printed, eventually):
    """It is placed as soon as there is room, and says meanwhile what it waits for."""
    first = connect(slots, num_workers=2)
    waiting = background.submit(connect, slots, num_workers=1, timeout=30.0)
    eventually(lambda: "waiting for" in printed(), what="a message about the wait")
    assert "waiting for 1 slot: 0 of 2 are free" in printed()
    assert not waiting.done()
    first.shutdown()
    with waiting.result(timeout=20) as second:
        second.sync_all()


HOLDER = """
import signal, sys
import disco_client

session = disco_client.connect(sys.argv[1], num_workers=1, name="mine")
print("open", flush=True)
signal.pause()
"""


def test_who_comes_after_a_killed_program_learns_how_long_it_waits(
    daemons, background, printed, eventually
):
    """Which session has lost its program, and when its slots are free."""
    controller = daemons.controller(DISCO_SESSION_LEASE_S="60")
    daemons.worker(controller.address, "--slots", "1")
    command = [sys.executable, "-c", HOLDER, controller.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "open\n"
        holder.terminate()
    waiting = background.submit(connect, controller.address, num_workers=1, timeout=50.0)
    told = re.compile(
        "waiting for 1 slot: 0 of 1 are free, session 'mine' has lost its program, "
        r"its slots are free in at most \d+ s"
    )
    eventually(lambda: told.search(printed()), what="what the wait is for")
    listed = CliRunner().invoke(main, ["status", "--address", controller.address, "--json"])
    assert "session 'mine' has lost its program" in listed.stdout
    assert (
        CliRunner().invoke(main, ["stop", "mine", "--address", controller.address]).exit_code == 0
    )
    waiting.result(timeout=20).shutdown()


def test_sessions_are_served_strictly_in_order(slots, background, eventually):
    """A small session that would fit does not overtake a larger one that came before."""
    order: list[str] = []
    lock = threading.Lock()

    def run(name: str, workers: int) -> None:
        with connect(slots, num_workers=workers, name=name, timeout=40.0) as session:
            with lock:
                order.append(name)
            session.sync_all()

    with ExitStack() as stack:
        stack.enter_context(connect(slots, num_workers=1, name="first"))
        started = []
        for ahead, (name, workers) in enumerate([("large", 2), ("small", 1), ("last", 2)]):
            started.append(background.submit(run, name, workers))
            eventually(lambda n=ahead: queued(slots) == n + 1, what="the session to be queued")
        # One slot is free, and nobody takes it.
        assert order == []
    for done in started:
        done.result(timeout=30)
    assert order == ["large", "small", "last"]


def test_a_cluster_without_nodes_waits_for_one(daemons, background, eventually):
    """NoSlots names the command that adds a node; when one joins, it serves who waits."""
    controller = daemons.controller()
    with pytest.raises(errors.NoSlots, match="disco-worker --controller"):
        connect(controller.address, num_workers=1, timeout=2.0)
    waiting = background.submit(connect, controller.address, num_workers=2, timeout=40.0)
    eventually(lambda: queued(controller.address) == 1, what="the session to be queued")
    daemons.worker(controller.address, "--slots", "2", "--name", "late")
    session: Session = waiting.result(timeout=30)
    with session:
        assert {rank.node for rank in session.workers} == {"late"}


def test_a_client_that_gives_up_leaves_the_queue(slots, background, eventually):
    """Nobody waits behind a session whose client is gone."""
    first = connect(slots, num_workers=2)
    gone = background.submit(connect, slots, num_workers=2, timeout=3.0)
    eventually(lambda: queued(slots) == 1, what="the session to be queued")
    waiting = background.submit(connect, slots, num_workers=1, timeout=30.0)
    assert isinstance(gone.exception(), errors.NoSlots)
    first.shutdown()
    with waiting.result(timeout=20) as session:
        session.sync_all()
    assert queued(slots) == 0


def test_nodes_are_filled_one_after_the_other(cluster):
    """A session lies on as few nodes as there is room on, with consecutive ranks."""
    with connect(cluster.address, num_workers=3) as session:
        full, _, rest = (rank.node for rank in session.workers)
        assert [rank.node for rank in session.workers] == [full, full, rest]
        assert [rank.worker for rank in session.workers] == [0, 1, 2]
        assert full != rest
        with connect(cluster.address, num_workers=1) as other:
            assert other.workers[0].node == rest
