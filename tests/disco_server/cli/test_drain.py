"""``disco drain``: a node takes no new sessions, and takes them again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

from disco_client import connect, errors
from disco_server.cli.main import main


@pytest.fixture
def controller(daemons):
    """A controller with two nodes of two slots."""
    started = daemons.controller("--session-lease", "60")
    for name in ("left", "right"):
        daemons.worker(started.address, "--name", name, "--slots", "2")
    return started


@pytest.fixture
def disco(controller):
    """Runs a command on the cluster."""

    def run(*arguments):
        options = ["--address", controller.address]
        return CliRunner().invoke(main, [*arguments, *options], prog_name="disco")

    return run


@pytest.fixture
def connect_to():
    """Opens sessions that end with the test."""
    opened = []

    def open_one(address, **options):
        opened.append(connect(address, **options))
        return opened[-1]

    yield open_one
    for session in opened:
        session.shutdown()


@pytest.fixture
def node(disco):
    """What the lists say of a node."""

    def named(name):
        found = json.loads(disco("status", "--json").stdout)["nodes"]
        return next(node for node in found if node["name"] == name)

    return named


def test_what_runs_there_goes_on_and_what_comes_goes_elsewhere(
    disco, node, controller, connect_to, eventually
):
    """The program is told, lists say why, and so does the refusal of whoever finds no room."""
    session = connect_to(controller.address, num_workers=2, name="stays")
    (where,) = {rank.node for rank in session.workers}
    other = "right" if where == "left" else "left"
    shown = disco("drain", where[:2], "--reason", "new disk")
    assert shown.output.startswith(
        f"node {where!r} takes no new sessions; 1 session there: 'stays' of "
    )
    eventually(lambda: session.draining == (where,), what="the notice")
    assert (node(where)["state"], node(where)["drained"]) == ("draining", "new disk")
    assert "DRAINING (new disk), 2 slots in use" in disco("status").output
    session.sync_all()
    second = connect_to(controller.address, num_workers=2)
    assert {rank.node for rank in second.workers} == {other}
    with pytest.raises(errors.NoSlots, match=rf"node '{where}' drains with 2 slots \(new disk\)"):
        connect(controller.address, num_workers=1, timeout=2.0)
    assert disco("drain", where, "--undo").output == f"node {where!r} takes sessions again\n"
    eventually(lambda: session.draining == (), what="the notice")
    assert node(where)["state"] == "ready"


def test_it_waits_for_the_last_session(disco, controller, connect_to):
    """With a time limit it fails and says what is left; the node stays drained."""
    session = connect_to(controller.address, num_workers=4, name="long")
    shown = disco("drain", "left", "right", "--wait", "--timeout", "0.3", "--json")
    assert shown.exit_code == 1
    for each in json.loads(shown.stdout)["nodes"]:
        assert (each["state"], each["held_slots"]) == ("draining", 2)
        assert [there["name"] for there in each["sessions"]] == ["long"]
    assert "'left' with 2 slots in use" in shown.stderr
    assert "disco stop SESSION" in shown.stderr
    command = [sys.executable, "-m", "disco_server.cli.main", "drain", "left", "--wait"]
    with subprocess.Popen(
        [*command, "--address", controller.address], stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout.readline().startswith("node 'left' takes no new sessions")
        assert waiting.poll() is None
        session.shutdown()
        assert waiting.stdout.readline() == "no session is left on 'left'\n"
        assert waiting.wait(20) == 0


def test_who_waits_is_told_why_and_gets_the_slots_when_it_is_undone(
    disco, controller, connect_to, eventually
):
    """The list has the reason beside the session."""
    disco("drain", "left", "right")
    opened = []
    opening = threading.Thread(
        target=lambda: opened.append(connect_to(controller.address, num_workers=3, name="waits"))
    )
    opening.start()

    def waits():
        found = json.loads(disco("status", "--json").stdout)["sessions"]
        return [each["waits_for"] for each in found if each["name"] == "waits"]

    eventually(lambda: any(waits()), what="the session in the queue")
    assert waits()[0].startswith("needs 3, 0 of 0 slots free; node 'left' drains")
    assert "needs 3" in disco("status").output
    disco("drain", "--undo", "left", "right")
    opening.join(30)
    assert len(opened[0].workers) == 3


def test_it_outlives_the_daemon_and_the_controller(disco, node, controller, daemons, eventually):
    """Whichever is started again learns it from the other; so do what was undone in between."""
    disco("drain", "left", "--reason", "bad GPU")
    worker = daemons.started[1]
    worker.send(9)
    worker.wait()
    daemons.worker(controller.address, "--name", "left", "--slots", "2")
    assert node("left")["state"] == "draining"
    controller.send(9)
    controller.wait()
    daemons.controller("--session-lease", "60", "--listen", controller.address)
    eventually(lambda: "left" in disco("status").output, 30, "the node")
    assert (node("left")["state"], node("left")["drained"]) == ("draining", "bad GPU")
    disco("drain", "--undo", "left")
    assert node("left")["state"] == "ready"


def test_a_signal_and_the_command_are_one_state(disco, node, daemons, controller, eventually):
    """What SIGUSR1 began the command undoes."""
    daemons.started[1].send(10)
    eventually(lambda: node("left")["state"] == "draining", what="the node's word")
    assert node("left")["drained"] == ""
    disco("drain", "--undo", "left")
    assert node("left")["state"] == "ready"
    eventually(lambda: "takes sessions again" in daemons.started[1].stderr, what="the daemon's log")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["middle"], 5, "expected a node, got 'middle'; there are: left, right"),
        (["--undo", "left", "--wait"], 2, "expected --undo alone"),
        (["left", "--timeout", "3"], 2, "expected --timeout together with --wait"),
        (["left", "--reason", "x" * 200], 2, "a reason of at most 128 characters"),
        (["left", "--reason", "a\x1b[2J"], 2, "reason"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_is_refused(arguments, code, told, disco, node):
    """Nothing is drained then."""
    shown = disco("drain", *arguments)
    assert shown.exit_code == code
    assert told in shown.stderr
    assert node("left")["state"] == node("right")["state"] == "ready"
