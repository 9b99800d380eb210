"""Sessions that begin with as many workers as are free, and go on with as many as are left."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from disco_client import ConfigError, connect, errors


class Model:
    """A state that fits any number of workers, made anew on those that are there."""

    def __init__(self):
        self.sizes = []

    def __call__(self, session):
        self.sizes.append(session.num_workers)
        self.weights = session.distribute(np.arange(24.0).reshape(12, 2), placement="S[0]")

    def total(self):
        return self.weights.sum().item()


def of(session, model):
    """What a step gives, after as many errors as there are losses to learn of."""
    for _ in range(3):
        try:
            session.sync_all()
            return model.total()
        except errors.WorkersReplaced:
            pass
    raise AssertionError("the session does not go on")


@pytest.fixture
def nodes(daemons):
    """A controller, and two daemons of two slots by their names."""
    controller = daemons.controller("--node-return", "0.2")

    def start(name):
        return daemons.worker(controller.address, "--slots", "2", "--name", name)

    return controller.address, start, {name: start(name) for name in ("one", "other")}


def test_a_session_takes_what_is_free(nodes, caplog):
    """At least the first number, at most the second; and it says how many, if not all."""
    address, _, _ = nodes
    with connect(address, num_workers=(2, 3), name="small") as small:
        assert small.num_workers == len(small.workers) == 3
        assert small.room == 1
        with connect(address, num_workers=(1, 3), name="rest") as rest:
            assert rest.num_workers == 1
            assert rest.room == 0
            assert rest.allreduce(rest.broadcast(np.ones(2))).numpy()[0] == 1
        assert caplog.messages == ["session rest has 1 worker, and asked for 1 to 3"]
        with pytest.raises(errors.NoSlots, match="no room for 2 workers"):
            connect(address, num_workers=(2, 8), timeout=0.3)
    with pytest.raises(errors.SessionClosed):
        _ = small.room


def test_groups_stay_equal(nodes):
    """As many groups as were asked for, each with as many workers."""
    address, _, _ = nodes
    with (
        connect(address, num_workers=1),
        connect(address, num_workers=(2, 4), num_groups=2) as session,
    ):
        assert (session.num_workers, session.num_groups) == (2, 2)


@pytest.mark.parametrize("asked", [(2,), (3, 2), (0, 2), (2, 2, 2), (1.5, 2), "2", [1, 2], None])
def test_what_is_no_number_of_workers_is_refused(asked):
    """Before anybody is asked."""
    with pytest.raises(ConfigError, match="num_workers"):
        connect("127.0.0.1:1", num_workers=asked)


def test_it_goes_on_with_fewer_and_with_more_when_they_are_back(nodes):
    """A node that is lost leaves fewer, and one that is back is used at the next loss."""
    address, start, running = nodes
    model = Model()
    with connect(address, num_workers=(2, 4), recover=model, logs=False) as session:
        model(session)
        expected = model.total()
        for lost in ("one", "other"):
            running[lost].send(signal.SIGKILL)
            assert of(session, model) == expected
            assert session.num_workers == len(session.workers) == 2
            running[lost] = start(lost)
            os.kill(session.workers[1].pid, signal.SIGKILL)
            assert of(session, model) == expected
            assert session.num_workers == 4
    assert model.sizes == [4, 2, 4, 2, 4]


def test_what_names_workers_that_are_gone_is_an_error(nodes):
    """At once, and in words: nothing waits for a worker that there is no more."""
    address, _, running = nodes
    model = Model()
    with connect(address, num_workers=(2, 4), recover=model, logs=False) as session:
        model(session)
        weights, add = model.weights, session.get_global_func("numpy.add")
        value, mesh = add(1, 2), session.mesh((4,))
        with session.capture() as program:
            program.output(add(program.input("x"), 1))
        running["one"].send(signal.SIGKILL)
        of(session, model)
        for use in (
            weights.numpy,
            lambda: np.sum(weights + weights).item(),
            lambda: np.sum(weights[3:]).item(),
            lambda: weights.redistribute("R").numpy(),
            lambda: weights.shard(3),
            lambda: value.get(0),
            value.get_all,
            lambda: value.get(3),
            lambda: add.on([3])(1, 2),
            lambda: program(x=1).get(),
            lambda: session.distribute(np.ones(4), mesh, "S[0]"),
            lambda: model.weights.redistribute(mesh, "S[0]").numpy(),
            lambda: session.numpy(mesh=mesh).zeros(4).numpy(),
        ):
            with pytest.raises((errors.StaleReference, ConfigError)):
                use()
        assert model.total() == np.arange(24.0).sum()
        assert session.numpy.zeros(4).numpy().sum() == 0


def test_a_node_that_is_told_to_end_is_seen_before_it_does(daemons, eventually):
    """As a spot machine is: its sessions go on for a while, then with who is left."""
    controller = daemons.controller("--node-return", "0.2")
    first, _ = (
        daemons.worker(controller.address, "--slots", "2", "--name", name, "--drain", drain)
        for name, drain in (("spot", "60"), ("other", "0"))
    )
    model = Model()
    with connect(controller.address, num_workers=(2, 4), recover=model, logs=False) as session:
        model(session)
        assert session.draining == ()
        first.send(signal.SIGTERM)
        eventually(lambda: session.draining == ("spot",))
        assert session.room == 0
        assert model.total() == np.arange(24.0).sum()
        assert sum(worker.node not in session.draining for worker in session.workers) == 2
        first.send(signal.SIGTERM)
        assert of(session, model) == np.arange(24.0).sum()
        assert {worker.node for worker in session.workers} == {"other"}
    assert model.sizes == [4, 2]


def test_a_node_that_drains_ends_when_its_sessions_have(daemons):
    """It does not wait longer than it needs to."""
    controller = daemons.controller()
    node = daemons.worker(controller.address, "--slots", "1", "--drain", "600")
    with connect(controller.address, num_workers=1, logs=False) as session:
        node.send(signal.SIGTERM)
        assert session.broadcast(np.ones(1)).numpy() == 1
    assert node.process.wait(20) == 0


def test_a_log_is_executed_again_by_as_many(nodes):
    """And where these are not to be had, the error says how it would go on."""
    address, _, running = nodes
    with connect(address, num_workers=(2, 4), recover="replay", logs=False, timeout=1.5) as session:
        session.import_python_module("disco_test_functions")
        assert session.broadcast(np.ones(2)).numpy(3)[0] == 1
        running["one"].send(signal.SIGKILL)
        slow = session.get_global_func("tests.sleep")(20)
        said = r"no room for 4 workers.*recover= the session would go on with fewer"
        with pytest.raises(errors.NodeLost, match=said):
            slow.get()
