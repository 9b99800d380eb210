"""Checkpoints of sessions: what comes back from them, what is done again, what is refused."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from disco_client import Device, DObject, ProcessSession, Shape, connect, errors

LARGE = 100_000


@pytest.fixture
def session(open_session):
    """A session of two workers that recovers."""
    return open_session(2, recover="replay", logs=False)


@pytest.fixture
def lose(lose):
    """The same, until the others have done everything again."""

    def kill(session, worker=1):
        lose(session, worker)
        session.sync_all()

    return kill


def checkpoints(folder):
    """The folders of checkpoints below a folder."""
    return sorted(each.name for each in folder.iterdir())


def test_what_was_saved_is_not_done_again(session, lose, tmp_path):
    """References stay valid: arrays are read, functions are looked up, the rest is forgotten."""
    note, notes = session.get_global_func("tests.note_in"), tmp_path / "notes"
    add, array = session.get_global_func("tests.add"), session.broadcast(np.arange(float(LARGE)))
    each = session.get_global_func("tests.rank_array")((3,), "float32")
    note(str(notes), "before")
    session.checkpoint(tmp_path / "run")
    note(str(notes), "after")
    more = add(array, 1.0)
    session.sync_all()  # what nobody has done yet would not be done again
    lose(session)
    assert notes.read_text().split() == ["before", "after", "after"]
    np.testing.assert_array_equal(more.numpy(1), np.arange(LARGE) + 1.0)
    np.testing.assert_array_equal(add(array, 2.0).numpy(0), np.arange(LARGE) + 2.0)
    assert [each.numpy(worker).tolist() for worker in (0, 1)] == [[1, 1, 1], [2, 2, 2]]


def test_values_of_every_kind_come_back(session, lose, tmp_path):
    """Each worker's own, small and large, alone and in lists; poison stays what it was."""
    values = [
        None,
        True,
        -5,
        2.5,
        "text",
        b"bytes",
        Shape((2, 3)),
        Device("cpu", 0),
        [1, {"key": [2.0, None]}],
        np.arange(6, dtype="int16").reshape(2, 3),
        np.zeros((0, 4), "float32"),
        np.array(7.5),
        np.arange(float(LARGE)),
    ]
    echo = session.get_global_func("tests.echo")
    held = [echo(value) for value in values]
    mixed = echo([np.arange(float(LARGE)), 3])
    half = session.copy_to_worker_0(np.arange(4.0))
    failed = session.get_global_func("tests.fail_on")(1)
    with pytest.raises(errors.RemoteException):
        session.sync_all()
    session.checkpoint(tmp_path)
    lose(session)
    for ref, value in zip(held, values, strict=True):
        for worker in (0, 1):
            got = ref.debug_get_from_remote(worker)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(got, value)
                assert got.dtype == value.dtype
            else:
                assert got == value
    np.testing.assert_array_equal(mixed.debug_get_from_remote(1)[0], np.arange(LARGE))
    assert half.debug_get_from_remote(1) is None
    assert failed.debug_get_from_remote(0) == 0
    with pytest.raises(errors.RemoteException, match="told to fail"):
        failed.debug_get_from_remote(1)


def test_arrays_that_were_one_stay_one(session, lose, tmp_path):
    """A change in place is seen through both references, as before."""
    array = session.broadcast(np.zeros(5))
    other = session.get_global_func("tests.echo")(array)
    session.checkpoint(tmp_path)
    lose(session)
    array.debug_copy_from(1, np.ones(5))
    assert other.numpy(1).tolist() == [1, 1, 1, 1, 1]


def test_models_of_distributed_tensors_go_on(session, lose, tmp_path):
    """Tensors in parts, programs, moves between placements, and what is published."""
    host = np.arange(35.0).reshape(5, 7)
    x = session.distribute(host, placement="S[0]")
    with session.capture() as program:
        given = program.input("given", like=x)
        program.output(given * 2.0)
    session.publish("x", x)
    session.publish("add", session.get_global_func("tests.add"))
    session.checkpoint(tmp_path)
    lose(session, 0)
    np.testing.assert_array_equal(program(x).redistribute("S[1]").numpy(), 2 * host)
    np.testing.assert_array_equal(session.published("x").numpy(), host)
    published = session.call_packed(session.published("add"), 20, 22)
    assert published.debug_get_from_remote(1) == 42


