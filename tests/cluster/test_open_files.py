"""Daemons raise their limit of open files, and say at start where it is too low for them."""

from __future__ import annotations

import resource

import psutil
import pytest

from disco_client import connect, errors


def _limited(kind, count):
    """The beginning of a command that runs with another limit: "S" the soft one, "" both."""
    return ["sh", "-c", f'ulimit -{kind}n {count} && exec "$@"', "sh"]


def test_both_daemons_raise_the_soft_limit_to_the_hard_one(daemons):
    """Whatever the shell has that starts them; their ranks have it too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    daemons.prefix = _limited("S", 128)
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", 1)
    with connect(controller.address, num_workers=1) as session:
        for pid in (controller.process.pid, worker.process.pid, session.workers[0].pid):
            assert psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert "open files" not in controller.stderr + worker.stderr


def test_a_daemon_that_will_need_more_than_it_may_have_says_so_at_start(daemons):
    """What it will need and for what, what it has, and what to do."""
    daemons.prefix = _limited("", 256)
    controller = daemons.controller("--max-connections", 1000)
    assert "1000 connections need up to 1596 open files, and this process may have 256" in (
        controller.stderr
    )
    assert "--max-connections" in controller.stderr
    worker = daemons.worker(controller.address, "--slots", 100)
    assert "100 slots need up to 1296 open files, and this process may have 256" in worker.stderr
    assert "--slots" in worker.stderr
    few = daemons.worker(controller.address, "--slots", 4, "--name", "few")
    assert "open files" not in few.stderr


def test_a_session_may_have_as_many_workers_as_the_setting_says(daemons):
    """One more is refused with the setting's name."""
    controller = daemons.controller("--max-workers", 2)
    daemons.worker(controller.address, "--slots", 3)
    with connect(controller.address, num_workers=2) as session:
        session.sync_all()
    message = "num_workers from 1 to 2, got 3; .*--max-workers"
    with pytest.raises(errors.ConfigError, match=message):
        connect(controller.address, num_workers=3)
