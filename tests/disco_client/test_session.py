"""A session on a real cluster: calls, arguments, arrays, errors, threads, and the end."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from disco_client import (
    BadArgument,
    ConfigError,
    Device,
    DPackedFunc,
    DRef,
    EncodingError,
    ForeignReference,
    FunctionNotFound,
    NotAllowed,
    Session,
    SessionClosed,
    Shape,
    connect,
    cpu,
)
from disco_client.command_log import MAX_COMMAND_BYTES
from fakes import echo, pair

session = pair

LARGE = 64 * 1024  # beyond this, arrays travel beside the log


def call(session, name, *args):
    """Worker 0's result of a function."""
    return session.get_global_func(name)(*args).debug_get_from_remote(0)


# What it is -------------------------------------------------------------------


def test_the_original_names_are_there():
    """A program ports by changing an import; two of them keep their underscore."""
    names = """num_workers empty get_global_func call_packed import_python_module sync_worker_0
        sync_worker sync_all copy_to_worker_0 copy_from_worker_0 init_ccl broadcast
        broadcast_from_worker0 scatter scatter_from_worker0 gather_to_worker0 allreduce allgather
        shutdown _sync_worker _sync_all reduce_scatter all_to_all"""
    assert [name for name in names.split() if not hasattr(Session, name)] == []
    assert Session._sync_all is Session.sync_all
    assert Session._sync_worker is Session.sync_worker


def test_its_size_is_known_without_asking(session):
    """No command is issued for it."""
    gc.collect()
    session.sync_all()  # takes along the registers of references that died before
    before = session.statistics()["issued"]
    assert (session.num_workers, session.num_groups, session.name) == (2, 1, "shared")
    assert session.statistics()["issued"] == before


# Calls and arguments --------------------------------------------------------------


def test_a_call_runs_on_every_worker_and_returns_a_reference(session):
    """At once, whatever the result is; each worker keeps its own."""
    func = session.get_global_func("tests.rank_array")
    assert isinstance(func, DPackedFunc)
    ref = session.call_packed(func, Shape([2]), "int32", 5)
    assert type(ref) is DRef
    assert [ref.numpy(worker).tolist() for worker in (0, 1)] == [[5, 5], [10, 10]]
    nothing = session.get_global_func("tests.say")("")
    assert nothing.debug_get_from_remote(1) is None


