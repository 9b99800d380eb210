"""The calling convention: what travels to the workers, and what comes back."""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import disco_client as di

LARGE = 40_000  # elements; beyond what travels inside a command
BOTH_ENDS = pytest.mark.layouts((1, 1), (4, 1))

MOMENT = dt.datetime(2026, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)), fold=1)
VALUES = [
    pytest.param(*value, id=name)
    for name, *value in [
        ("none", None, "NoneType", None),
        ("true", True, "bool", True),
        ("false", False, "bool", False),
        ("zero", 0, "int", 0),
        ("most-negative", -(1 << 63), "int", -(1 << 63)),
        ("largest", (1 << 63) - 1, "int", (1 << 63) - 1),
        ("float", 0.1, "float", 0.1),
        ("infinity", -math.inf, "float", -math.inf),
        ("empty-text", "", "str", ""),
        ("short-text", "ab", "str", "ab"),
        ("text", "héllo\0 \U0001f600 and more", "str", "héllo\0 \U0001f600 and more"),
        ("short-bytes", b"\0", "bytes", b"\0"),
        ("bytes", b"\0\xff" * 20, "bytes", b"\0\xff" * 20),
        ("bytearray", bytearray(b"xy"), "bytes", b"xy"),
        ("device", di.Device("cuda", 3), "Device", di.Device("cuda", 3)),
        ("dtype", np.dtype("float16"), "Float16DType", np.dtype("float16")),
        ("shape", di.Shape((2, 0, 3)), "Shape", di.Shape((2, 0, 3))),
        ("empty-shape", di.Shape(()), "Shape", di.Shape(())),
        ("numpy-text", np.str_("a b"), "str", "a b"),
        ("numpy-bytes", np.bytes_(b"a"), "bytes", b"a"),
        ("list", [1, [None, "x"], 2.5], "list", [1, [None, "x"], 2.5]),
        ("tuple", (1, "x"), "tuple", (1, "x")),
        ("large", 1 << 63, "int", 1 << 63),
        ("small", -(1 << 200), "int", -(1 << 200)),
        ("complex", 1.5 - 2j, "complex", 1.5 - 2j),
        ("decimal", Decimal("1.10"), "Decimal", Decimal("1.10")),
        ("moment", MOMENT, "datetime", MOMENT),
        ("set", {1, (2, "x")}, "set", {1, (2, "x")}),
        ("frozen", {frozenset("a")}, "set", {frozenset("a")}),
        ("path", Path("a/b"), "PosixPath", Path("a/b")),
        ("map", {"a": {"b": [b"c"]}}, "dict", {"a": {"b": [b"c"]}}),
    ]
]


@BOTH_ENDS
@pytest.mark.parametrize(("sent", "seen", "got"), VALUES)
def test_every_kind_of_value_arrives_and_comes_back(session, tools, sent, seen, got):
    """On every worker, short texts and None included."""
    assert tools.results("kind", sent) == [seen] * session.num_workers
    for came in tools.results("echo", sent):
        # A shape's class is also TVM's, once another test has loaded that.
        assert (came, type(came).__name__) == (got, type(got).__name__)


def _scalars():
    """A scalar of every dtype that numpy and ml_dtypes make scalars of; of times, of each unit."""
    for code in "?bhilBHIL":
        dtype = np.dtype(code)
        most = True if code == "?" else np.iinfo(dtype).max
        yield from (dtype.type(0), dtype.type(most))
    for code in "efdgFDG":
        for value in (0.1, -0.0, np.inf, np.nan):
            yield np.dtype(code).type(value)
    for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s"):
        for value in (5, -(1 << 62), "NaT"):
            yield from (np.datetime64(value, unit), np.timedelta64(value, unit))
    yield from (np.timedelta64(3), np.datetime64("NaT"))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"):
        yield getattr(ml_dtypes, name)(3)


def _same(one, other):
    """Whether two scalars have one type, dtype and unit, and one value, NaN and -0.0 included."""
    return (type(one), one.dtype, one.tobytes()) == (type(other), other.dtype, other.tobytes())


@BOTH_ENDS
@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # since numpy 2.5
def test_a_scalar_of_numpy_arrives_as_it_left(session, tools):
    """Type, dtype and unit: as an argument, inside others, and as a result."""
    scalars = list(_scalars())
    kinds = [type(scalar).__name__ for scalar in scalars]
    for seen in tools.results("kinds", *scalars):
        assert seen == kinds
    echo = session.get_global_func("conformance.echo")
    for came in tools.fetch(echo(scalars, {"deep": scalars})):
        assert all(map(_same, came[0], scalars))
        assert all(map(_same, came[1]["deep"], scalars))
    for scalar in scalars[::5]:
        assert _same(echo(scalar).get(), scalar)
    assert hash(echo(np.float32(0.1)).get()) == hash(np.float32(0.1))


