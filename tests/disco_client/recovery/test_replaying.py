"""Sessions that go on with other workers: what their programs see of it, and what they do not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading

import numpy as np
import pytest
from reentry import Finalizing, in_thread, watched

from disco_client import connect, errors
from disco_client.arrays.transfer import Uploads
from disco_client.distributed import DeviceMesh
from disco_client.output import BackgroundWriter
from disco_client.recovery.replayer import Replayer
from disco_client.transport.base import AnswerLost
from disco_client.transport.outgoing import OutgoingTurn
from disco_client.transport.shared_reader import SharedReader

LARGE = 100_000


@pytest.fixture
def session(open_session):
    """A session of two workers that recovers."""
    return open_session(2, recover="replay", logs=False)


def test_lost_workers_are_a_pause(session, lose):
    """References, functions and arrays are as they were, on other processes."""
    add = session.get_global_func("tests.add")
    first = session.broadcast(np.arange(float(LARGE)))
    second = add(first, 1.0)
    session.sync_all()
    former = session.workers
    lose(session)
    np.testing.assert_array_equal(add(second, 1.0).numpy(1), np.arange(LARGE) + 2.0)
    assert not {each.pid for each in former} & {each.pid for each in session.workers}
    (recovery,) = session.recoveries
    assert isinstance(recovery.lost, errors.WorkerLost)
    assert recovery.lost.worker == 1
    assert recovery.commands > 5


@pytest.mark.parametrize("suffix", ["", "_async"], ids=["generator", "async-generator"])
def test_a_stream_goes_on_where_it_was(session, lose, suffix):
    """Other workers go through the items before, and those of a stream that was left are closed."""
    session.import_python_module("disco_stream_functions")
    count = session.get_global_func(f"stream.count{suffix}")
    kept = session.get_global_func("stream.kept")
    for _ in count(9).stream(ahead=0):
        break
    stream = count(5).stream(worker=1)
    assert [next(stream), next(stream)] == [100, 101]
    lose(session)
    assert list(stream) == [102, 103, 104]
    assert kept().get_all() == [[0, "closed", 0, 1, 2, 3, 4, "closed"]] * 2
    assert len(session.recoveries) == 1


def test_other_workers_hash_texts_as_the_lost_ones_did(session, lose):
    """So what is done again in the order of a set of names is done in the same order."""
    hashed = session.get_global_func("tests.hash_of")
    before = hashed("x").get_all()
    lose(session)
    assert hashed("x").get_all() == before == [before[0]] * 2


def test_the_seconds_of_a_recovery_cover_what_is_done_again(session, lose, eventually):
    """Where the program had waited for it, and where nobody has yet."""
    nap = session.get_global_func("time.sleep")
    for times in (1, 2):
        nap(0.8)
        if times == 1:
            session.sync_all()
        else:
            eventually(lambda: session.statistics()["bytes_under_way"], what="the nap to be sent")
        lose(session)
        session.sync_all()
        assert session.recoveries[-1].seconds >= 0.8 * times
    assert len(session.recoveries) == 2


def test_a_waiting_call_returns_as_if_nothing_had_happened(session, tmp_path):
    """A worker dies in the middle of what is waited for, and its peer in a collective."""
    array = session.broadcast(np.arange(float(LARGE)))
    total = session.empty((LARGE,), "float64")
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "killed"))
    session.allreduce(array, total)
    np.testing.assert_array_equal(total.numpy(), 2 * np.arange(LARGE))
    assert len(session.recoveries) == 1


def test_what_a_collective_made_is_made_again(session, lose):
    """A result without a destination of the program's is a reference as any other."""
    total = session.allreduce(session.scatter(np.arange(4.0).reshape(2, 2)))
    spread = session.broadcast_from_worker0(session.copy_to_worker_0(np.arange(3)))
    session.sync_all()
    lose(session)
    assert total.numpy(1).tolist() == [2.0, 4.0]
    assert spread.numpy(1).tolist() == [0, 1, 2]


