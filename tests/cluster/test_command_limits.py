"""An operator's limit of how long a command may take, for sessions that nobody watches."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from interrupting import waiting_collectives
from reentry import watched

from disco_client import connect, errors

FUNCTIONS = "disco_interrupt_functions"
LIMIT_S = 3
"""Long enough for an import, and for the first collective on a machine that does other things."""

SHORT_S = 0.5
LONG_S = 600.0
"""Seconds that nobody waits for."""

OPERATORS = r"limit of {} s, which the cluster sets \(--command-limit\)"
_MODULES = ("--allow-module", FUNCTIONS, "--allow-module", "time")


@pytest.fixture(scope="module")
def limited(shared_daemons):
    """The address of a controller with a limit, and with two nodes without one."""
    address = shared_daemons.controller("--command-limit", LIMIT_S).address
    for name in ("a", "b"):
        shared_daemons.worker(address, "--name", name, "--slots", 1, *_MODULES)
    return address


@pytest.fixture
def session(limited):
    """A session of two workers on two nodes, which does again what lost workers have done."""
    with connect(limited, num_workers=2, logs=False, recover="replay", timeout=60) as opened:
        opened.import_python_module(FUNCTIONS)
        yield opened


@pytest.fixture
def alone(daemons):
    """Opens a session of one worker, with limits of the controller and of the worker daemon."""
    opened = []

    def begin(controllers, nodes):
        address = daemons.controller("--command-limit", controllers).address
        daemons.worker(address, "--slots", 1, *_MODULES, "--command-limit", nodes)
        opened.append(connect(address, num_workers=1, logs=False))
        return opened[-1]

    yield begin
    for each in opened:
        each.shutdown()


def goes_on(session):
    """Whether all workers execute what comes next, and meet in a collective."""
    with contextlib.suppress(errors.RemoteError):  # of the other worker
        session.sync_all()
    total = session.allreduce(session.broadcast(np.ones(3)), in_group=False)
    return all((total.numpy(worker) == 2).all() for worker in range(2))


def test_an_endless_function_ends_at_the_limit_that_the_cluster_sets(session):
    """The error says whose limit it is and where the worker was; the session computes on."""
    with watched(60):
        running = session.get_global_func("interrupt.spin")(LONG_S)
        after = session.get_global_func("interrupt.add")(1, 1, 0)
        with pytest.raises(errors.TimeLimit, match=OPERATORS.format(LIMIT_S)) as ended:
            running.get()
        assert ended.value.function == "interrupt.spin"
        assert ended.value.issued_at.filename == __file__
        assert "in spin\n" in ended.value.remote_traceback
        assert "rank/signals.py" not in ended.value.remote_traceback
        assert [after.debug_get_from_remote(worker) for worker in range(2)] == [2, 2]
        assert goes_on(session)


def test_collectives_that_wait_end_on_all_workers(session):
    """Where one worker comes too late, and where it never comes."""
    with watched(60):
        for name, args in waiting_collectives(session):
            ref, ended = session.get_global_func(name)(*args), []
            for worker in range(2):
                try:
                    ref.debug_get_from_remote(worker)
                except (errors.TimeLimit, errors.CollectiveAborted) as error:
                    ended.append(type(error))
            # That one worker has gone past it may be known before the limit passes.
            assert ended
            assert errors.TimeLimit in ended or name == "interrupt.waits_for_nobody"
            assert goes_on(session)


def test_a_program_may_set_a_shorter_limit_and_no_longer_one(session):
    """The shorter one ends the command, and the error says whose it is."""
    spin = session.get_global_func("interrupt.spin")
    with watched(60):
        with session.limit(0.2), pytest.raises(errors.TimeLimit, match=r"0\.2 s") as own:
            spin(LONG_S).get()
        assert "--command-limit" not in str(own.value)
        with session.limit(LONG_S):
            ref = spin(LONG_S)
        with pytest.raises(errors.TimeLimit, match=OPERATORS.format(LIMIT_S)):
            ref.get()


def test_a_run_of_a_program_is_one_command_of_the_limit(session):
    """Its steps have none of their own."""
    with session.capture("in steps") as program:
        program.output(session.get_global_func("interrupt.spin")(LONG_S))
    with watched(60), pytest.raises(errors.TimeLimit, match="in steps"):
        program().get()


def test_other_workers_leave_out_what_took_too_long(session, lose):
    """A worker is lost afterwards; what was done before and after is done again."""
    add = session.get_global_func("interrupt.add")
    with watched(90):
        ran, beside = session.get_global_func("interrupt.spin")(LONG_S), add(1, 1, 0)
        reads = add(ran, 1, 0)
        with pytest.raises(errors.TimeLimit):
            session.sync_all()
        lose(session)
        assert [beside.debug_get_from_remote(worker) for worker in range(2)] == [2, 2]
        for ref in (ran, reads):
            for worker in range(2):
                with pytest.raises(errors.Interrupted):
                    ref.debug_get_from_remote(worker)


@pytest.mark.parametrize(
    ("controllers", "nodes"),
    [(0, SHORT_S), (LONG_S, SHORT_S), (SHORT_S, LONG_S)],
    ids=["node", "shorter-of-the-node", "shorter-of-the-controller"],
)
def test_the_shorter_limit_of_the_controller_and_the_node_counts(alone, controllers, nodes):
    """Zero is none."""
    session = alone(controllers, nodes)
    with watched(60):
        for _ in range(2):
            with pytest.raises(errors.TimeLimit, match=OPERATORS.format(r"0\.5")):
                session.get_global_func("time.sleep")(LONG_S).get()
        assert session.get_global_func("time.sleep")(0).get() is None


@pytest.mark.parametrize("value", ["-1", "soon", "inf", "nan"])
@pytest.mark.parametrize("kind", ["controller", "worker"])
def test_what_is_no_limit_is_refused_at_the_start(daemons, kind, value):
    """By either daemon, with the option and what was expected."""
    option = f"--command-limit={value}"
    if kind == "controller":
        daemon = daemons.controller(option, ready=False)
    else:
        daemon = daemons.worker("127.0.0.1:1", option, ready=False)
    assert daemon.wait(60) != 0
    assert "--command-limit: expected a number of seconds, or 0 for none" in daemon.stderr