def test_a_module_is_loaded_again(session, lose, tmp_path):
    """The client's file is part of what is kept."""
    file = tmp_path / "twice.py"
    file.write_text("def twice(value):\n    return 2 * value\n")
    twice = session.load_vm_module(file)["twice"]
    session.checkpoint(tmp_path / "run")
    file.unlink()
    lose(session)
    assert twice(21).debug_get_from_remote(1) == 42


def test_a_function_comes_back_with_what_it_was_made_of(session, lose, tmp_path):
    """Although the array has been let go of."""
    array = session.broadcast(np.arange(3.0))
    adder = session.get_global_func("tests.make_adder")(array)
    del array
    session.checkpoint(tmp_path)
    lose(session)
    assert session.call_packed(adder, 1.0).numpy(1).tolist() == [1, 2, 3]


def test_each_checkpoint_takes_the_place_of_the_one_before(session, lose, tmp_path):
    """The folder does not grow, and what is kept in memory does not either."""
    value = session.broadcast(np.zeros(LARGE))
    add = session.get_global_func("tests.add")
    for _ in range(3):
        value = add(value, 1.0)
        session.checkpoint(tmp_path)
        session.sync_all()
        assert len(checkpoints(tmp_path)) == 1
        lose(session)
    assert value.numpy(1)[0] == 3
    assert session._core.transport._journal.nbytes < 100_000


def test_a_checkpoint_that_fails_leaves_the_one_before(session, lose, tmp_path):
    """And the session works on."""
    value = session.broadcast(np.arange(5.0))
    session.checkpoint(tmp_path / "run")
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(errors.BadFile):
        session.checkpoint(in_the_way)
    lose(session)
    assert value.numpy(1).tolist() == [0, 1, 2, 3, 4]


def test_a_checkpoint_may_follow_one_whose_error_is_kept(session, tmp_path):
    """What workers held for the one that failed is gone."""
    value = session.broadcast(np.arange(5.0))
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(errors.BadFile) as kept:
        session.checkpoint(in_the_way)
    session.checkpoint(tmp_path / "run")
    assert kept.value.failures
    assert value.numpy(1).tolist() == [0, 1, 2, 3, 4]


def test_workers_that_are_lost_while_they_save_are_a_pause(session, lose, tmp_path):
    """The checkpoint is made, by those that take their place."""
    value = session.broadcast(np.arange(5.0))
    session.get_global_func("tests.kill_once_on")(1, str(tmp_path / "killed"))
    session.checkpoint(tmp_path / "run")
    assert len(session.recoveries) == 1
    lose(session)
    assert value.numpy(1).tolist() == [0, 1, 2, 3, 4]


def test_other_threads_go_on_behind_it(session, lose, tmp_path):
    """What they issue meanwhile comes after all that was saved."""
    add, stop, results = session.get_global_func("tests.add"), threading.Event(), []

    def work():
        value, count = add(0, 0), 0
        while not stop.is_set():
            value, count = add(value, 1), count + 1
            if count % 64 == 0:
                session.sync_all()
        results.append((value.debug_get_from_remote(1), count))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(2):
        session.checkpoint(tmp_path)
        lose(session)
    stop.set()
    thread.join(40)
    assert results[0][0] == results[0][1] > 0


def test_objects_are_asked_for_what_they_consist_of(session, lose, tmp_path):
    """What they did before is not done again; methods, aliases and published ones are theirs."""
    note = tmp_path / "notes"
    model = session.create("tests.Learner", 4.0, note=str(note))
    weight, step, again = model.weight, model.step, session.get_global_func("tests.echo")(model)
    session.publish("model", model)
    model.on(worker=1).step(1.0)
    step(1.0)
    session.checkpoint(tmp_path / "run")
    step(0.5)
    session.sync_all()
    lose(session)
    assert note.read_text().split() == ["made"] * 2
    assert [model.total.numpy(worker) for worker in (0, 1)] == [1.5, 2.5]
    np.testing.assert_array_equal(weight.numpy(1), [6.5, 6.5])
    for other in (again, session.published("model")):
        DObject(other, session).step(1.0)
    step(1.0)
    assert model.total.numpy(0) == 4.5
    assert weight.numpy(0)[0] == 8.5
    session.checkpoint(tmp_path / "run")
    lose(session, 0)
    assert model.step(0.0).numpy(0)[0] == 8.5


def test_objects_are_made_again_until_a_checkpoint(session, lose, tmp_path):
    """By the commands that made and changed them, on the workers that were chosen."""
    model = session.create("tests.Learner", 4.0, note=str(tmp_path / "notes"))
    model.step(by=1.0)
    model.on(worker=1).step(by=0.5)
    session.sync_all()
    lose(session)
    assert [model.total.numpy(worker) for worker in (0, 1)] == [1.0, 1.5]
    assert (tmp_path / "notes").read_text().split() == ["made"] * 4


