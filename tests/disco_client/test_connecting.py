"""Getting a session: arguments, addresses, the queue, and what a person is told."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import socket
import sys
import threading

import pytest

from disco_client import (
    ConfigError,
    ConnectionFailed,
    FunctionNotFound,
    NoSlots,
    WouldBlock,
    aconnect,
    connect,
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": 0}, "num_workers from 1"),
        ({"num_workers": 70_000}, "num_workers from 1 to 65536"),
        ({"num_workers": True}, "an integer num_workers, got True"),
        ({"num_workers": 2.0}, "an integer num_workers, got 2.0"),
        ({"num_workers": "2"}, "an integer num_workers"),
        ({"num_workers": 4, "num_groups": 3}, "divide the 4 workers evenly, got 3"),
        ({"num_workers": 4, "num_groups": 0}, "divide"),
        ({"num_workers": 4, "num_groups": -2}, "divide"),
        ({"num_workers": 1, "ccl": "gloo"}, "'gloo'"),
        ({"num_workers": 1, "timeout": 0}, "timeout above 0"),
        ({"num_workers": 1, "timeout": float("nan")}, "timeout above 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(options, text):
    """With what was expected and what came; no controller need be there."""
    with pytest.raises(ConfigError, match=text):
        connect("127.0.0.1:1", **options)


def test_an_address_that_cannot_be_one_is_refused():
    """A missing port is the usual mistake, and no reason to wait half a minute."""
    with pytest.raises((ConfigError, ConnectionFailed), match="localhost"):
        connect("localhost", num_workers=1, timeout=1.0)


def test_the_address_may_come_from_the_environment(cluster, monkeypatch):
    """The argument goes before it."""
    monkeypatch.setenv("DISCO_ADDRESS", cluster.address)
    with connect(num_workers=1, name="from-environment") as session:
        assert session.name == "from-environment"
    monkeypatch.setenv("DISCO_ADDRESS", "127.0.0.1:1")
    with connect(cluster.address, num_workers=1) as session:
        assert session.num_workers == 1


def test_a_session_says_where_its_workers_run(cluster):
    """Consecutive ranks share a node; each has a process and a device."""
    with connect(cluster.address, num_workers=3) as session:
        places = session.workers
        assert [place.worker for place in places] == [0, 1, 2]
        nodes = [place.node for place in places]
        # Which node comes first depends on which slots the last session has freed by now.
        assert len(set(nodes)) == 2
        assert nodes[1] in (nodes[0], nodes[2])
        assert len({place.pid for place in places}) == 3
        assert {place.device for place in places} == {"cpu"}
        assert re.fullmatch("[0-9a-f]{16}", session.session_id)
        assert session.name.startswith("session-")
        assert "3 workers on 2 nodes, open" in repr(session)
    assert "closed" in repr(session)


def test_more_workers_than_slots_says_so_at_the_timeout(cluster, await_free_slots, capfd):
    """How many there are, how many are free, who holds the others, and what to do."""
    await_free_slots(cluster.address)
    with connect(cluster.address, num_workers=3, name="holder"):
        with pytest.raises(NoSlots) as full:
            connect(cluster.address, num_workers=2, timeout=2.0)
        text = str(full.value)
        assert "4 slots on 2 nodes, 1 of them free" in text
        assert "'holder' holds 3 (" in text
        assert (full.value.total_slots, full.value.free_slots) == (4, 1)
    with pytest.raises(NoSlots, match="ask for fewer workers"):
        connect(cluster.address, num_workers=5, timeout=20.0)


def test_who_waits_is_told_for_what(cluster, printed, eventually):
    """On standard error, and again when something changes."""
    holder = connect(cluster.address, num_workers=4, name="holder")
    opened = []
    waiting = threading.Thread(
        target=lambda: opened.append(connect(cluster.address, num_workers=2, timeout=30))
    )
    waiting.start()
    told = "disco: waiting for 2 slots: 0 of 4 are free"
    eventually(lambda: told in printed(), what="a message about the wait")
    assert not opened
    holder.shutdown()
    waiting.join(30)
    assert opened[0].num_workers == 2
    opened[0].shutdown()


def test_ctrl_c_stops_the_wait_for_slots(cluster, printed, eventually):
    """As in a cell of a notebook: others get the slots, and so does who asks again."""
    main, told = threading.main_thread().ident, "disco: waiting for 3 slots"

    def interrupt():
        eventually(lambda: told in printed(), what="a message about the wait")
        signal.pthread_kill(main, signal.SIGINT)

    with connect(cluster.address, num_workers=2, name="holder") as holder:
        watching = threading.Thread(target=interrupt)
        watching.start()
        with pytest.raises(KeyboardInterrupt):
            connect(cluster.address, num_workers=3, timeout=30)
        watching.join()
        holder.sync_all()
        with connect(cluster.address, num_workers=2, timeout=30) as other:
            other.sync_all()
    with connect(cluster.address, num_workers=3, timeout=30) as again:
        assert again.num_workers == 3


def test_sessions_that_wait_get_their_slots_in_order_of_arrival(cluster, eventually):
    """A small one that would fit does not pass a large one that came first."""
    import grpc

    from disco_client.pb import controller_pb2, controller_pb2_grpc
    from disco_client.transport.channel import target
    from disco_client.transport.grpc_options import CHANNEL_OPTIONS

    def waiting_names():
        with grpc.insecure_channel(target(cluster.address), options=CHANNEL_OPTIONS) as channel:
            stub = controller_pb2_grpc.SessionServiceStub(channel)
            found = stub.List(controller_pb2.ListRequest(), timeout=5)
        return [s.name for s in found.sessions if s.state == "queued"]

    order = []
    lock = threading.Lock()

    def ask(name, workers):
        with connect(cluster.address, num_workers=workers, name=name), lock:
            order.append(name)

    holder = connect(cluster.address, num_workers=3)
    threads = []
    for name, workers in (("large", 4), ("small", 1), ("last", 4)):
        threads.append(threading.Thread(target=ask, args=(name, workers)))
        threads[-1].start()
        eventually(lambda name=name: name in waiting_names(), what=f"{name} in the queue")
    assert waiting_names() == ["large", "small", "last"]
    holder.shutdown()
    for thread in threads:
        thread.join(50)
    assert order == ["large", "small", "last"]


def test_a_client_that_stops_waiting_leaves_the_queue(cluster):
    """Its place goes to the next one at once."""
    with connect(cluster.address, num_workers=3):
        with pytest.raises(NoSlots):
            connect(cluster.address, num_workers=4, timeout=2.0)
        with connect(cluster.address, num_workers=1, timeout=5.0) as session:
            session.sync_all()


def test_workers_output_can_be_switched_off(open_session, monkeypatch, eventually):
    """Nothing that they print reaches this process's standard error."""
    said = io.StringIO()  # pytest's own loses what is written while it is read
    monkeypatch.setattr(sys, "stderr", said)
    session = open_session(2, logs=False)
    loud = open_session(2)
    for each in (session, loud):
        each.get_global_func("tests.say")("quiet" if each is session else "loud")
        each.sync_all()
    eventually(lambda: "loud" in said.getvalue(), what="the output of the other session")
    assert "quiet" not in said.getvalue()


