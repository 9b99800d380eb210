"""What outlives a program: its session, if it wants, and values under a name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import disco_client
from disco_client import ProcessSession, SocketSession, ThreadedSession, attach, connect, errors

FUNCTIONS = "disco_test_functions"


@pytest.fixture
def left(cluster):
    """A session with published values, detached from; its id."""
    session = connect(cluster.address, num_workers=4, name="mine", logs=False)
    session.import_python_module(FUNCTIONS)
    mesh = session.mesh((2, 2), ("a", "b"))
    session.publish("x", session.distribute(np.arange(12.0).reshape(3, 4), mesh, "S[0], S[1]"))
    session.publish("each", session.get_global_func("tests.rank_array")((2,), "int32"))
    session.publish("count", session.get_global_func("tests.count"))
    session.call_packed(session.published("count"))
    yield session.detach(30)
    with pytest.raises((errors.ConfigError, errors.SessionClosed)):
        attach("mine", address=cluster.address)  # each test ends it


@pytest.mark.parametrize("timeout", [float("nan"), -1.0, 0])
def test_a_timeout_in_which_nothing_is_reached_is_refused(timeout):
    """Before anything is tried."""
    with pytest.raises(errors.ConfigError, match="expected a timeout above 0 seconds"):
        attach("mine", address="127.0.0.1:1", timeout=timeout)


def test_another_program_goes_on_where_one_left(cluster, left):
    """In another process, with tensors, arrays and functions, and nothing else of before."""
    program = (
        "import sys, numpy as np, disco_client\n"
        "with disco_client.attach('mine', address=sys.argv[1]) as session:\n"
        "    assert session.session_id == sys.argv[2]\n"
        "    assert (session.num_workers, session.num_groups, session.name) == (4, 1, 'mine')\n"
        "    assert session.list_published() == ['count', 'each', 'x']\n"
        "    x = session.published('x')\n"
        "    assert str(x.placement) == 'S[0], S[1]'\n"
        "    assert x.mesh.names == ('a', 'b')\n"
        "    np.testing.assert_array_equal((x + x).numpy(), 2 * np.arange(12.0).reshape(3, 4))\n"
        "    count = session.published('count')\n"
        "    assert session.call_packed(count).debug_get_from_remote(2) == 2\n"
        "    print(session.published('each').debug_get_from_remote(3))\n"
        "    total = session.empty((2,), 'int64')\n"
        "    session.allreduce(session.broadcast(np.ones(2, 'int64')), total)\n"
        "    print(total.numpy())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, cluster.address, left],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[4 4]" in done.stdout


def test_references_of_before_let_go_of_what_they_held(cluster, left):
    """A program that attaches begins with empty registers; what was published stays."""
    with attach(left, address=cluster.address) as session:
        held = session.get_global_func("tests.registers")()
        total, used = held.debug_get_from_remote(1)
        assert total >= used
        assert used <= 3  # this call's function and result, and its own lookup
        assert session.published("x").shape == (3, 4)


def test_a_session_can_be_left_and_attached_to_again_and_again(cluster, left):
    """The counts of its log go on, and its arrays travel as ever."""
    for step in range(2, 5):
        session = attach(left, address=cluster.address, logs=False)
        large = np.full(200_000, float(step))
        session.publish("large", session.broadcast(large))
        count = session.published("count")
        assert session.call_packed(count).debug_get_from_remote(0) == step
        assert session.detach(30) == left
    with attach(left, address=cluster.address) as session:
        np.testing.assert_array_equal(session.published("large").debug_get_from_remote(3), large)


def test_what_a_killed_program_left_can_be_attached_to(cluster):
    """Within the lease, as if it had detached."""
    program = (
        "import os, sys, disco_client\n"
        "s = disco_client.connect(sys.argv[1], num_workers=2, name='orphan')\n"
        "s.publish('n', s.get_global_func('runtime.disco.worker_rank')())\n"
        "s.sync_all()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, cluster.address], check=True)
    with attach("orphan", address=cluster.address) as session:
        assert session.published("n").debug_get_from_remote(1) == 1


def test_a_session_that_was_left_says_so(cluster):
    """Every later call of that program, with how to go on."""
    session = connect(cluster.address, num_workers=1, logs=False)
    left = session.detach(5)
    with pytest.raises(errors.SessionClosed, match=rf"attach\('{left}'\)"):
        session.sync_all()
    attach(left, address=cluster.address).shutdown()


def test_only_a_controller_daemon_keeps_a_session():
    """The others end with their program, and say so at once."""
    for make in (
        lambda: ThreadedSession(1),
        lambda: ProcessSession(1),
        lambda: SocketSession(1, 1, 1, "localhost", 0),
    ):
        with make() as session, pytest.raises(errors.ConfigError, match=r"disco_client\.connect"):
            session.detach()


def test_published_values_are_found_by_name():
    """In every session; what has no name is an error that says what has."""
    with ThreadedSession(2) as session:
        assert session.list_published() == []
        with pytest.raises(errors.BadArgument, match="published: nothing is"):
            session.published("x")
        value = session.get_global_func("runtime.disco.worker_rank")()
        session.publish("x", value)
        del value
        assert session.published("x").debug_get_from_remote(1) == 1
        with pytest.raises(errors.BadArgument, match="as 'y' in this session; published: 'x'"):
            session.published("y")
        session.unpublish("x")
        assert session.list_published() == []
        session.unpublish("x")
        with pytest.raises(errors.BadArgument, match="nothing is published as 'x'"):
            session.sync_all()
        for wrong in ("", "x" * 257, 3):
            with pytest.raises(errors.ConfigError, match="expected a name"):
                session.publish(wrong, session.empty((1,), "int8"))


@pytest.mark.parametrize("lease", [0, -1, True, "long"])
def test_a_lease_is_a_time(lease):
    """Anything else is refused before anything happens."""
    with ThreadedSession(1) as session:
        with pytest.raises(errors.ConfigError, match="expected a lease"):
            session.detach(lease)
        session.sync_all()


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_session_is_attached_to_by_its_name(name):
    """Anything else is refused before anybody is asked."""
    with pytest.raises(errors.ConfigError, match="name or id"):
        attach(name)
    assert disco_client.attach is attach
