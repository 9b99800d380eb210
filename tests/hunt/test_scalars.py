"""Scalars and subclasses: a value arrives as what it left as, or is refused by name and path.

Each example is the text of an expression, of which the program and its workers make the same
value. It goes through every way in and out, on sessions of threads, of processes and of a
cluster, and what has arrived is compared to the last bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from travelling import VALUES, assert_same

import disco_client as di
from disco_client.distributed import DTensor
from disco_client.wire.values import Opaque, Shape, is_extension, is_floating, is_int64

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
sys.path.insert(0, str(WORKER_MODULES))
values = import_module("disco_hunt_values")
sys.path.remove(str(WORKER_MODULES))
build, describe = values.build, values.describe

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(1800)]


# The law ----------------------------------------------------------------------------------


class Refused(Exception):
    """A value must be refused.

    Args:
        path: Where it is in the one that was given.
        names: What the error may call it by.
    """

    def __init__(self, path, *names):
        super().__init__(path, names)
        self.path, self.names = path, names

    def is_told(self, said, path):
        """Whether an error says what was refused, and where in the whole."""
        return path + self.path in said and any(re.search(name, said) for name in self.names)


WHOLE = (bool, float, bytes, Shape, di.Device, complex, decimal.Decimal, set, frozenset)
WHOLE += (dt.datetime, dt.date, dt.timedelta, values.Colour, values.Mode, values.State)
"""Types that arrive as they are; sets are of constants here."""


class Law:
    """What becomes of a value that travels.

    Attributes:
        arrives: How that is described as which it arrives; None where it has to be refused.
        refused: Why it has to be: each part that cannot travel.
        free: Whether it may be refused although it could arrive: nothing is said of a part of it.
    """

    def __init__(self, value):
        self.refused, self.free = [], False
        found = self._part(value, "")
        self.arrives = None if self.refused else describe(found)

    def _part(self, value, path):
        """A part of the whole, as which it arrives; None where it is refused."""
        try:
            return self._any(value, path)
        except Refused as refused:
            self.refused.append(refused)
            return None

    def _any(self, value, path):
        if value is None or type(value) in WHOLE:
            return value
        if isinstance(value, type) and issubclass(value, np.generic):
            value = np.dtype(value)
        if dataclasses.is_dataclass(type(value)):
            return self._dataclass(value, path)
        for kinds, become in self._KINDS:
            if isinstance(value, kinds):
                return getattr(self, become)(value, path)
        raise Refused(path, type(value).__name__)

    _KINDS = (
        (np.ndarray, "_array"),
        (np.generic, "_scalar"),
        (np.dtype, "_dtype_alone"),
        ((bool, int, float, str, bytes), "_plain"),
        ((list, tuple), "_list"),
        (dict, "_dict"),
        ((bytearray, memoryview), "_buffer"),
        (values.Foreign, "_foreign"),
    )

    def _list(self, value, path):
        named = getattr(type(value), "_fields", ())
        steps = [f".{name}" for name in named] or [f"[{at}]" for at in range(len(value))]
        found = [self._part(item, path + step) for step, item in zip(steps, value, strict=True)]
        if named:
            return type(value)(*found)
        return tuple(found) if isinstance(value, tuple) else found

    def _dataclass(self, value, path):
        names = [field.name for field in dataclasses.fields(value)]
        found = {name: self._part(getattr(value, name), f"{path}.{name}") for name in names}
        return dataclasses.replace(value, **found)

    def _dtype_alone(self, value, path):
        return self._dtype(value, path, "dtype")

    def _buffer(self, value, path):
        if not of_bytes(value):
            raise Refused(path, "memoryview")
        return bytes(value)

    def _array(self, value, path):
        """An array of numpy's or of a subclass; in C order, in the machine's order of bytes."""
        if isinstance(value, np.ma.MaskedArray) or hasattr(value, "unit"):
            raise Refused(path, type(value).__name__)
        names = (type(value).__name__, "structured", "object", re.escape(str(value.dtype)))
        self._dtype(value.dtype, path, *names)
        if type(value) is values.Named:
            self.free = True
        plain = np.asarray(value)
        return plain.astype(plain.dtype.newbyteorder("="), order="C")

    def _foreign(self, value, path):
        """An array of another library, of what DLPack has words for."""
        try:
            value.__dlpack__()
        except BufferError:
            self.free = True
        return self._array(value.held, path)

    def _scalar(self, value, path):
        kind = type(value)
        if kind in (np.str_, np.bytes_):
            return self._any(kind.__base__(value), path)
        if kind is not value.dtype.type:
            raise Refused(path, kind.__name__)
        dtype = self._dtype(value.dtype, path, kind.__name__, re.escape(str(value.dtype)))
        return np.frombuffer(value.tobytes(), dtype)[0]

    def _dtype(self, dtype, path, *names):
        """The dtype, under the name that stands for it on the other side."""
        foreign = dtype.isbuiltin == 2 and not is_extension(dtype.name)
        if foreign or dtype.hasobject or issubclass(dtype.type, np.void):
            raise Refused(path, *names, re.escape(str(dtype)))
        return np.dtype(dtype.newbyteorder("=").str) if dtype.isbuiltin != 2 else dtype

    def _plain(self, value, path):
        """A number or text of Python's, or of a subclass without a unit: then its base's."""
        kind = next(each for each in (bool, int, float, str, bytes) if isinstance(value, each))
        if hasattr(value, "unit"):
            raise Refused(path, type(value).__name__)
        self.free |= type(value) is not kind
        plain = str.__str__(value) if kind is str else kind(value)
        if kind is str and any("\ud800" <= char <= "\udfff" for char in plain):
            raise Refused(path, "UTF-8", "str")
        return plain

    def _dict(self, value, path):
        found = {}
        for key, item in value.items():
            plain = self._part(key, path)
            found[plain] = self._part(item, f"{path}[{key!r}]")
        return found


def of_bytes(value):
    """Whether it is a row of bytes, as which it travels."""
    if isinstance(value, memoryview):
        return value.format in tuple("Bbc") and value.ndim == 1
    return isinstance(value, bytearray)


# The values -------------------------------------------------------------------------------

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s", "7D")
INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = ["float16", "float32", "float64", "longdouble"]
COMPLEX = ["complex64", "complex128", "clongdouble"]
CARRIED = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
CARRIED += ["float8_e8m0fnu", "int4", "uint4"]
NOT_CARRIED = ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn", "int2", "uint2"]
TIMES = [f"{kind}[{unit}]" for kind in ("M8", "m8") for unit in UNITS] + ["m8", "M8"]
OTHERS = ["U3", "S4", "U0", "O", "V3", "i4,f8"]
NUMBERS = st.sampled_from(["nan", "-0.0", "inf", "-inf", "0.1", "1e-7", "65504", "3", "-1.5"])

whole = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30]),
)
integer_scalars = st.sampled_from(INTEGERS).flatmap(
    lambda name: st.sampled_from([np.iinfo(name).min, 0, 1, 7, np.iinfo(name).max]).map(
        lambda number: f"np.{name}({number})"
    )
)
float_scalars = st.builds("np.{}('{}')".format, st.sampled_from(FLOATS), NUMBERS)
complex_scalars = st.builds(
    "np.{}(complex({}, {}))".format, st.sampled_from(COMPLEX), NUMBERS, NUMBERS
)
time_scalars = st.builds(
    "np.{}64({}, '{}')".format,
    st.sampled_from(["datetime", "timedelta"]),
    st.sampled_from(["'NaT'", "5", "-7", str(1 << 62), "0"]),
    st.sampled_from(UNITS),
)
extension_scalars = st.builds(
    "ml_dtypes.{}({})".format, st.sampled_from(CARRIED + NOT_CARRIED), st.sampled_from("0123")
)
numpy_scalars = st.one_of(
    integer_scalars,
    float_scalars,
    complex_scalars,
    time_scalars,
    extension_scalars,
    st.sampled_from(
        [
            *("np.bool_(True)", "np.bool_(False)", "np.longlong(5)", "np.ulonglong(2**64 - 1)"),
            *("np.timedelta64(3)", "np.datetime64('NaT')", "np.timedelta64('NaT')"),
            *("np.str_('a b')", "np.str_('')", "np.bytes_(b'a\\0b')", "np.void(b'ab')"),
            *("np.zeros(1, 'i4,f8')[0]", "np.ma.masked", "Kelvin(5.0)"),
        ]
    ),
)
python_values = st.one_of(
    whole.map(str),
    st.text(max_size=4).map(repr),
    st.binary(max_size=4).map(repr),
    st.floats().map(repr),
    st.sampled_from(
        [
            *(
                "None",
                "True",
                "False",
                "'\\ud800'",
                "1j",
                "complex(nan, 0.0)",
                "...",
                "NotImplemented",
            ),
            *("Colour.RED", "Mode.FAST", "State.OFF", "Word('a')", "Metres(2.0)", "Point()"),
            *("bytearray(b'ab')", "memoryview(b'ab')", "memoryview(np.arange(3))", "range(3)"),
            *("memoryview(b'abcd').cast('H')", "array('i', [1, 2])", "array('B', [1, 2])"),
            *("{1, 2}", "frozenset('a')", "deque([1])", "UserDict(a=1)", "ChainMap({'a': 1})"),
            *("slice(1, 2)", "Decimal('1.5')", "Fraction(1, 3)", "datetime.timedelta(1)"),
            *("datetime.datetime(2026, 1, 31)", "datetime.date(2026, 1, 31)", "object"),
            *("np.float32", "np.dtype('>f4')", "np.dtype('M8[ns]')", "np.dtype('i4,f8')", "float"),
            *("np.dtype('O')", "dtype_of('bfloat16')", "dtype_of('int2')", "np.dtype('U3')"),
            *("di.Shape((2, 0))", "di.cpu(0)", "Sparse()", "di.Shape(())", "np.datetime64"),
        ]
    ),
)
shapes = st.sampled_from([(), (0,), (3,), (2, 3), (0, 2), (1, 1), (2, 1, 2), (20_000,)])
dtypes = st.sampled_from(
    [*INTEGERS, *FLOATS, *COMPLEX, *CARRIED, *NOT_CARRIED, *TIMES, *OTHERS, "bool"]
)
plain_arrays = st.builds("filled({!r}, {}, {})".format, dtypes, shapes, st.integers(0, 9))
LIKE_AN_ARRAY = [
    *(
        "{}",
        "{}.T",
        "np.asfortranarray({})",
        "{}[::-1]",
        "{}[..., ::2]",
        "read_only({})",
        "big({})",
    ),
    *("np.broadcast_to({}, (2, *{}.shape))", "{}.view(Named)", "{}[..., None]", "{}.copy()[...]"),
    *("matrix({})", "mapped({})", "np.ma.array({})", "np.ma.array({}, mask=True)"),
    *("{}.view(Length)", "Foreign({})", "ArrayLike({})", "ArrayLike(np.ma.array({}))"),
    *("{}.view(np.recarray)", "np.array({}, ndmin=2)", "{}.astype(object)", "{}.tolist()"),
]


def made(text):
    """Whether Python makes a value of a text: no matrix has three axes."""
    try:
        build(text)
    except (TypeError, ValueError, IndexError, BufferError):
        return False
    return True


array_likes = st.builds(
    lambda like, text: like.replace("{}", text), st.sampled_from(LIKE_AN_ARRAY), plain_arrays
).filter(made)
alone = st.one_of(numpy_scalars, python_values, array_likes).filter(made)
keys = st.sampled_from(
    [
        *("'a'", "'b'", "''", "'é'", "np.str_('n')", "Word('w')", "1", "None", "2**70", "-0.0"),
        *("(1, 'a')", "()", "Colour.RED", "Mode.FAST", "b'a'", "np.int8(3)", "frozenset('a')"),
        *("datetime.date(2026, 1, 31)", "di.Shape((2,))", "np.dtype('f4')", "nan", "1j"),
    ]
)


def containers(inner):
    """Texts of what holds values."""
    few = st.lists(inner, min_size=1, max_size=3)
    pairs = st.lists(st.tuples(keys, inner), min_size=1, max_size=3)
    joined = few.map(", ".join)
    return st.one_of(
        joined.map("[{}]".format),
        joined.map("({},)".format),
        joined.map("Items([{}])".format),
        inner.map("Pair({0}, {0})".format),
        inner.map("Box({0})".format),
        pairs.map(lambda found: "{" + ", ".join(f"{key}: {item}" for key, item in found) + "}"),
        pairs.map(
            lambda found: f"OrderedDict([{', '.join(map('({0[0]}, {0[1]})'.format, found))}])"
        ),
        inner.map("defaultdict(list, z={0}, a={0})".format),
        inner.map("[1, {{'k': {}}}]".format),
    )


texts = st.one_of(alone, st.recursive(alone, containers, max_leaves=4)).filter(made)


# The sessions -----------------------------------------------------------------------------


class Sessions:
    """One session of each kind, opened again where an example has broken it."""

    def __init__(self, openers):
        self._openers, self._open = openers, {}

    def __iter__(self):
        for kind in self._openers:
            self._look(kind)
            if kind not in self._open:
                self._open[kind] = self._openers[kind]()
                self._open[kind].import_python_module("disco_hunt_values")
                self._open[kind].import_python_module("disco_value_classes")
            yield kind, self._open[kind]

    def _look(self, kind):
        """Takes up the errors that an example has left; a session that is lost goes."""
        while kind in self._open:
            try:
                self._open[kind].sync_all(timeout=60)
            except (di.SessionError, TimeoutError):
                with contextlib.suppress(di.DiscoError):
                    self._open.pop(kind).shutdown()
            except di.DiscoError:
                continue
            else:
                return

    def close(self):
        for session in self._open.values():
            session.shutdown()


@pytest.fixture(scope="module")
def sessions(cluster) -> Iterator[Sessions]:
    """Sessions of two workers on threads, on processes, and on two nodes."""
    sys.path.insert(0, str(WORKER_MODULES))
    opened = Sessions(
        {
            "threads": lambda: di.ThreadedSession(2),
            "processes": lambda: di.ProcessSession(2),
            "cluster": lambda: di.connect(cluster.address, num_workers=2),
        }
    )
    yield opened
    opened.close()
    sys.path.remove(str(WORKER_MODULES))


def check(where, law, take, form="{}", path="", same=(), *, free=False):
    """Lets a value take one way, and compares what has become of it with what may.

    Args:
        where: What the value went through, for the message.
        law: What may become of it.
        take: Lets it; returns the descriptions of all that has arrived.
        form: The description of what was sent, with the value's own for ``{}``.
        path: Where the value is in what was sent.
        same: What may arrive besides: the very thing, where nothing has to carry it.
        free: Whether this way may refuse what others let through.
    """
    free = free or law.free
    try:
        came = take()
    except di.DiscoError as error:
        said = str(error)
        if not law.refused:
            assert free, f"{where}\n  was refused: {said}\n  instead of {law.arrives}"
            return
        told = any(refused.is_told(said, path) for refused in law.refused)
        assert told or free, f"{where}\n  is not called by its name and place: {said}"
        return
    expected = form.replace("{}", law.arrives or "an error")
    for each in came:
        known = each == expected or each in same
        assert known, f"{where}\n  arrived as {each}\n  instead of {expected}"


def fetched(value):
    """Describes what a fetch has returned; what stands for what cannot travel is a refusal."""
    if isinstance(value, Opaque):
        raise di.EncodingError(f"{value} {value.type}")
    return describe(value)


# The ways ---------------------------------------------------------------------------------

NESTED = {
    "in a list": ("[{}]", lambda value: [value], "list [{}]", "[0]"),
    "in a dict": (
        "{{'x': [1, {}]}}",
        lambda value: {"x": [1, value]},
        "dict {str 'x': list [int 1, {}]}",
        "['x'][1]",
    ),
}


@given(text=texts)
def test_an_argument(sessions, text):
    """By position, by name, after another one, inside a list and a dict; on every worker."""
    value = build(text)
    law = Law(value)
    for kind, session in sessions:
        told = session.get_global_func("hunt.describe")

        def everywhere(call, told=told):
            ref = call(told)
            return [ref.get(worker) for worker in (0, 1)]

        ways = {
            "an argument": (lambda told: told(value), "{}", ""),
            "a keyword": (lambda told: told(value=value), "{}", ""),
            "the second argument": (lambda told: told(1, value), "int 1, {}", ""),
        }
        for way, (_, wrap, form, path) in NESTED.items():
            ways[way] = (lambda told, wrap=wrap: told(wrap(value)), form, path)
        for way, (call, form, path) in ways.items():
            where = f"{kind}, as {way}: {text}"
            take = lambda call=call: everywhere(call)  # noqa: E731
            check(where, law, take, f"list [{form}]", path)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(value=VALUES)
def test_a_value_of_many_types(sessions, value):
    """Dates, sets, members, dataclasses: there, inside others and back, with all their types."""
    for _, session in sessions:
        echo = session.get_global_func("hunt.echo")
        refs = [(echo(sent), sent) for sent in (value, [value], {"k": value}, {(1, "k"): (value,)})]
        for ref, sent in refs:
            assert_same(ref.get(1), sent)
            assert_same(ref.future().result(), sent)
        assert_same(echo(value=value).get(), value)


@given(text=texts)
def test_an_input_of_a_program(sessions, text):
    """What a captured program is given, and what a captured step has for its argument."""
    value = build(text)
    law = Law(value)
    for kind, session in sessions:
        told = session.get_global_func("hunt.describe")
        with session.capture() as program:
            program.output(told(program.input("x")))

        def given_to(program=program):
            return [program(value).get(worker) for worker in (0, 1)]

        def captured(told=told, session=session):
            with session.capture() as program:
                program.output(told(value))
            return [program().get(worker) for worker in (0, 1)]

        check(f"{kind}, as a program's input: {text}", law, given_to, "list [{}]")
        where = f"{kind}, as a constant of a program: {text}"
        check(where, law, captured, "list [{}]", free=True)  # a large array is an input


@given(text=texts)
@example(text="{1: memoryview(b'ab')}")
def test_a_result(sessions, text):
    """Of a function, alone and inside others, by every way of fetching it."""
    value = build(text)
    law = Law(value)
    wholes = {"alone": ("{}", "{}", "")}
    wholes |= {way: (inner, form, path) for way, (inner, _, form, path) in NESTED.items()}
    for kind, session in sessions:
        make = session.get_global_func("hunt.make")
        for way, (inner, form, path) in wholes.items():
            whole = inner.format(text)
            ref = make(whole)
            same = () if kind != "threads" else (describe(at_home(build(whole))),)
            fetches = {
                "get": lambda ref=ref: ref.get(1),
                "debug_get_from_remote": lambda ref=ref: ref.debug_get_from_remote(0),
                "future": lambda ref=ref: ref.future().result(),
                "await": lambda ref=ref: asyncio.run(awaited(ref)),
            }
            for name, fetch in fetches.items():
                where = f"{kind}, as a result {way}, by {name}: {text}"
                itself = kind == "threads" and name == "debug_get_from_remote"
                if itself and law.refused:
                    continue  # the register itself, whatever it is
                take = lambda fetch=fetch: [fetched(fetch())]  # noqa: E731
                check(where, law, take, form, path, (*same, describe(build(whole))))


def at_home(value):
    """The same in plain lists, dicts, bytes and arrays: what threads fetch nothing has to carry."""
    if isinstance(value, np.ndarray) and not (hasattr(value, "mask") or hasattr(value, "unit")):
        objects = value.dtype.hasobject or value.dtype.names is not None
        return value if objects else np.asarray(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, Shape):
        items = [at_home(item) for item in value]
        if hasattr(type(value), "_fields"):
            return type(value)(*items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: at_home(item) for key, item in value.items()}
    if isinstance(value, values.Box):
        return values.Box(at_home(value.held), value.label)
    return bytes(value) if of_bytes(value) else value


async def awaited(ref):
    return await ref


@given(text=texts)
def test_there_and_back(sessions, text):
    """What has arrived in a register comes back as it is, and is what the next call gets."""
    value = build(text)
    law = Law(value)
    for kind, session in sessions:
        echo = session.get_global_func("hunt.echo")
        told = session.get_global_func("hunt.describe")

        def back(echo=echo):
            ref = echo(value)
            return [fetched(ref.get(0)), fetched(echo(ref).get(1)), fetched(echo([ref]).get(1)[0])]

        def onwards(echo=echo, told=told):
            ref = echo(value)
            return [told(ref).get(0), told(ref).get(1)]

        check(f"{kind}, there and back: {text}", law, back)
        check(f"{kind}, as a reference: {text}", law, onwards, "list [{}]")


def host_array(value):
    """What numpy makes of a host array, and what may become of that; None for what is none."""
    held = value.held if isinstance(value, (values.Foreign, values.ArrayLike)) else value
    if isinstance(held, list):
        held = computed(lambda: np.asarray(held))
    if isinstance(held, np.generic) and not isinstance(held, (str, bytes)):
        law = Law(held)
        held = np.asarray(held)
        return held, law if law.refused else Law(held)
    if not isinstance(held, np.ndarray) or held.dtype.kind in "SU":
        return None, None
    return np.asarray(held), Law(value if isinstance(value, values.Foreign) else held)


@given(text=st.one_of(array_likes, numpy_scalars).filter(made))
def test_a_host_array(sessions, text):
    """Copied to one worker or all, into what is there, awaited; read as an array, and into one."""
    value = build(text)
    held, law = host_array(value)
    if law is None:
        return
    for kind, session in sessions:
        told = session.get_global_func("hunt.describe")

        def into(worker, session=session):
            ref = session.empty(held.shape, held.dtype)
            ref.debug_copy_from(worker, value)
            return ref

        ways = {
            "copy_to_worker_0": (0, lambda session=session: session.copy_to_worker_0(value)),
            "put": (0, lambda session=session: asyncio.run(session.put(value))),
            "broadcast": (1, lambda session=session: session.broadcast(value)),
            "debug_copy_from": (1, lambda into=into: into(1)),
        }
        for way, (worker, copy) in ways.items():

            def take(copy=copy, told=told, worker=worker):
                ref = copy()
                seen = told(ref).get(worker)
                return [f"list [{describe(ref.numpy(worker))}]", seen]

            # No collective has every dtype, nor can an empty array of every dtype be made.
            free = way in ("broadcast", "debug_copy_from")
            check(f"{kind}, by {way}: {text}", law, take, "list [{}]", free=free)


@given(text=st.one_of(array_likes, numpy_scalars).filter(made))
def test_an_array_to_copy_into(sessions, text):
    """What worker 0 holds is copied into an array of the program's, or that is refused."""
    value = build(text)
    held, law = host_array(value)
    if law is None or law.refused:
        return
    for kind, session in sessions:
        make = session.get_global_func("hunt.make")

        def take(session=session, make=make):
            out = np.zeros(held.shape, held.dtype)
            session.copy_from_worker_0(out, make(text))
            session.sync_worker_0()
            return [describe(out)]

        free = not isinstance(value, np.ndarray) or not value.dtype.isnative
        check(f"{kind}, by copy_from_worker_0: {text}", law, take, free=free)