@pytest.mark.parametrize(
    ("sent", "kind", "got"),
    [
        (None, "builtins.NoneType", None),
        (True, "builtins.bool", True),
        (-(1 << 63), "builtins.int", -(1 << 63)),
        ((1 << 63) - 1, "builtins.int", (1 << 63) - 1),
        (0.1, "builtins.float", 0.1),
        ("é\0\U0001f600", "builtins.str", "é\0\U0001f600"),
        (b"\0\xff", "builtins.bytes", b"\0\xff"),
        (np.dtype("int16"), "numpy.dtypes.Int16DType", np.dtype("int16")),
        (cpu(1), "disco_client.wire.values.Device", Device("cpu", 1)),
        (Shape([2, 0]), "disco_client.wire.values.Shape", Shape([2, 0])),
        ([1, [None, "x"]], "builtins.list", [1, [None, "x"]]),
        ({"a": {"b": 1.5}}, "builtins.dict", {"a": {"b": 1.5}}),
        (np.int64(7), "numpy.int64", np.int64(7)),
        (np.bytes_(b"a"), "builtins.bytes", b"a"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_every_kind_of_argument_arrives_and_comes_back(session, sent, kind, got):
    """The worker sees Python's own types, and so does the client again."""
    assert call(session, "tests.kind", sent) == kind
    for came in echo(session, sent):
        assert came == got
        # A shape's class is also TVM's, once another test has loaded that.
        assert type(came).__name__ == type(got).__name__


def test_arrays_are_arguments_inside_lists_and_maps_too(session):
    """Small ones inline, large ones beside the log, all in one call."""
    small, large = np.arange(3, dtype="int8"), np.arange(LARGE, dtype="float64")
    for came in echo(session, small, {"large": [large, large * 2]}):
        np.testing.assert_array_equal(came[0], small)
        np.testing.assert_array_equal(came[1]["large"][0], large)
        np.testing.assert_array_equal(came[1]["large"][1], large * 2)


def test_a_reference_becomes_what_each_workers_register_holds(session):
    """At the top of the arguments, and inside containers."""
    rank = session.get_global_func("runtime.disco.worker_rank")()
    add = session.get_global_func("tests.add")
    assert [add(rank, 10).debug_get_from_remote(w) for w in (0, 1)] == [10, 11]
    assert echo(session, [rank, {"deep": rank}]) == [[0, {"deep": 0}], [1, {"deep": 1}]]


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({object()}, EncodingError),
        (lambda: 0, EncodingError),
        ([object()], EncodingError),
        ({object(): 1}, EncodingError),
        (np.array([object()]), EncodingError),
        ("x" * (MAX_COMMAND_BYTES + 1), EncodingError),
    ],
    ids=["set", "function", "object", "keys", "objects", "size"],
)
def test_a_refused_argument_sends_nothing_and_takes_no_register(session, argument, error):
    """The session is as it was, after however many refusals."""
    func = session.get_global_func("tests.echo")
    gc.collect()
    session.sync_all()
    before = session.statistics()
    for _ in range(20):
        with pytest.raises(error):
            func("first", argument, np.zeros(LARGE))
    after = session.statistics()
    assert (after["issued"], after["registers"]) == (before["issued"], before["registers"])
    assert echo(session, "fine") == ["fine"] * 2


def test_values_nest_as_deep_as_the_encoder_allows(session):
    """A map in a map, 32 times: the workers' decoder reads it."""
    value = 1
    for _ in range(32):
        value = {"k": value}
    assert echo(session, value) == [value] * 2
    with pytest.raises(EncodingError, match="deep"):
        echo(session, [value])


@pytest.mark.parametrize("func", ["tests.echo", 5, None, len])
def test_only_a_reference_can_be_called(session, func):
    """Before anything is sent."""
    with pytest.raises(TypeError, match="expected a function reference"):
        session.call_packed(func)


@pytest.mark.parametrize("name", [None, 5, b"tests.echo"])
def test_a_function_is_asked_for_by_its_name(session, name):
    """Text, and nothing else."""
    with pytest.raises(TypeError, match="name"):
        session.get_global_func(name)


def test_a_reference_of_another_session_is_refused(session, open_session):
    """In every place where one may stand, and nothing is sent anywhere."""
    other = open_session(1)
    theirs = other.empty((2,), "float32")
    mine = session.empty((2,), "float32")
    issued = session.statistics()["issued"]
    func = session.get_global_func("tests.echo")
    uses = [
        lambda: func(theirs),
        lambda: func([{"deep": theirs}]),
        lambda: session.call_packed(other.get_global_func("tests.echo")),
        lambda: session.copy_to_worker_0(np.zeros(2, "float32"), theirs),
        lambda: session.copy_from_worker_0(np.zeros(2, "float32"), theirs),
        lambda: session.allreduce(mine, theirs),
        lambda: DPackedFunc(theirs, session),
    ]
    for use in uses:
        with pytest.raises(ForeignReference, match="shared"):
            use()
    assert session.statistics()["issued"] <= issued + 2  # the two functions themselves
    other.shutdown()


def test_dotted_names_are_functions_of_allowed_modules(session):
    """Numpy is allowed everywhere, without an import."""
    matmul = session.get_global_func("numpy.matmul")
    eye = session.get_global_func("numpy.eye")(3)
    np.testing.assert_array_equal(matmul(eye, eye).numpy(1), np.eye(3))
    norm = session.get_global_func("numpy.linalg.norm")(eye)
    assert norm.debug_get_from_remote(0) == pytest.approx(3**0.5)


@pytest.mark.parametrize("name", ["tests.ecko", "numpy.no_such", "nothing", "numpy.pi"])
def test_a_missing_function_is_an_error_of_the_next_sync(session, name):
    """Whoever calls it meanwhile gets the same cause, once."""
    func = session.get_global_func(name)
    result = func(1)
    with pytest.raises(FunctionNotFound, match=name) as missing:
        session.sync_all()
    assert missing.value.function == "get_global_func"
    if name == "tests.ecko":
        assert "did you mean 'tests.echo'" in str(missing.value)
    with pytest.raises(FunctionNotFound, match=name):
        result.debug_get_from_remote(1)
    session.sync_all()


def test_what_has_no_function_in_its_register_cannot_be_called(session):
    """The error says what is there instead."""
    thing = session.get_global_func("tests.echo")("text")
    session.call_packed(thing)
    with pytest.raises(BadArgument, match="'text'"):
        session.sync_all()


def test_a_module_that_does_not_exist_is_an_error_of_the_next_sync(session):
    """Its name is in the message."""
    session.import_python_module("no_such_module_anywhere")
    with pytest.raises(FunctionNotFound, match="no_such_module_anywhere"):
        session.sync_all()


# Waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "error"),
    [
        (2, ConfigError),
        (-1, ConfigError),
        ("0", TypeError),
        (0.0, TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_a_worker_is_named_by_its_number(session, worker, error):
    """One that the session does not have is refused here, with the range."""
    ref = session.empty((1,), "float32")
    uses = (
        lambda: session.sync_worker(worker),
        lambda: ref.debug_get_from_remote(worker),
        lambda: ref.numpy(worker),
        lambda: ref.debug_copy_from(worker, np.zeros(1, "float32")),
    )
    for use in uses:
        with pytest.raises(error, match="worker_id"):
            use()


def test_a_sync_waits_for_what_was_issued_before(session, tmp_path):
    """Of that worker; the calls themselves do not wait."""
    gate = tmp_path / "gate"
    session.get_global_func("tests.wait_for_file_on")(1, str(gate))
    session.sync_worker_0()
    threading.Timer(0.2, gate.touch).start()
    session.sync_worker(np.int64(1))
    assert gate.exists()
    session.sync_all()
    counts = session.statistics()
    assert counts["acked"] == counts["issued"] == min(counts["acks"])


def test_workers_output_reaches_the_client_with_its_rank(cluster, printed, eventually):
    """Line by line on standard error; logs=False keeps it away."""
    with connect(cluster.address, num_workers=2) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")("first\nsecond ü")
        session.sync_all()
        eventually(lambda: printed().count("\n") >= 4, what="four lines")
        for rank in session.workers:
            for text in ("first", "second ü"):
                assert f"[worker {rank.worker} {rank.node}] {text}\n" in printed()
    with connect(cluster.address, num_workers=1, logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")("unheard")
        session.sync_all()
    assert "unheard" not in printed()


def test_many_threads_use_one_session_at_once(session):
    """Each gets its own answers, and the workers execute one order."""
    wrong, done = [], []

    def work(number):
        try:
            func = session.get_global_func("tests.add")
            for index in range(40):
                base = number * 1000 + index
                assert func(base, 1).debug_get_from_remote(index % 2) == base + 1
                if index % 10 == 0:
                    array = np.full(LARGE, base, "int32")
                    assert session.copy_to_worker_0(array).numpy()[-1] == base
                if index % 7 == 0:
                    session.sync_worker(index % 2)
            done.append(number)
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not wrong
    assert len(done) == 6


# The end -------------------------------------------------------------------------------


def test_a_closed_session_refuses_everything_with_one_error(open_session):
    """Shutting down again is fine, and so is dropping what it had."""
    session = open_session(1)
    ref = session.empty((1,), "float32")
    func = session.get_global_func("tests.echo")
    session.shutdown()
    session.shutdown()
    uses = (
        session.sync_all,
        session.sync_worker_0,
        lambda: session.sync_worker(0),
        lambda: func(1),
        lambda: session.get_global_func("tests.echo"),
        lambda: session.empty((1,), "float32"),
        lambda: session.import_python_module("json"),
        lambda: session.copy_to_worker_0(np.zeros(1, "float32"), ref),
        lambda: session.copy_from_worker_0(np.zeros(1, "float32"), ref),
        lambda: ref.debug_get_from_remote(0),
        lambda: ref.debug_copy_from(0, 1.0),
        lambda: session.allreduce(ref, ref),
        lambda: session.init_ccl("mpi"),
    )
    for use in uses:
        with pytest.raises(SessionClosed, match="shut down"):
            use()
    assert session.num_workers == 1
    uses = ref = func = None
    gc.collect()


def test_a_thread_that_waits_is_told_when_another_shuts_down(open_session, eventually):
    """Nobody waits for a session that is over."""
    session = open_session(1)
    sleep = session.get_global_func("tests.sleep")
    session.sync_all()
    sleep(60)
    ended = []

    def wait():
        try:
            session.sync_all()
        except SessionClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: session._core.inbox.answers.expected)
    session.shutdown()
    waiting.join(10)
    assert ended


def test_a_forgotten_session_gives_its_slots_back(cluster):
    """When its last reference goes, without a shutdown."""
    for _ in range(3):
        session = connect(cluster.address, num_workers=2, timeout=20)
        ref = session.get_global_func("runtime.disco.world_size")()
        assert ref.debug_get_from_remote(0) == 2
        del session, ref
        gc.collect()


def test_the_allow_list_of_the_workers_holds(daemons):
    """What it does not cover is refused with how to allow it, by import and by name."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", 1)
    with connect(controller.address, num_workers=1) as session:
        session.import_python_module("disco_test_functions")
        assert echo(session, 1) == [1]
        session.import_python_module("subprocess")
        with pytest.raises(NotAllowed, match="--allow-module subprocess"):
            session.sync_all()
        for name in (
            "os.system",
            "numpy.f2py.os.system",
            "numpy._core.multiarray",
            "builtins.eval",
        ):
            session.get_global_func(name)
            with pytest.raises((NotAllowed, FunctionNotFound)):
                session.sync_all()
