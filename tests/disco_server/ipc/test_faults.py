"""Faults on purpose in streams of asyncio, and that the daemons have them where they say."""

from __future__ import annotations

import asyncio

import pytest

from disco_client import connect
from disco_client.transport import fault_injection
from disco_client.transport.fault_injection import VARIABLE, InjectedCut
from disco_client.wire.codec import Kind, envelope
from disco_server.ipc.grpc_server import arriving, leaving, reading

BATCHES = [envelope(Kind.BATCH, b"", first_seq=number) for number in range(1, 6)]
END = object()


@pytest.fixture
def ask(monkeypatch):
    """Asks for faults as a user would; the count begins anew."""

    def ask_for(text):
        monkeypatch.setattr(fault_injection, "_current", fault_injection._Faults("", ()))
        monkeypatch.setenv(VARIABLE, text)

    return ask_for


async def stream():
    """The five messages."""
    for raw in BATCHES:
        yield raw


def test_without_the_variable_streams_are_left_as_they_are(monkeypatch):
    """The very objects come back, so faults cost nothing where they are off."""
    monkeypatch.delenv(VARIABLE, raising=False)
    messages, function = stream(), asyncio.sleep
    assert arriving("controller.from_node", messages) is messages
    assert leaving("controller.to_node", function) is function
    assert reading("node.receive", function) is function


def test_what_arrives_is_lost_and_doubled_as_asked(ask):
    """By iteration, and by reading until the end, which is no message."""
    ask("controller.from_client:drop=2;node.receive:duplicate=4")

    async def both():
        came = [raw async for raw in arriving("controller.from_client", stream())]
        assert came == [BATCHES[0], *BATCHES[2:]]
        left = [*BATCHES, END]

        async def read():
            return left.pop(0)

        passed = reading("node.receive", read)
        got = []
        while (raw := await passed()) is not END:
            got.append(raw)
        assert got == [*BATCHES[:4], BATCHES[3], BATCHES[4]]

    asyncio.run(both())


def test_what_leaves_is_held_back_and_broken_off_as_asked(ask):
    """A swap lets the next one go first; a cut is an error of the connection."""
    ask("node.send:swap=1;node.send:delay=3/0.01;node.send:cut=5")
    written = []

    async def write(raw):
        written.append(raw)

    async def all_of_them():
        send = leaving("node.send", write)
        for raw in BATCHES[:4]:
            await send(raw)
        with pytest.raises(InjectedCut):
            await send(BATCHES[4])

    asyncio.run(all_of_them())
    assert written == [BATCHES[1], BATCHES[0], *BATCHES[2:4]]


def test_both_daemons_have_the_faults_they_were_asked_for(daemons):
    """Each says so when it starts; delays at every point of theirs leave a session whole."""
    at_controller = ";".join(
        f"{point}[{kind}]:delay=1/0.05"
        for point, kind in (
            ("controller.from_client", "BATCH"),
            ("controller.to_client", "REPLY"),
            ("controller.from_node", "REPLY"),
            ("controller.to_node", "BATCH"),
        )
    )
    at_node = "node.receive[BATCH]:delay=1/0.05;node.send[REPLY]:delay=1/0.05"
    controller = daemons.controller(**{VARIABLE: at_controller})
    worker = daemons.worker(controller.address, "--slots", "1", **{VARIABLE: at_node})
    with connect(controller.address, num_workers=1, logs=False) as session:
        session.sync_all()
    for daemon, wish in ((controller, at_controller), (worker, at_node)):
        assert f"DISCO_TEST_FAULTS is set: {wish}" in daemon.stderr
        for entry in wish.split(";"):
            assert f"{entry.partition('[')[0]}: delay of message 1" in daemon.stderr


def test_a_daemon_does_not_start_with_a_malformed_wish(daemons):
    """It says what was expected, and exits as for any wrong setting."""
    controller = daemons.controller(ready=False, **{VARIABLE: "controller.to_node:lose=1"})
    assert controller.wait() == 2
    assert "expected one of the actions" in controller.stderr
