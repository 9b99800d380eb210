"""What becomes of a save in the background when workers are replaced, or the program leaves."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from disco_client import SavingUnderWay, WorkersReplaced, attach, connect

ARRAY = np.arange(48, dtype=np.float32).reshape(8, 6)


def hold(session, gate):
    """Keeps saves from being durable until there is a file."""
    session.import_python_module("disco_saving_functions")
    session.get_global_func("saving.hold")(str(gate))


def test_workers_that_take_the_place_of_lost_ones_save_it(cluster, tmp_path):
    """Where a session does again what lost workers have done; the program does not notice."""
    gate = tmp_path / "gate"
    with connect(cluster.address, num_workers=2, recover="replay") as session:
        hold(session, gate)
        x = session.distribute(ARRAY, None, "S[0]")
        session.save(tmp_path / "c", {"x": x})
        x = x + 1
        saving = session.save(tmp_path / "c", {"x": x}, wait=False)
        with pytest.raises(SavingUnderWay):
            session.checkpoint(tmp_path / "steps")
        os.kill(session.workers[1].pid, signal.SIGKILL)
        y = x + 1
        assert np.array_equal(y.numpy(), ARRAY + 2)
        assert len(session.recoveries) == 1
        gate.touch()
        saving.wait()
        assert np.array_equal(session.load(tmp_path / "c")["x"].numpy(), ARRAY + 1)
        session.checkpoint(tmp_path / "steps")


def test_workers_whose_state_is_made_anew_know_nothing_of_it(cluster, tmp_path):
    """The wait for it says so; the session goes on, and saves anew."""
    made = []

    def rebuild(session):
        made.append(session.distribute(ARRAY + len(made), None, "S[0]"))

    with connect(cluster.address, num_workers=2, recover=rebuild) as session:
        rebuild(session)
        session.save(tmp_path / "c", {"x": made[0]})
        hold(session, tmp_path / "gate")
        saving = session.save(tmp_path / "c", {"x": made[0] + 9}, wait=False)
        os.kill(session.workers[1].pid, signal.SIGKILL)
        for wait in (saving.wait, saving.wait, session.sync_all):
            with pytest.raises(WorkersReplaced):
                wait()
        assert np.array_equal(session.load(tmp_path / "c")["x"].numpy(), ARRAY)
        session.save(tmp_path / "c", {"x": made[-1]}, wait=False).wait()
        assert np.array_equal(session.load(tmp_path / "c")["x"].numpy(), ARRAY + 1)


def test_detaching_waits_for_the_save(cluster, tmp_path):
    """As leaving does."""
    session = connect(cluster.address, num_workers=2)
    session.save(tmp_path / "c", {"x": session.distribute(ARRAY, None, "S[0]")}, wait=False)
    with attach(session.detach(), address=cluster.address) as again:
        assert np.array_equal(again.load(tmp_path / "c")["x"].numpy(), ARRAY)