# As an operand ----------------------------------------------------------------------------

OPERATORS = {
    name: getattr(np, name)
    for name in (
        *("add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "power"),
        *("true_divide", "floor_divide", "remainder", "logical_and", "bitwise_and", "arctan2"),
    )
}
HELD = [*INTEGERS, *FLOATS[:3], *COMPLEX[:2], "bfloat16", "bool", "M8[s]", "M8[ns]", "m8[ms]"]
held_dtypes = st.sampled_from(HELD)


def is_served(value, dtype):
    """Whether a value has to be an operand where numpy computes with it."""
    if type(value) is int and dtype.startswith("float"):
        return True
    number = type(value) in (bool, int, float, complex) or (
        isinstance(value, np.generic) and not isinstance(value, (str, bytes))
    )
    return number and (type(value) is complex or not Law(value).refused)


def computed(call):
    """What numpy computes, or its error."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except Exception as error:  # noqa: BLE001  (any: none of its numbers are there)
        return error


@given(
    dtype=held_dtypes,
    shape=st.sampled_from([(), (3,), (2, 3), (0,)]),
    place=st.sampled_from(["R", "S[0]"]),
    name=st.sampled_from(sorted(OPERATORS)),
    text=st.one_of(numpy_scalars, python_values, array_likes).filter(made),
    first=st.booleans(),
)
def test_an_operand(sessions, dtype, shape, place, name, text, first):
    """Of a distributed tensor: numpy's values and dtype, or an error; what loses is refused."""
    value, host = build(text), values.filled(dtype, shape, 1)
    if place != "R" and not shape:
        return
    function = OPERATORS[name]
    plain = value.held if isinstance(value, (values.Foreign, values.ArrayLike)) else value
    pair = (plain, host) if first else (host, plain)
    expected = computed(lambda: function(*pair))
    for kind, session in sessions:
        where = f"{kind}, numpy.{name} of {dtype}{shape} {place} and {text}, first: {first}"
        try:
            tensor = session.distribute(host, session.mesh(), place)
            came = function(value, tensor) if first else function(tensor, value)
            came = came.numpy() if isinstance(came, DTensor) else came
        except (di.DiscoError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
            came = error
        if isinstance(came, Exception):
            must = is_served(value, dtype) and not isinstance(expected, Exception)
            assert not must, f"{where}\n  is refused: {came}\n  not {expected!r}"
            continue
        large = type(value) is int and not is_int64(value)
        inexact = is_floating(dtype) or dtype.startswith("complex")
        if large and inexact and isinstance(expected, (OverflowError, TypeError)):
            continue  # a float beside floating-point numbers, where some of numpy's refuse it
        assert not isinstance(expected, Exception), f"{where}\n  is {came!r}, not {expected!r}"
        lost = isinstance(plain, np.ma.MaskedArray) or (
            isinstance(plain, (np.ndarray, np.generic)) and hasattr(plain, "unit")
        )
        assert not lost, f"{where}\n  is {came!r}, not refused"
        wanted = np.asarray(expected)
        assert came.dtype == wanted.dtype, f"{where}\n  is {came.dtype}, not {wanted.dtype}"
        assert came.shape == wanted.shape, f"{where}\n  is {came.shape}, not {wanted.shape}"
        assert alike(came, wanted), f"{where}\n  is {came!r}\n  not {wanted!r}"


def alike(one, other):
    """Whether two arrays of one dtype have the same numbers, to the last bit but that of a NaN."""
    if is_extension(one.dtype.name):
        one, other = one.astype("f8"), other.astype("f8")
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")