def test_awaits_and_futures_outlive_lost_workers(session, tmp_path):
    """Their questions are put to the workers that took the place, large arrays included."""
    large, small = session.broadcast(np.arange(float(LARGE))), session.broadcast(np.ones(3))
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "killed"))
    future = large.future(1)

    async def both():
        return await large, await small

    whole, part = asyncio.run(both())
    np.testing.assert_array_equal(whole, np.arange(LARGE))
    np.testing.assert_array_equal(future.result(timeout=60), np.arange(LARGE))
    assert part.tolist() == [1, 1, 1]
    session.sync_all()  # answers come while commands are still executed again
    assert len(session.recoveries) == 1


def test_a_copy_into_a_worker_waits_for_the_others(session, tmp_path):
    """Its answer comes from the worker that took the place."""
    array = session.empty((3,), "int64")
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "killed"))
    array.debug_copy_from(1, np.array([1, 2, 3]))
    assert array.numpy(1).tolist() == [1, 2, 3]


def test_commands_after_a_recovery_are_done_again_after_the_next_one(session, lose):
    """What is kept grows on, and each time all of it counts."""
    add = session.get_global_func("tests.add")
    value = add(0, 1)
    for _ in range(3):
        lose(session, 0)
        value = add(value, 1)
    assert value.debug_get_from_remote(1) == 4
    assert len(session.recoveries) == 3


def test_large_arrays_come_back_from_workers_of_a_later_life(session, lose):
    """Also out of lists; a ticket of workers that are gone is not taken for one of theirs."""
    array = session.copy_to_worker_0(np.arange(float(LARGE)))
    pair = session.get_global_func("tests.echo")(array, 7)
    session.sync_all()
    lose(session)
    with pytest.raises(AnswerLost):
        session._core.transport.download(1, 0, memoryview(bytearray(8)))
    np.testing.assert_array_equal(array.numpy(), np.arange(LARGE))
    found, seven = pair.debug_get_from_remote(0)
    np.testing.assert_array_equal(found, np.arange(LARGE))
    assert seven == 7


def test_an_upload_that_was_given_up_is_not_waited_for_by_later_workers(session, lose, monkeypatch):
    """Ctrl-C came between its command and the upload; the command fails there as well."""

    def interrupt(_uploads):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.copy_to_worker_0(np.arange(float(LARGE)))
    with pytest.raises(errors.RemoteError, match="the upload was broken off"):
        session.sync_all()
    lose(session)
    session.sync_all()


@pytest.mark.parametrize("seen", [True, False])
def test_an_upload_interrupted_when_all_of_it_was_there_stays_one_that_came(
    session, lose, monkeypatch, seen
):
    """Its command was executed, and does not fail on the workers that execute it again."""
    send = Uploads.send

    def interrupt(uploads):
        send(uploads)
        uploads._done = 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.copy_to_worker_0(np.arange(float(LARGE)))
    if seen:
        session.sync_all()
    for _ in range(2):
        lose(session)
        session.sync_all()