# In an event loop ---------------------------------------------------------------------------


def test_opening_does_not_stop_the_event_loop(cluster):
    """And ``async with`` ends the session; a wrong argument is refused as ever."""

    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(await asyncio.sleep(0))

        ticking = asyncio.ensure_future(tick())
        async with aconnect(cluster.address, num_workers=2, name="in-a-loop") as session:
            assert len(ticks) > 2
            assert session.name == "in-a-loop"
            await session.synced()
            with pytest.raises(WouldBlock, match="synced"):
                session.sync_all()
        opened = await aconnect(cluster.address, num_workers=1)
        async with opened as same:
            assert same is opened
        with pytest.raises(ConfigError, match="num_workers from 1"):
            await aconnect(cluster.address, num_workers=0)
        ticking.cancel()

    asyncio.run(main())


def test_the_opener_of_a_session_is_the_task_that_awaited_it(cluster):
    """Which is told of what ended threads have left."""

    async def main():
        async with aconnect(cluster.address, num_workers=1) as session:
            missing = threading.Thread(
                target=lambda: session.get_global_func("tests.that_is_not_there")(1)
            )
            missing.start()
            missing.join()
            with pytest.raises(FunctionNotFound):
                await session.synced()

    asyncio.run(main())


def test_a_session_whose_opening_was_cancelled_is_ended(cluster):
    """Its slots are free for the next one."""

    async def main():
        opening = asyncio.ensure_future(open_all())
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    async def open_all():
        return await aconnect(cluster.address, num_workers=4)

    asyncio.run(main())
    with connect(cluster.address, num_workers=4) as session:
        session.sync_all()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "unix"])
def test_this_machine_s_refusal_is_not_waited_for(host, tmp_path):
    """There is no controller, and the first thing to try is a cluster for one command."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        address = f"unix:{tmp_path}/nobody" if host == "unix" else f"{host}:{port}"
        with pytest.raises(ConnectionFailed, match=r"\(waited for 0 s, .*\); 'disco local -- "):
            connect(address, num_workers=1, timeout=30)


def test_a_wait_for_a_controller_is_told(printed, eventually):
    """Where something listens that does not answer, as of one that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="no controller answers"):
            connect(address, num_workers=1, timeout=5)
        told = f"waiting for a controller at {address} ("
        eventually(lambda: told in printed(), what="a line about the wait")
        assert printed().count("waiting for a controller") == 1