def test_a_function_computes_with_a_scalar_as_numpy_does(kind, session, tools):
    """Its dtype takes part in the result's, and a time keeps its unit."""
    single, half = np.ones(3, "f4"), np.ones(3, "f2")
    moment = np.array(["2026-01-31"], "M8[ns]")
    cases = [
        ("numpy.multiply", single, np.float64(0.1)),
        ("numpy.multiply", half, np.float32(1e6)),
        ("numpy.add", np.arange(3, dtype="u1"), np.int16(300)),
        ("numpy.add", moment, np.timedelta64(5, "ns")),
        ("numpy.add", np.array(["2026-01"], "M8[M]"), np.timedelta64(1, "Y")),
        ("numpy.max", moment),
        ("numpy.max", np.array([1, (1 << 64) - 1], "u8")),
    ]
    for name, *args in cases:
        if kind.gpus and args[0].dtype.kind == "M":
            continue  # no GPU holds times
        expected = getattr(np, name.removeprefix("numpy."))(*args)
        for given in (args, [tools.call("echo", args[0]), *args[1:]]):
            came = session.get_global_func(name)(*given).get()
            assert came.dtype == expected.dtype, name
            assert kind.gpus or type(came) is type(expected), name
            np.testing.assert_array_equal(came, expected)
    product = session.get_global_func("numpy.multiply")(*[ml_dtypes.bfloat16(1.5)] * 2)
    assert _same(product.get(), ml_dtypes.bfloat16(2.25))


KEYS = [f"{number * 7919 % 101:x}" for number in range(60)]


@BOTH_ENDS
def test_a_dict_keeps_its_order(session, tools):
    """On every worker that of the program, and at the program that of the worker."""
    ordered = dict.fromkeys(KEYS, 1)
    for outer, inner, named in tools.results("keys", ordered, [{"deep": ordered}], **ordered):
        assert (outer, inner, named) == (KEYS, KEYS, KEYS)
    for came in tools.results("echo", {"deep": ordered}):
        assert list(came["deep"]) == KEYS


@BOTH_ENDS
def test_collectives_over_a_dict_meet_under_the_same_key(session, tools):
    """Each rank goes through the items in one order, so that like tensors are added."""
    tensors = {key: np.full(40, number, "f4") for number, key in enumerate(KEYS[:8])}
    for added in tools.results("reduce_each", tensors):
        for number, key in enumerate(tensors):
            np.testing.assert_array_equal(added[key], np.full(40, number * session.num_workers))


def test_not_a_number_stays_not_a_number(tools):
    """It is equal to nothing, itself included."""
    assert all(math.isnan(came) for came in tools.results("echo", math.nan))


@BOTH_ENDS
@pytest.mark.parametrize("count", [0, 3, LARGE])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int16", "complex128", "bfloat16"])
def test_arrays_are_arguments_and_results(tools, dtype, count):
    """The workers get copies, whatever the size; so does the client, on every worker."""
    host = np.arange(count).astype(getattr(ml_dtypes, dtype, dtype))
    ref = tools.call("echo", host, [host, {"deep": host}])
    expected = host.copy()
    if count:
        host[...] = 0
    for first, (second, third) in tools.fetch(ref):
        for came in (first, second, third["deep"]):
            assert came.dtype == expected.dtype
            np.testing.assert_array_equal(came, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {(1, len): "key"},
        object,
        lambda: [object()],
        lambda: len,
        lambda: os,
        lambda: np.array([object()]),
        lambda: type("Metres", (np.float64,), {})(5.0),
        lambda: np.zeros(1, "i4,f8")[0],
        lambda: memoryview(np.zeros(3)),
    ],
    ids=[
        *("keys", "object", "inside", "func", "mod"),
        *("objects", "kind-of-scalar", "record", "buffer"),
    ],
)
def test_what_cannot_travel_is_refused_and_takes_nothing(session, tools, make):
    """No command is sent, no register is lost, and the session goes on."""
    echo = session.get_global_func("conformance.echo")
    log = session._core.log
    # Registers that were free before may still be told of, a moment later.
    before = log.last_call, session.statistics()["registers"]
    for _ in range(10):
        with pytest.raises(di.EncodingError, match=r"^argument 1( at \[| in the key \(|: )"):
            echo("first", make())
    assert (log.last_call, session.statistics()["registers"]) == before
    assert tools.fetch(echo("fine")) == ["fine"] * session.num_workers


