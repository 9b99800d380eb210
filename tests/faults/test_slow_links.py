"""Links on which every message is long under way: row 33."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest

from disco_client import connect
from fault_tools.certificates import Pki
from fault_tools.proxy import Proxy

PATIENT = ("--session-lease", "60")
"""However long a loaded machine takes."""

ARRAY = np.random.default_rng(7).integers(0, 1 << 60, 1 << 16)
"""Half a MiB."""


@pytest.fixture
def slow_path(daemons):
    """Leads to addresses over links that take so many seconds each way."""
    with contextlib.ExitStack() as stack:

        def make(address, delay, frames=0):
            proxy = stack.enter_context(Proxy(address, frames))
            for way in proxy.ways:
                way.delay = delay
            return proxy

        yield make


@pytest.fixture
def pki(tmp_path):
    """Certificates of this test's cluster."""
    return Pki.make(tmp_path / "pki")


@pytest.mark.timeout(180)  # the slowest takes 50 s of its own, whatever the machine
@pytest.mark.parametrize(
    ("delay", "encrypted"),
    [(0.02, False), (0.12, False), (0.4, True)],
    ids=["20 ms", "120 ms", "400 ms, TLS"],
)
def test_whoever_is_far_away_joins_at_once_and_gets_the_same_results(
    daemons, slow_path, pki, eventually, delay, encrypted
):
    """Row 33: node, client and command line, and arrays straight and through the controller."""
    flags = {who: pki.flags(who) if encrypted else [] for who in ("controller", "worker")}
    mine = pki.files("client") if encrypted else {}
    controller = daemons.controller(*PATIENT, *flags["controller"])
    nodes_way, clients_way = (
        slow_path(controller.address, delay, controller.frames) for _ in range(2)
    )
    options = ("--slots", "2", "--array-listen", "127.0.0.1:0")
    worker = daemons.worker(nodes_way.address, *options, *flags["worker"])
    assert "not connected" not in worker.stderr  # the first attempt succeeded
    with connect(clients_way.address, num_workers=2, logs=False, **mine) as session:
        arrays = session._core.transport._arrays
        straight = slow_path(arrays._addresses[0], delay)
        address = straight.address
        for addresses in ({}, {0: address}):  # through the controller, and straight to the node
            arrays._addresses = addresses
            sent = session.copy_to_worker_0(ARRAY)
            np.testing.assert_array_equal(sent.numpy(), ARRAY)
        eventually(lambda: arrays._reach(address), what="the straight way")
        with straight.there.after(ARRAY.nbytes // 2, lambda: None):
            total = session.empty(ARRAY.shape, ARRAY.dtype)
            session.allreduce(session.broadcast(ARRAY), total)
        np.testing.assert_array_equal(total.numpy(0), ARRAY * 2)
        found = status(clients_way.address, mine)
        assert [each["num_workers"] for each in found["sessions"]] == [2]
        assert "not connected" not in worker.stderr
        if encrypted:  # to connect anew takes longer than --node-return
            nodes_way.cut()
            nodes_way.heal()
            np.testing.assert_array_equal(sent.numpy(), ARRAY)


def status(address, credentials):
    """What ``disco status`` says of a controller."""
    named = [f"--{name.replace('_', '-')}={path}" for name, path in credentials.items()]
    command = [sys.executable, "-m", "disco_server.cli.main", "status", "--json"]
    told = subprocess.run(
        [*command, "--address", address, *named], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)