def test_an_upload_interrupted_while_other_workers_are_prepared_is_settled(
    session, lose, monkeypatch
):
    """Before its bytes were copied, and after; in no case does a worker wait for it."""
    transport = session._core.transport
    add_upload = transport._journal.add_upload
    for recorded in (False, True):

        def interrupt(*args, recorded=recorded):
            with transport._changed:
                while not transport._recovering:
                    transport._changed.wait(0.01)
            if recorded:
                add_upload(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(transport._journal, "add_upload", interrupt)
            killing = in_thread(lambda: lose(session))
            with pytest.raises(KeyboardInterrupt):
                session.copy_to_worker_0(np.arange(float(LARGE)))
            killing.join()
        # Whether workers take it for one that came is left open: none has executed it before.
        with contextlib.suppress(errors.RemoteError):
            session.sync_all()
        session.sync_all()
        assert session.copy_to_worker_0(np.arange(float(LARGE))).numpy()[7] == 7


def test_a_wait_in_a_thread_that_serves_the_session_is_refused(session, lose, monkeypatch):
    """A finalizer may run in the one that sends, that reads, or that sends all of it again.

    One that counts texts keeps the one that reads from going on.
    """
    transport, refused = session._core.transport, {}

    def tried(name, call, *args):
        if name not in refused:
            refused[name] = None
            with pytest.raises(errors.Reentered) as raised:
                session.sync_all()
            refused[name] = raised.value
        return call(*args)

    def patched(name, owner, method):
        call = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *args: tried(name, call, *args))

    patched("sends", transport, "take")
    patched("is about to send", OutgoingTurn, "take")
    patched("reads", SharedReader, "keep")
    patched("sends again", Replayer, "_bring")
    patched("counts texts", BackgroundWriter, "_put")
    array = session.copy_to_worker_0(np.arange(float(LARGE)))
    session.sync_all()
    lose(session)
    assert array.numpy()[7] == 7
    assert None not in refused.values()
    assert refused.keys() == {
        "sends",
        "is about to send",
        "reads",
        "sends again",
        "counts texts",
    }


@pytest.mark.timeout(60, method="thread")
def test_finalizers_in_any_thread_do_not_keep_a_session_from_going_on(session, lose):
    """Also in threads that its recovery starts and waits for: there they may not wait for it."""
    add = session.get_global_func("tests.add")
    wrong = []

    def use():
        with contextlib.suppress(errors.Reentered):
            got = add(1, 2).get()
            if got != 3:
                wrong.append(got)

    with watched(45):
        for _ in range(3):
            with Finalizing(use, often=20) as finalizing:
                lose(session)
                assert add(2, 2).get() == 4
                assert finalizing.came
            session.sync_all()
        gc.collect()
    assert not wrong
    assert len(session.recoveries) == 3


def test_a_failure_is_raised_once(session, lose):
    """What the program knows already is not told again when it fails again."""
    fail = session.get_global_func("tests.fail_on")
    failed = fail(1)
    with pytest.raises(errors.RemoteException, match="told to fail"):
        session.sync_all()
    lose(session)
    session.sync_all()
    with pytest.raises(errors.RemoteException, match="told to fail"):
        failed.debug_get_from_remote(1)


def test_a_failure_that_nobody_has_seen_is_raised_afterwards(session, lose, eventually):
    """It is not forgotten with the workers, and not told twice."""
    session.sync_all()
    session.get_global_func("tests.fail_on")(1)
    eventually(lambda: session._core.inbox._failed.some, what="the failure")
    lose(session)
    with pytest.raises(errors.RemoteException, match="told to fail"):
        session.sync_all()
    session.sync_all()


def test_released_registers_stay_released(session, lose):
    """No more is alive afterwards than before."""
    registers = session.get_global_func("tests.registers")
    keep = [session.copy_to_worker_0(np.arange(8.0)) for _ in range(100)]
    del keep[10:]
    before = registers().debug_get_from_remote(0)
    lose(session)
    after = registers().debug_get_from_remote(0)
    assert after[1] <= before[1] + 1
    assert keep[9].numpy()[7] == 7


def test_distributed_tensors_and_programs_go_on(session, lose):
    """They are commands like others; the collective library starts again by itself."""
    x = session.distribute(np.arange(16.0).reshape(4, 4), placement="S[0]")
    with session.capture() as program:
        given = program.input("given", like=x)
        program.output(given * 2.0)
    y = program(x)
    session.publish("y", y)
    lose(session)
    whole = np.arange(16.0).reshape(4, 4)
    np.testing.assert_array_equal((program(y) @ x).numpy(), 4 * whole @ whole)
    np.testing.assert_array_equal(session.published("y").numpy(), 2 * whole)