@BOTH_ENDS
@pytest.mark.parametrize("name", ["runtime.disco.worker_rank", "conformance.counted", "module"])
def test_a_reference_becomes_what_each_workers_register_holds(tools, name):
    """Of any type, at the top and inside containers."""
    ref = tools.call(name)
    kinds = {"module": "module", "conformance.counted": "Counted"}
    assert tools.results("kind", ref) == [kinds.get(name, "int")] * len(tools.workers)
    if name.endswith("rank"):
        assert tools.results("add", ref, 10) == [10 + worker for worker in tools.workers]
        assert tools.results("echo", [ref, {"deep": ref}]) == [
            [worker, {"deep": worker}] for worker in tools.workers
        ]


def test_a_function_is_a_value_too(session, tools):
    """It can be an argument, a result, and called from either."""
    add = session.get_global_func("conformance.add")
    again = di.DPackedFunc(tools.call("echo", add), session)
    assert tools.fetch(again(1, 2)) == [3] * session.num_workers
    made = tools.call("counted")
    assert tools.fetch(session.call_packed(made)) == list(tools.workers)


def test_a_reference_that_was_wrapped_stays_usable(session, tools):
    """The original's crashes the program when it is touched."""
    ref = tools.call("echo", session.get_global_func("conformance.add"))
    func = di.DPackedFunc(ref, session)
    assert tools.fetch(func(1, 1)) == tools.fetch(session.call_packed(ref, 1, 1))
    del ref
    assert tools.fetch(func(2, 2))[0] == 4


# Looking at one worker --------------------------------------------------------------------


@BOTH_ENDS
@pytest.mark.parametrize("name", ["counted", "module", "echo"])
def test_what_cannot_travel_is_live_or_described(case, session, tools, name):
    """Workers in this process give the very object, others say what it is."""
    ref = session.get_global_func("conformance.echo") if name == "echo" else tools.call(name)
    for worker in tools.workers:
        came = ref.debug_get_from_remote(worker)
        if case.kind.processes:
            assert isinstance(came, di.Opaque)
            assert came.type
        else:
            assert not isinstance(came, di.Opaque)
            assert came is ref.debug_get_from_remote(worker)
    assert tools.results("echo", "alive") == ["alive"] * session.num_workers


def test_an_array_that_is_fetched_is_the_workers_own_or_a_copy(case, tools):
    """Workers in this process give the very array, as the original's do."""
    ref = tools.place([np.zeros(3)] * len(tools.workers))
    ref.debug_get_from_remote(1)[...] = 5
    expected = 0 if case.kind.processes else 5
    np.testing.assert_array_equal(ref.debug_get_from_remote(1), [expected] * 3)


@BOTH_ENDS
@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1, 2, 3], "int64"), (5.0, "float64"), (np.arange(LARGE, dtype="int8"), "int8")],
    ids=["list", "number", "large"],
)
def test_an_array_is_put_on_any_one_worker(session, tools, value, dtype):
    """What is no array becomes one; the other workers keep what they had."""
    last = session.num_workers - 1
    ref = tools.call("echo", None)
    assert ref.debug_copy_from(last, value) is None
    got = tools.fetch(ref)
    assert got[last].dtype == dtype
    np.testing.assert_array_equal(got[last], value)
    assert got[:last] == [None] * last


@BOTH_ENDS
def test_an_array_that_is_there_is_overwritten_in_place(session, tools):
    """Other registers that hold it see the change, whatever the shapes."""
    last = session.num_workers - 1
    ref = session.empty((2, 3), "float32")
    alias = tools.call("echo", ref)
    ref.debug_copy_from(last, np.arange(6, dtype="float32"))
    np.testing.assert_array_equal(alias.numpy(last), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("before", ["text", 5, [1]])
def test_what_is_no_array_is_replaced(tools, before):
    """The register holds the new array from then on."""
    ref = tools.call("echo", before)
    ref.debug_copy_from(1, [1.5])
    assert ref.numpy(1).tolist() == [1.5]
    assert ref.debug_get_from_remote(0) == before


@pytest.mark.parametrize("worker", ["0", 0.0, None, True, [0]])
def test_a_worker_is_named_by_an_integer(session, worker):
    """In every call that names one."""
    ref = session.empty((1,), "float32")
    for use in (
        lambda: ref.debug_get_from_remote(worker),
        lambda: ref.debug_copy_from(worker, [1.0]),
        lambda: session.sync_worker(worker),
    ):
        with pytest.raises(TypeError):
            use()


@BOTH_ENDS
@pytest.mark.parametrize("beyond", [0, 5, 1 << 40, "-1"])
def test_a_worker_that_is_not_there_is_refused(session, beyond):
    """Where the original raises, or crashes the program."""
    worker = -1 if beyond == "-1" else session.num_workers + beyond
    ref = session.empty((1,), "float32")
    for use in (
        lambda: ref.debug_get_from_remote(worker),
        lambda: ref.debug_copy_from(worker, [1.0]),
        lambda: session.sync_worker(worker),
    ):
        with pytest.raises(di.ConfigError, match="worker_id"):
            use()
