"""Ports for frames that cannot be reached, and what gRPC carries instead: row 38."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

from disco_client import connect
from disco_client.transport import carriers
from fault_tools.proxy import ELSEWHERE, Proxy

PATIENT = ("--session-lease", "60")


def status(address):
    """What ``disco status`` says carries the streams: of nodes and of sessions."""
    command = [sys.executable, "-m", "disco_server.cli.main", "status", "--json"]
    told = subprocess.run(
        [*command, "--address", address], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    return tuple([each["carrier"] for each in found[what]] for what in ("nodes", "sessions"))


def works(session, calls=20):
    """Whether each call runs once, in order."""
    session.import_python_module("disco_test_functions")
    count = session.get_global_func("tests.count")
    answers = [count() for _ in range(calls)]
    return [each.debug_get_from_remote(0) for each in answers] == list(range(1, calls + 1))


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch):
    """Each test finds out for itself what it reaches."""
    monkeypatch.setattr(carriers.unreached, "_found", {})


def test_frames_carry_what_they_can_and_the_status_says_so(daemons):
    """Row 38: by default; of a client that has left, nothing carries the stream."""
    controller = daemons.controller(*PATIENT)
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, logs=False) as session:
        assert works(session)
        assert status(controller.address) == (["frames"], ["frames"])
        session.detach()
    assert status(controller.address) == (["frames"], [""])


def test_a_controller_that_takes_no_frames_is_spoken_to_by_grpc(daemons):
    """Row 38: ``--frames off``; the controller has one port for its peers then."""
    controller = daemons.controller("--frames", "off")
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, logs=False) as session:
        assert works(session)
        assert status(controller.address) == (["grpc"], ["grpc"])
    assert "frames are taken" not in controller.stderr


def test_behind_a_proxy_for_one_port_grpc_serves(daemons):
    """Row 38: the other port is refused there; nobody waits for it, and nothing is lost."""
    controller = daemons.controller(*PATIENT)
    with Proxy(controller.address, host=ELSEWHERE[0]) as proxy:
        daemons.worker(proxy.address, "--slots", "2")
        with (
            connect(controller.address, num_workers=1, logs=False) as near,
            connect(proxy.address, num_workers=1, logs=False) as far,
        ):
            assert works(near)
            assert works(far)
            assert status(controller.address) == (["grpc"], ["frames", "grpc"])
            proxy.cut()
            proxy.heal()
            far.sync_all()


@contextlib.contextmanager
def standing_in(port, how):
    """Something else at the controller's port for frames, on another address of this machine."""
    with contextlib.ExitStack() as stack:
        where = ELSEWHERE[0], port
        server = stack.enter_context(socket.create_server(where, backlog=0))
        if how == "swallows":  # a full queue, from which the system takes no more
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(where)
        elif how == "closes":
            over = threading.Event()

            def close():
                server.settimeout(0.05)
                while not over.is_set():
                    with contextlib.suppress(TimeoutError):
                        server.accept()[0].close()

            thread = threading.Thread(target=close)
            thread.start()
            stack.callback(thread.join)
            stack.callback(over.set)
        yield


@pytest.mark.parametrize("how", ["says nothing", "closes", "swallows"])
def test_a_port_that_leads_elsewhere_is_left_for_grpc(daemons, monkeypatch, how):
    """Row 38: after a moment gRPC serves; what did not answer in time is not asked again."""
    monkeypatch.setattr(carriers, "ANSWER_S", 2.0)
    controller = daemons.controller(*PATIENT)
    daemons.worker(controller.address, "--slots", "1")
    with (
        standing_in(controller.frames, how),
        Proxy(controller.address, host=ELSEWHERE[0]) as proxy,
    ):
        with connect(proxy.address, num_workers=1, logs=False) as session:
            assert works(session)
            assert status(controller.address) == (["frames"], ["grpc"])
        assert carriers.unreached.may_try(proxy.address) == (how == "closes")


def test_a_controller_started_again_is_reached_at_its_new_port(daemons, eventually):
    """Row 38: it chose another one; both peers ask it, and go on over frames."""
    first = daemons.controller(*PATIENT)
    daemons.worker(first.address, "--slots", "1")
    with connect(first.address, num_workers=1, logs=False) as session:
        assert works(session)
        first.send(signal.SIGKILL)
        first.wait()
        daemons.controller(*PATIENT, "--listen", first.address)
        session.sync_all()
        assert status(first.address) == (["frames"], ["frames"])
