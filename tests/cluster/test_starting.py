"""Sessions that cannot start: an error in time, and a cluster that is as before."""

from __future__ import annotations

import resource

import psutil
import pytest

from disco_client import connect, errors


def test_a_node_without_descriptors_fails_the_session_and_recovers(daemons):
    """Whoever asked is told which node it was and why; later sessions run."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", 2, "--name", "poor")
    process = psutil.Process(worker.process.pid)
    soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 3, hard))
    with pytest.raises(errors.SessionLost, match="poor") as failed:
        connect(controller.address, num_workers=2, timeout=10)
    assert isinstance(failed.value, errors.WorkerLost | errors.NodeLost)
    process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with connect(controller.address, num_workers=2, timeout=20) as session:
        session.sync_all()
    assert worker.process.poll() is None
