"""A session that goes on with who is left, while nodes are lost and come back again and again."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from disco_client import connect, errors

LOSSES = 20


@pytest.mark.timeout(300)
def test_one_of_two_nodes_is_lost_twenty_times_in_a_row(daemons):
    """Each time it goes on with the other one's two, and with four after the next loss."""
    controller = daemons.controller("--node-return", "0.2")

    def start(name):
        return daemons.worker(controller.address, "--slots", "2", "--name", name)

    running = {name: start(name) for name in ("one", "other")}
    sizes = []

    def rebuild(session):
        sizes.append(session.num_workers)
        made["x"] = session.distribute(np.arange(24.0), placement="S[0]")

    def step(session):
        while True:
            try:
                return (made["x"] * 2).sum().item()
            except errors.WorkersReplaced:
                pass

    made = {}
    with connect(controller.address, num_workers=(2, 4), recover=rebuild, logs=False) as session:
        rebuild(session)
        for number in range(LOSSES):
            lost = ("one", "other")[number % 3 % 2]
            running[lost].send(signal.SIGKILL)
            while session.num_workers == 4:
                assert step(session) == 552
            assert step(session) == 552
            running[lost] = start(lost)
            os.kill(session.workers[number % 2].pid, signal.SIGKILL)
            while session.num_workers == 2:
                assert step(session) == 552
        assert step(session) == 552
        assert len(session.recoveries) == 2 * LOSSES
    assert sizes == [4, *[2, 4] * LOSSES]