def test_tensors_that_went_to_another_mesh_are_there_again(session, lose):
    """Sent again by the workers that took the place, and assigned again."""
    here, there = DeviceMesh((1,), [0]), DeviceMesh((1,), [1])
    whole = np.arange(16.0).reshape(4, 4)
    moved = session.distribute(whole, here, "R").redistribute(there, "S[0]")
    assigned = session.distribute(np.zeros((4, 4)), there, "S[1]")
    session.assign({"x": assigned}, {"x": session.distribute(whole, session.mesh(), "S[0]")})
    lose(session)
    for tensor in (moved, assigned, assigned.redistribute(here, "R")):
        np.testing.assert_array_equal(tensor.numpy(), whole)
    session.assign({"x": assigned}, {"x": moved + 1})
    np.testing.assert_array_equal(assigned.numpy(), whole + 1)
    assert len(session.recoveries) == 1


def test_files_that_the_program_brought_are_brought_again(session, lose, tmp_path):
    """Their content of then, also after a checkpoint has dropped the log."""
    source = tmp_path / "disco_brought.py"
    source.write_text(
        "import disco_server\n@disco_server.register_func('tests.brought')\n"
        "def brought(x):\n    return x + 1\n"
    )
    session.load_source(source)
    session.sync_all()
    source.write_text("raise ValueError('of later')")
    lose(session)
    assert session.get_global_func("tests.brought")(1).debug_get_from_remote(1) == 2
    session.checkpoint(tmp_path / "checkpoint")
    lose(session)
    assert session.get_global_func("tests.brought")(2).debug_get_from_remote(0) == 3


def test_what_the_program_waited_for_is_waited_for_again(session, lose, tmp_path):
    """So a checkpoint of tensors, which workers write in steps, is written again."""
    x = session.distribute(np.arange(16.0).reshape(4, 4), placement="S[0]")
    session.save(tmp_path / "run", {"x": x})
    lose(session)
    session.save(tmp_path / "run", {"x": x + x})
    lose(session)
    session.sync_all()
    loaded = session.load(tmp_path / "run")["x"].numpy()
    np.testing.assert_array_equal(loaded, 2 * np.arange(16.0).reshape(4, 4))


def test_threads_that_issue_meanwhile_go_on(session):
    """Nothing of theirs is lost, done twice on the new workers, or swapped."""
    add = session.get_global_func("tests.add")
    results = {}

    def work(number):
        value = add(number, 0)
        for step in range(400):
            value = add(value, 1)
            if step % 100 == 0:
                array = session.copy_to_worker_0(np.full(LARGE, float(number)))
                results[number, step] = array.numpy()[-1]
        results[number] = value.debug_get_from_remote(1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        os.kill(session.workers[1].pid, signal.SIGKILL)
        session.sync_all()
    for thread in threads:
        thread.join(40)
    assert [results[number] for number in range(3)] == [400, 401, 402]
    assert all(results[n, step] == n for n in range(3) for step in range(0, 400, 100))


def test_a_lost_node_is_recovered_from_when_there_are_slots_again(daemons, printed, eventually):
    """The session waits for them, and says so."""
    controller = daemons.controller("--node-return", "0.2")
    common = ("--slots", "1")
    first = daemons.worker(controller.address, *common, "--name", "first")
    daemons.worker(controller.address, *common, "--name", "second")
    with connect(controller.address, num_workers=2, recover="replay", logs=False) as session:
        session.import_python_module("disco_test_functions")
        value = session.get_global_func("tests.add")(20, 1)
        session.sync_all()
        first.send(signal.SIGKILL)
        doubled = session.get_global_func("tests.add")(value, value)
        eventually(lambda: "waiting for 2 slots: " in printed())
        daemons.worker(controller.address, *common, "--name", "third")
        assert doubled.debug_get_from_remote(1) == 42
        assert {each.node for each in session.workers} == {"second", "third"}
        (recovery,) = session.recoveries
        assert isinstance(recovery.lost, errors.NodeLost)


def test_without_slots_the_error_says_why_it_ended(daemons):
    """The usual error, with a sentence more; every later call says the same."""
    controller = daemons.controller("--node-return", "0.2")
    daemon = daemons.worker(controller.address, "--slots", "1", "--name", "only")
    options = {"recover": "replay", "logs": False, "timeout": 2}
    with connect(controller.address, num_workers=1, **options) as session:
        session.sync_all()
        daemon.send(signal.SIGKILL)
        with pytest.raises(errors.NodeLost, match="could not go on with other workers: ") as lost:
            session.sync_all()
        assert lost.value.node == "only"
        with pytest.raises(errors.NodeLost):
            session.get_global_func("tests.add")


def test_a_controller_that_comes_too_late_for_the_session_is_in_time_for_another(
    daemons, eventually
):
    """Its nodes have ended what they ran by then."""
    controller = daemons.controller("--session-lease", "1")
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, recover="replay", logs=False) as session:
        session.import_python_module("disco_test_functions")
        value = session.get_global_func("tests.add")(20, 22)
        session.sync_all()
        controller.send(signal.SIGKILL)
        controller.wait()
        eventually(lambda: session._core.transport._recovering, what="the end of the lease")
        daemons.controller("--listen", controller.address)
        assert value.debug_get_from_remote(0) == 42
        assert isinstance(session.recoveries[0].lost, errors.ControllerLost)


