"""A daemon keeps itself registered, through whatever happens to its controller."""

from __future__ import annotations

import signal

from disco_client import connect


def test_it_joins_the_next_controller_at_the_same_address(daemons, eventually):
    """After a restart it registers by itself, says so in its log, and takes sessions."""
    first = daemons.controller()
    worker = daemons.worker(first.address, "--slots", "2")
    with connect(first.address, num_workers=2) as session:
        session.sync_all()
    first.send(signal.SIGKILL)
    first.wait()
    eventually(lambda: "trying again" in worker.stderr, what="a line about the loss")
    second = daemons.controller("--listen", first.address)
    assert second.address == first.address
    with connect(second.address, num_workers=2, timeout=30) as session:
        session.sync_all()
    assert worker.process.poll() is None
    # The ready line is for whoever started it, and they need it once.
    assert worker.stdout.count("\n") == 1


def test_a_controller_that_comes_later_is_found(daemons, eventually):
    """The order in which things start does not matter."""
    probe = daemons.controller()
    probe.send(signal.SIGTERM)
    assert probe.wait() == 0
    worker = daemons.worker(probe.address, "--slots", "1", ready=False)
    eventually(lambda: "trying again" in worker.stderr, what="a line about the wait")
    daemons.controller("--listen", probe.address)
    assert worker.await_ready().startswith("disco-worker ready: node ")


def test_a_second_node_of_the_same_name_is_refused_until_the_first_leaves(daemons, eventually):
    """Its log says why and what to do; it tries again, and takes over when it can."""
    controller = daemons.controller()
    first = daemons.worker(controller.address, "--name", "twin", "--slots", "1")
    second = daemons.worker(controller.address, "--name", "twin", "--slots", "2", ready=False)
    reason = "a node named 'twin' is connected already"
    eventually(lambda: reason in second.stderr, what="the refusal")
    assert "start this daemon with another --name" in second.stderr
    assert second.stdout == ""
    # The first one is not disturbed.
    with connect(controller.address, num_workers=1) as session:
        session.sync_all()
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    second.await_ready()
    with connect(controller.address, num_workers=2) as session:
        session.sync_all()
    # The reason was said once, however often it was heard.
    assert second.stderr.count(reason) == 1
