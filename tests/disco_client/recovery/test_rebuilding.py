"""Sessions whose programs make their state anew on other workers: who learns of that, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest

from disco_client import connect, errors

LARGE = 100_000


class Model:
    """The state of a program: a function and weights, made anew on other workers.

    Attributes:
        made: How often.
        during: Called in ``rebuild`` after that, with the session.
    """

    def __init__(self):
        self.made = 0
        self.during = lambda _session: None

    def __call__(self, session):
        session.import_python_module("disco_test_functions")
        self.add = session.get_global_func("tests.add")
        self.weights = session.broadcast(np.arange(float(LARGE)) + self.made)
        self.made += 1
        self.during(session)


@pytest.fixture
def model():
    """The state of the session."""
    return Model()


@pytest.fixture
def session(open_session, model):
    """A session of two workers with a state that it makes anew."""
    session = open_session(2, recover=model, logs=False)
    model(session)
    session.sync_all()
    return session


def replaced(call):
    """Calls something that has to learn that workers were replaced; returns the error."""
    with pytest.raises(errors.WorkersReplaced) as raised:
        call()
    return raised.value


def test_a_wait_learns_of_the_new_workers_and_the_state_is_there(session, model, tmp_path):
    """Rebuild runs once; the error names the loss; what is issued again works."""
    former = session.workers
    before = model.weights
    total = session.empty((LARGE,), "float64")
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "killed"))
    session.allreduce(before, total)
    told = replaced(total.numpy)
    assert type(told) is errors.WorkersReplaced
    assert told.commands_lost
    assert isinstance(told.__cause__, errors.WorkerLost)
    assert told.recovery.lost is told.__cause__
    assert session.recoveries == (told.recovery,)
    assert "worker 1 on node" in str(told)
    assert "issue again" in str(told)
    assert model.made == 2
    assert not {each.pid for each in former} & {each.pid for each in session.workers}
    total = session.empty((LARGE,), "float64")
    session.allreduce(model.weights, total)
    np.testing.assert_array_equal(total.numpy(1), 2 * (np.arange(LARGE) + 1))
    session.sync_all()
    assert session.failures().total == 0


def test_tasks_learn_of_the_new_workers_and_go_on(session, model, tmp_path):
    """An await ends with the error, room is there when the state is, and each task is told once."""

    async def step():
        await session.ready()
        return await model.add(model.weights, 1)

    async def use(number):
        told, results = 0, []
        while len(results) < 2:
            try:
                results.append(await step())
            except errors.WorkersReplaced:
                told += 1
            if number == 0 and len(results) == 1 and not told:
                session.get_global_func("tests.kill_once_on")(0, str(tmp_path / "killed"))
        return told, results[-1][0]

    async def serve():
        async with session:
            return await asyncio.gather(*map(use, range(4)))

    for number, (told, first) in enumerate(asyncio.run(serve())):
        assert told <= 1
        assert told or number, "the task whose command killed a worker is told"
        assert first == (model.made if told else first)
    assert model.made == 2


def test_references_of_before_are_errors_of_their_own(session, model, lose):
    """Every command that reads one says so; new references have other registers."""
    x = session.distribute(np.arange(16.0).reshape(4, 4), placement="S[0]")
    with session.capture() as program:
        program.output(model.add(program.input("x"), 1))
    add, weights = model.add, model.weights
    session.publish("x", x)
    session.sync_all()
    lose(session)
    replaced(session.sync_all)
    held = [session.copy_to_worker_0(np.full(3, float(i))) for i in range(50)]
    for use in (
        weights.numpy,
        lambda: add(1, 2).debug_get_from_remote(0),
        lambda: model.add(weights, 1).debug_get_from_remote(1),
        lambda: model.add([1, weights], 1).debug_get_from_remote(1),
        (x @ x).numpy,
        lambda: program(x=1).debug_get_from_remote(0),
        lambda: weights.debug_copy_from(0, np.zeros(LARGE)),
        lambda: session.copy_from_worker_0(np.zeros(LARGE), weights),
    ):
        stale = replaced(use)
        assert isinstance(stale, errors.StaleReference), use
        assert "worker 1 on node" in str(stale)
        assert "make it again" in str(stale)
    model.add(weights, 2)
    line = replaced(session.sync_all).issued_at
    assert line.filename == __file__
    with pytest.raises(errors.BadArgument, match="'x'"):
        session.published("x")
    assert [each.numpy()[0] for each in held] == list(range(50))
    y = session.distribute(np.eye(4), placement="S[0]")
    np.testing.assert_array_equal((y @ y).numpy(), np.eye(4))
    session.sync_all()


def test_what_dies_later_gives_its_register_back(session, lose):
    """References of before hold theirs until then, and not longer."""
    old = [session.copy_to_worker_0(np.zeros(3)) for _ in range(200)]
    session.sync_all()
    lose(session)
    replaced(session.sync_all)
    high = session.statistics()["registers"]
    del old
    new = [session.copy_to_worker_0(np.full(3, float(i))) for i in range(200)]
    assert [each.numpy()[0] for each in new] == list(range(200))
    assert session.statistics()["registers"] <= high + 5


def test_each_thread_that_has_lost_something_learns_of_it_once(session, model):
    """Whatever it does meanwhile comes after; one that begins afterwards learns nothing."""
    started, results = threading.Barrier(4), {}
    # Others have time to try to get in between; what is asserted holds whether they do or not.
    model.during = lambda _session: time.sleep(0.2)

    def work(number):
        told, value = 0, model.add(number, 0)
        started.wait(20)
        deadline = time.monotonic() + 40
        while not told or value is None:
            assert time.monotonic() < deadline
            try:
                value = model.add(number if value is None else value, 0)
                if value.debug_get_from_remote(1) != number:
                    results[number] = "a foreign value"
                    return
            except errors.WorkersReplaced:
                told, value = told + 1, None
        for _ in range(100):
            value = model.add(value, 1)
        results[number] = told, value.debug_get_from_remote(1)

    threads = [threading.Thread(target=work, args=(number,)) for number in (10, 20, 30)]
    for thread in threads:
        thread.start()
    started.wait(20)
    os.kill(session.workers[1].pid, signal.SIGKILL)
    for thread in threads:
        thread.join(50)
    assert results == {number: (1, number + 100) for number in (10, 20, 30)}
    assert replaced(session.sync_all).commands_lost is False  # this thread's weights
    later = []
    thread = threading.Thread(target=lambda: later.append(model.add(1, 2).debug_get_from_remote(0)))
    thread.start()
    thread.join(20)
    assert later == [3]
    assert model.made == 2
    session.sync_all()


def test_blocks_and_what_failed_before(session, model, lose, eventually):
    """A block is a scope; failures of before are for failures() alone."""
    session.get_global_func("tests.fail_on")(0)
    eventually(lambda: session._core.inbox._failed.some, what="the failure")
    block = session.scope()
    with block:
        model.add(1, 1)
        lose(session)
        replaced(session.sync_all)
        session.sync_all()
    replaced(session.sync_all)
    session.sync_all()
    assert [each.exception for each in session.failures().last] == ["ValueError"]


def test_an_idle_session_recovers_by_itself_and_the_next_call_learns_of_it(
    session, model, lose, open_session
):
    """A call that issues is one; leaving the session is none, where only references are lost."""
    for made in (2, 3):
        keep = session.copy_to_worker_0(np.zeros(2))
        session.sync_all()
        lose(session, made % 2)
        assert model.made == made
        assert isinstance(replaced(lambda: session.empty((2,), "float32")), errors.WorkersReplaced)
        assert session.empty((2,), "float32").numpy(1).shape == (2,)
        del keep
    assert len(session.recoveries) == 2
    held = [session.copy_to_worker_0(np.zeros(2))]
    session.sync_all()
    lose(session)
    with session:
        assert len(held) == 1


def test_a_rebuild_that_raises_is_called_again_on_other_workers(session, model, lose):
    """What it had made by then does not stand in the way."""
    pids = []

    def fail_first(session):
        pids.append(session.workers[0].pid)
        session.get_global_func("tests.fail_on")(1)
        if len(pids) < 3:
            session.sync_all()
        else:
            model.during = lambda _session: None
            with pytest.raises(errors.RemoteException):
                session.sync_all()

    model.during = fail_first
    lose(session)
    replaced(session.sync_all)
    assert len(set(pids)) == 3
    assert model.weights.numpy(1)[0] == 3
    session.sync_all()
    assert len(session.recoveries) == 1


def test_workers_that_are_lost_in_rebuild_are_replaced_as_well(session, model, tmp_path):
    """Its own calls end with the loss; the program learns of it once."""
    seen = []

    def lose_again(session):
        try:
            session.get_global_func("tests.kill_once_on")(0, str(tmp_path / "again"))
            session.sync_all()
        except errors.WorkerLost as lost:
            seen.append(lost.worker)
            raise

    model.during = lose_again
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "first"))
    replaced(session.sync_all)
    assert seen == [0]
    assert model.made == 3
    assert len(session.recoveries) == 1
    assert model.weights.numpy(1)[0] == 2


def test_a_rebuild_that_always_fails_ends_the_session_with_both_causes(session, model):
    """After three times; waits and later calls raise the loss, and why it was final."""

    def fail(_session):
        raise ValueError("no weights here")

    model.during = fail
    os.kill(session.workers[1].pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerLost, match=r"3 times in a row.*no weights here") as lost:
        session.sync_all()
    assert lost.value.worker == 1
    assert isinstance(lost.value.__cause__, ValueError)
    assert model.made == 4
    with pytest.raises(errors.WorkerLost):
        session.get_global_func("tests.add")


def test_a_lost_node_is_recovered_from_when_there_are_slots_again(daemons, printed, eventually):
    """Its daemon is killed under a call that waits; the call waits for the slots, too."""
    model, told = Model(), []
    controller = daemons.controller("--node-return", "0.2")
    first = daemons.worker(controller.address, "--slots", "1", "--name", "first")
    daemons.worker(controller.address, "--slots", "1", "--name", "second")
    with connect(controller.address, num_workers=2, recover=model, logs=False) as session:
        model(session)
        session.sync_all()

        def wait():
            session.get_global_func("tests.sleep")(60)
            told.append(replaced(session.sync_all))

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: session._core.inbox.answers.expected, what="the call to wait")
        first.send(signal.SIGKILL)
        eventually(lambda: "waiting for 2 slots: " in printed())
        daemons.worker(controller.address, "--slots", "1", "--name", "third")
        waiting.join(30)
        assert isinstance(told[0].recovery.lost, errors.NodeLost)
        assert {each.node for each in session.workers} == {"second", "third"}
        replaced(session.sync_all)
        assert model.weights.numpy(1)[0] == 1


def test_a_shut_down_ends_a_rebuild(session, model):
    """Its calls end, and other threads' waits."""
    began, ended = threading.Event(), []

    def wait(session):
        began.set()
        try:
            session.get_global_func("tests.sleep")(60)
            session.sync_all()
        except errors.SessionError as error:
            ended.append(type(error))
            raise

    model.during = wait
    os.kill(session.workers[0].pid, signal.SIGKILL)
    assert began.wait(20)
    session.shutdown()
    assert ended == [errors.SessionClosed]
    assert not [each for each in threading.enumerate() if each.name == "disco-recovery"]


def test_what_cannot_make_a_state_is_refused(cluster, session, tmp_path):
    """Before anything is opened; and a checkpoint would be of no use."""

    async def rebuild(session):
        pass

    with pytest.raises(errors.ConfigError, match="to be awaited"):
        connect(cluster.address, num_workers=1, recover=rebuild)
    with pytest.raises(errors.ConfigError, match="needs no checkpoint"):
        session.checkpoint(tmp_path)