def test_beyond_the_limit_the_session_ends_with_its_workers(open_session, caplog):
    """A warning says so before, and the error afterwards."""
    session = open_session(2, recover="replay", recover_limit_bytes=1 << 20, logs=False)
    with caplog.at_level(logging.WARNING, "disco_client"):
        held = [session.copy_to_worker_0(np.zeros(LARGE)) for _ in range(3)]
        session.sync_all()
    assert caplog.text.count("session.checkpoint(path)") == 1
    assert session.statistics()["issued"] > len(held)
    os.kill(session.workers[1].pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerLost, match=r"more than the 1,048,576 bytes") as lost:
        session.sync_all()
    assert lost.value.worker == 1
    assert session.recoveries == ()


def test_a_session_that_is_shut_down_does_not_recover(session, cluster):
    """Its slots are free for others."""
    session.sync_all()
    os.kill(session.workers[0].pid, signal.SIGKILL)
    session.shutdown()
    with connect(cluster.address, num_workers=4, logs=False) as other:
        other.sync_all()
    with pytest.raises(errors.SessionError):
        session.sync_all()


def test_a_shut_down_ends_the_wait_for_slots(daemons, eventually, printed):
    """It does not wait for workers that nobody wants any more."""
    controller = daemons.controller("--node-return", "0.2")
    daemon = daemons.worker(controller.address, "--slots", "1")
    session = connect(controller.address, num_workers=1, recover="replay", logs=False)
    session.sync_all()
    daemon.send(signal.SIGKILL)
    eventually(lambda: "waiting for 1 slot: " in printed())
    session.shutdown()
    assert not [each for each in threading.enumerate() if each.name == "disco-recovery"]


def test_a_session_can_be_left_to_others(session, cluster):
    """Who attaches to it goes on without recovering: what was issued before is not known."""
    from disco_client import attach

    left = session.detach(30)
    with attach(left, address=cluster.address, logs=False) as other:
        other.sync_all()
        assert other.recoveries == ()
        with pytest.raises(errors.ConfigError, match="recover='replay'"):
            other.checkpoint("/tmp/never")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recover": "restart"}, "expected recover to be None, 'replay' or a function, got 're"),
        ({"recover": True}, "got True"),
        ({"recover": "replay", "recover_limit_bytes": 0}, "above 0, got 0"),
        ({"recover": "replay", "recover_limit_bytes": 1.5}, "integer recover_limit_bytes"),
    ],
)
def test_ways_to_recover_that_there_are_not_are_refused(cluster, options, text):
    """Before anything is opened."""
    with pytest.raises(errors.ConfigError, match=text):
        connect(cluster.address, num_workers=1, **options)
