"""Process groups of torch on the ranks of a session."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di

pytest.importorskip("torch", reason="needs torch: `make interop`")

MODULES = Path(__file__).parents[1] / "worker_modules"
GENERATOR = np.random.default_rng(5)
INPUTS = GENERATOR.normal(size=(3, 8, 4)).astype("float32")
TARGETS = GENERATOR.normal(size=(3, 8, 1)).astype("float32")


def prepared(session):
    """A session with the functions of this file's tests."""
    session.load_source(MODULES / "disco_torch_functions.py")
    return session


def call(session, name, *args):
    """What a function of them returns on each worker."""
    return session.get_global_func(f"torch_test.{name}")(*args).get_all()


@pytest.fixture(scope="module")
def three():
    """A session of three processes, which tests share that leave its group as it was."""
    with di.ProcessSession(3) as session:
        yield prepared(session)


@pytest.mark.timeout(100)
def test_the_ranks_of_a_session_on_two_nodes_are_those_of_torch_until_one_is_killed(open_session):
    """Each session has a group of its own; a worker that dies in the backward pass is named."""
    for last in (False, True):
        session = prepared(open_session(4))
        found = call(session, "group")
        names = [session.name] * 4
        assert [each[:3] for each in found] == [[rank, 4, "gloo"] for rank in range(4)]
        assert [each[3:7] for each in found] == [[str(r), "4", str(r), "4"] for r in range(4)]
        assert [each[7] for each in found] == names
        assert [each[8] for each in found] == [[10.0] * 3] * 4
        if not last:
            session.shutdown()
    model = session.create("torch_test.Parallel")
    inputs, targets = session.broadcast(INPUTS[0]), session.broadcast(TARGETS[0])
    model.step(inputs, targets).get_all()
    with pytest.raises(di.WorkerLost, match=r"worker 2 on node 'node-.' died of SIGKILL"):
        model.step(inputs, targets, 2).get_all()


@pytest.mark.timeout(100)
def test_a_group_that_has_ended_can_be_made_again(three):
    """By the worker as by a script that has only the environment."""
    assert call(three, "anew") == [3, 3, 3]
    assert call(three, "anew") == [3, 3, 3]
    assert call(three, "by_environment") == [3, 3, 3]


@pytest.mark.timeout(100)
def test_registered_functions_have_the_group_before_they_are_called(three):
    """Those that were registered with torch=True."""
    assert call(three, "sum", 2) == [6.0, 6.0, 6.0]


@pytest.mark.timeout(100)
def test_data_parallel_steps_are_those_of_one_process(three, monkeypatch):
    """Losses and weights, of a class that was registered with torch=True."""
    import torch

    monkeypatch.syspath_prepend(MODULES)
    functions = import_module("disco_torch_functions")

    model = three.create("torch_test.Parallel")
    inputs, targets = three.scatter(INPUTS), three.scatter(TARGETS)
    alone = functions.network()
    whole = [torch.as_tensor(part.reshape(24, -1)) for part in (INPUTS, TARGETS)]
    for _ in range(3):
        losses = model.step(inputs, targets).get_all()
        assert np.mean(losses) == pytest.approx(functions.step_once(alone, *whole))
    expected = torch.nn.utils.parameters_to_vector(alone.parameters()).detach().numpy()
    for worker in range(3):
        np.testing.assert_allclose(model.weights().numpy(worker), expected, atol=1e-6)


@pytest.mark.timeout(100)
def test_nothing_of_a_group_listens_beyond_this_machine(three):
    """Where all workers are on one machine: neither torch's store nor gloo."""
    call(three, "sum", 1)
    for worker in three.workers:
        listening = [
            each.laddr.ip
            for each in psutil.Process(worker.pid).net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) == {"127.0.0.1"}


@pytest.mark.timeout(100)
def test_workers_that_wait_in_torch_for_one_that_raised_end_with_its_error():
    """Soon; the error says why."""
    began = time.monotonic()
    with prepared(di.ProcessSession(2)) as session:
        with pytest.raises(
            di.CclError, match=r"expected the same backend .* 'cpu:gloo' on worker 1"
        ):
            call(session, "backends")
        call(session, "sum", 1)
        with pytest.raises(di.WorkerLost) as raised:
            call(session, "leave", 1)
    text = str(raised.value)
    assert "worker 0 on node 'local' was ended because it waited in torch for worker 1" in text
    assert "ValueError: this worker leaves" in text
    assert "in leave" in text
    assert time.monotonic() - began < 90


@pytest.mark.timeout(100)
def test_a_wait_for_the_work_of_a_collective_is_one_in_torch():
    """The method is not Python's, so that no frame is torch's."""
    with prepared(di.ProcessSession(2)) as session:
        call(session, "sum", 1)
        with pytest.raises(di.WorkerLost, match="waited in torch for worker 1") as raised:
            call(session, "leave_work", 1)
    assert "ValueError: this worker leaves" in str(raised.value)


@pytest.mark.timeout(100)
def test_workers_that_wait_in_torch_beyond_the_limit_of_their_command_end():
    """Torch has no other way to end the wait; the error names the command and the line."""
    with prepared(di.ProcessSession(2)) as session:
        call(session, "sum", 1)
        with session.limit(1.0), pytest.raises(di.WorkerLost) as raised:
            call(session, "skip", 1)
    text = str(raised.value)
    assert "worker 0 on node 'local' was ended because it waited in torch when command #" in text
    assert 'had taken longer than its limit of 1 s (File "' in text
    assert text.partition("(File")[2].partition(")")[0].endswith(", in skip")


@pytest.mark.timeout(100)
def test_what_torch_raises_of_a_death_does_not_hide_it():
    """Peers learn of it by their connections, before the program that watches the processes."""
    with prepared(di.ProcessSession(3)) as session:
        model = session.create("torch_test.Parallel")
        inputs, targets = session.broadcast(INPUTS[0]), session.broadcast(TARGETS[0])
        model.step(inputs, targets).get_all()
        with pytest.raises(di.WorkerLost, match="worker 1 on node 'local' died of SIGKILL"):
            model.step(inputs, targets, 1).get_all()


@pytest.mark.timeout(100)
def test_a_group_ends_with_its_session_in_silence(printed):
    """At once, and no library of torch writes anything."""
    with prepared(di.ProcessSession(2)) as session:
        call(session, "sum", 1)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert printed() == ""


def test_threads_of_one_process_have_no_group():
    """The error says which sessions have one."""
    threads = prepared(di.ThreadedSession(2))
    with threads, pytest.raises(di.CclError, match="whose workers are processes"):
        call(threads, "group")
