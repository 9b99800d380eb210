"""Large arrays whose connection is cut while they are on their way: rows 1, 6 and 8."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from disco_client import attach, connect, errors
from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.transfer import Uploads
from fault_tools.proxy import Proxy

MIB = 1 << 20
PATIENT = ("--session-lease", "60")
"""However long a loaded machine takes to start a daemon again."""

ARRAY = np.random.default_rng(1).integers(0, 1 << 60, 2 * MIB)
"""16 MiB."""


@pytest.fixture
def path_to(daemons):
    """Leads to daemons through a bad network."""
    with contextlib.ExitStack() as stack:
        yield lambda address, frames=0: stack.enter_context(Proxy(address, frames))


class Network:
    """A node, and a controller that it and clients reach through bad networks.

    Attributes:
        clients_way, nodes_way: To the controller.
    """

    def __init__(self, daemons, stack):
        other = {"FAULT_TEST": "shared"}  # not the test's that happens to be the first one
        controller = daemons.controller(*PATIENT, **other)
        self.clients_way, self.nodes_way = (
            stack.enter_context(Proxy(controller.address, controller.frames)) for _ in range(2)
        )
        daemons.worker(self.nodes_way.address, "--slots", "2", **other)


@pytest.fixture(scope="module")
def network(shared_daemons):
    """One for all tests that leave it whole."""
    with contextlib.ExitStack() as stack:
        yield Network(shared_daemons, stack)


def relayed(session):
    """Lets the arrays of a session go through the controller, as from another network."""
    session._core.transport._arrays._addresses.clear()
    session.import_python_module("disco_test_functions")
    return session.get_global_func("tests.count")


@pytest.mark.parametrize("where", ["client", "node"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_an_array_that_is_cut_on_its_way_comes_all_the_same(network, where, direction):
    """Row 8: on both links and in both ways; the call returns as if nothing had happened."""
    proxy = network.clients_way if where == "client" else network.nodes_way
    with connect(network.clients_way.address, num_workers=1, logs=False) as session:
        count = relayed(session)
        ref = None if direction == "up" else session.copy_to_worker_0(ARRAY)
        count()
        session.sync_all()
        # A node has dialled too, and so fetches uploads from the controller.
        towards = (where == "client") == (direction == "up")
        way = proxy.there if towards else proxy.back

        def cut():
            proxy.cut()
            proxy.heal()

        with way.after(ARRAY.nbytes // 2, cut):
            if ref is None:
                ref = session.copy_to_worker_0(ARRAY)
                session.sync_all()
            np.testing.assert_array_equal(ref.numpy(), ARRAY)
        assert count().debug_get_from_remote(0) == 2


@pytest.mark.parametrize("direction", ["up", "down"])
def test_an_array_survives_a_controller_that_is_started_again(daemons, path_to, direction):
    """Row 6: killed in the middle of it; nodes and client come back, and the array comes anew."""
    first = daemons.controller(*PATIENT)
    proxy = path_to(first.address, first.frames)
    daemons.worker(first.address, "--slots", "1")
    with connect(proxy.address, num_workers=1, logs=False) as session:
        count = relayed(session)
        ref = None if direction == "up" else session.copy_to_worker_0(ARRAY)
        count()
        session.sync_all()

        def kill():
            first.send(signal.SIGKILL)
            first.wait()
            daemons.controller(*PATIENT, "--listen", first.address)

        with (proxy.there if ref is None else proxy.back).after(ARRAY.nbytes // 2, kill):
            if ref is None:
                ref = session.copy_to_worker_0(ARRAY)
                session.sync_all()
            np.testing.assert_array_equal(ref.numpy(), ARRAY)
        assert count().debug_get_from_remote(0) == 2


def test_a_door_that_is_cut_is_left_for_the_other_way(daemons, path_to):
    """Row 8: an array that was going straight to the node goes on through the controller."""
    controller = daemons.controller(*PATIENT)
    worker = ("--slots", "1", "--array-listen", "127.0.0.1:0")
    daemons.worker(controller.address, *worker)
    with connect(controller.address, num_workers=1, logs=False) as session:
        arrays = session._core.transport._arrays
        proxy = path_to(arrays._addresses[0])
        arrays._addresses[0] = proxy.address
        with proxy.there.after(ARRAY.nbytes // 2, proxy.cut):
            ref = session.copy_to_worker_0(ARRAY)
        np.testing.assert_array_equal(ref.numpy(), ARRAY)
        arrays._direct.clear()
        proxy.heal()
        with proxy.back.after(ARRAY.nbytes // 2, proxy.cut):
            np.testing.assert_array_equal(ref.numpy(), ARRAY)


def test_beyond_the_lease_the_session_s_own_end_is_the_error(daemons, path_to):
    """Row 8: an upload is tried for as long as its session may live, and no longer."""
    controller = daemons.controller("--session-lease", "1")
    proxy = path_to(controller.address, controller.frames)
    daemons.worker(controller.address, "--slots", "1")
    session = connect(proxy.address, num_workers=1, logs=False)
    relayed(session)
    session.sync_all()
    with (
        proxy.there.after(ARRAY.nbytes // 2, proxy.cut),
        pytest.raises(errors.SessionLost, match="did not come back within 1 s"),
    ):
        session.copy_to_worker_0(ARRAY)
    session.shutdown()


def test_an_upload_ends_with_its_session_whoever_has_the_node_s_name_by_then(daemons, path_to):
    """Row 1: a daemon in the place of a killed one knows nothing of it, and is not asked."""
    controller = daemons.controller(*PATIENT)
    proxy = path_to(controller.address, controller.frames)
    options = (controller.address, "--slots", "1", "--name", "n")
    killed = daemons.worker(*options)
    session = connect(proxy.address, num_workers=1, logs=False)
    relayed(session)
    session.sync_all()

    def replace():
        killed.send(signal.SIGKILL)
        killed.wait()
        daemons.worker(*options)

    with proxy.there.after(ARRAY.nbytes // 2, replace), pytest.raises(errors.NodeLost):
        session.copy_to_worker_0(ARRAY)
    session.shutdown()


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("way", ["memory", "relay"])
def test_an_interrupted_upload_leaves_no_worker_waiting(network, monkeypatch, when, way):
    """Ctrl-C between command and upload, or in the middle of it: the command fails, no more."""
    proxy = network.clients_way
    with connect(proxy.address, num_workers=1, logs=False) as session:
        if way == "relay":
            relayed(session)
        session.sync_all()
        with monkeypatch.context() as patch:
            if when == "before":
                patch.setattr(Uploads, "send", interrupt)
            elif way == "memory":
                patch.setattr(MappedMemory, "write", interrupt)
            with contextlib.ExitStack() as stack:
                if when == "during" and way == "relay":
                    stack.enter_context(proxy.there.after(4 * MIB, press_a_key))
                stack.enter_context(pytest.raises(KeyboardInterrupt))
                session.copy_to_worker_0(ARRAY)
        with pytest.raises(errors.RemoteError, match="the upload was broken off"):
            session.sync_all()
        session.sync_all()


def interrupt(*_):
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def press_a_key():
    """What Ctrl-C does, from another thread."""
    os.kill(os.getpid(), signal.SIGINT)


PROGRAM = """
import os, sys, disco_client, numpy as np
session = disco_client.connect(sys.argv[1], num_workers=1, name="left", logs=False)
session.sync_all()
session._core.transport.upload = lambda *_: os.kill(os.getpid(), 9)
session.copy_to_worker_0(np.ones(1 << 20))
"""


def test_whoever_attaches_does_not_wait_for_arrays_of_a_program_that_is_gone(network, eventually):
    """Killed before its upload; its command fails, and the next program works on."""
    address = network.clients_way.address
    killed = subprocess.run([sys.executable, "-c", PROGRAM, address], check=False)
    assert killed.returncode == -signal.SIGKILL

    def come():
        try:
            return attach("left", address=address)
        except errors.ConfigError:  # the controller has yet to see that it is gone
            return None

    with eventually(come, what="the session to be free") as session:
        session.sync_all()
        there = session.copy_to_worker_0(ARRAY)
        np.testing.assert_array_equal(there.numpy(), ARRAY)