@pytest.mark.parametrize("name", ["Bare", "BareFunction"])
def test_an_object_that_does_not_say_what_it_is_is_refused(session, tmp_path, name):
    """By the name of its class, also where only a function made of it is left."""
    held = session.create(f"tests.{name}")
    words = rf"{name}[^\0]*__disco_state__ and __disco_load__"
    with pytest.raises(errors.EncodingError, match=words):
        session.checkpoint(tmp_path)
    adder = session.get_global_func("tests.make_adder")(held)
    del held
    with pytest.raises(errors.EncodingError, match=words):
        session.checkpoint(tmp_path)
    del adder
    session.checkpoint(tmp_path)
    wrong = session.create("tests.Learner", 1.0, note=None)
    wrong.spoil()
    with pytest.raises(
        errors.BadArgument, match=r"tests\.Learner returned: at \[1\]: a value of type"
    ):
        session.checkpoint(tmp_path)


def test_objects_that_cannot_be_saved_are_refused(session, tmp_path):
    """By their type, who made them where, and where they are; the session works on."""
    cache = session.get_global_func("tests.make_object")()
    made = rf"what tests\.make_object\(\) returned \(File \"{__file__}\", line \d+, in test_objects"
    is_one = r".* is an object of type .*Cache on worker 0"
    with pytest.raises(errors.EncodingError, match=made + is_one):
        session.checkpoint(tmp_path)
    del cache
    session.checkpoint(tmp_path)
    assert len(checkpoints(tmp_path)) == 1


def test_a_generator_and_its_stream_are_refused(session, tmp_path):
    """Made again, they would begin at the first item; when the stream has ended, they are not."""
    session.import_python_module("disco_stream_functions")
    count = session.get_global_func("stream.count")(9)
    with pytest.raises(errors.EncodingError, match=r"an object of type .*generator on"):
        session.checkpoint(tmp_path)
    stream = count.stream()
    del count
    assert next(stream) == 0
    with pytest.raises(errors.EncodingError, match=r"an object of type .*GeneratorStream"):
        session.checkpoint(tmp_path)
    stream.close()
    session.checkpoint(tmp_path)


def test_only_the_last_checkpoint_is_there_when_it_returns(session, tmp_path):
    """The one before has been removed, so that its space is free."""
    arrays = [session.broadcast(np.arange(float(LARGE))) for _ in range(4)]
    for number in range(1, 7):
        session.checkpoint(tmp_path)
        assert checkpoints(tmp_path) == [f"{session.session_id}-{number}"]
    assert arrays[0].numpy(1)[-1] == LARGE - 1


def test_a_checkpoint_makes_a_session_recoverable_again(open_session, lose, tmp_path):
    """Where more arrays were sent than are kept."""
    session = open_session(2, recover="replay", recover_limit_bytes=1 << 20, logs=False)
    arrays = [session.copy_to_worker_0(np.full(LARGE, float(i))) for i in range(3)]
    session.checkpoint(tmp_path)
    lose(session)
    assert [each.numpy()[-1] for each in arrays] == [0, 1, 2]


def test_where_even_commands_were_too_many_it_is_refused(open_session, tmp_path):
    """How functions were made is not known then."""
    session = open_session(2, recover="replay", recover_limit_bytes=100, logs=False)
    with pytest.raises(errors.EncodingError, match="its commands alone are more than the 100"):
        session.checkpoint(tmp_path)


def test_a_checkpoint_that_is_gone_ends_the_session(session, tmp_path):
    """Nothing is made up; the error names the file."""
    session.checkpoint(tmp_path)
    for file in tmp_path.rglob("*.json"):
        file.unlink()
    os.kill(session.workers[1].pid, signal.SIGKILL)
    with pytest.raises(errors.SessionLost, match=r"cannot read its checkpoint: .*json"):
        session.sync_all()


def test_sessions_that_do_not_recover_need_none(session, cluster, tmp_path):
    """The error says how to open one that does."""
    with (
        connect(cluster.address, num_workers=1, logs=False) as other,
        ProcessSession(1, logs=False) as children,
    ):
        for each in (other, children):
            with pytest.raises(errors.ConfigError, match="recover='replay'"):
                each.checkpoint(tmp_path)
    with pytest.raises(errors.CaptureError), session.capture():
        session.checkpoint(tmp_path)
