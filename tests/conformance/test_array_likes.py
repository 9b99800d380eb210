"""Arrays that are more than numbers are refused wherever one enters, by name."""

from __future__ import annotations

import asyncio
from importlib import import_module

import numpy as np
import pytest

import disco_client as di

LOSSY = {
    "masked": "MaskedArray.*mask.*filled",
    "masked, large": "MaskedArray.*mask.*filled",
    "no mask": "MaskedArray.*mask.*filled",
    "masked element": "MaskedConstant.*mask",
    "length": "Length.*unit",
    "length, large": "Length.*unit",
    "length without axes": "Length.*unit",
    "length of times": "Length.*unit",
}
INSIDE = {
    "in a list": r"\[1\]\[1\]: .*MaskedArray.*mask",
    "in a dict": r"\['a'\]\['b'\]: .*Length.*unit",
}
WITHOUT_NUMBERS = {
    "records": "structured.*x.'a'.",
    "recarray": "recarray.*structured.*x.'a'.",
    "objects": "Python's objects",
    "sparse": "Sparse.*toarray",
}
KEPT = ("matrix", "file", "NaN")


@pytest.fixture
def makers(import_path):
    """Makes values of each kind, as functions on the workers do."""
    return import_module("disco_array_functions").MAKERS


def test_an_argument_is_refused(session, tools, makers):
    """Small and large, nested, with a name, and as the input of a program; nothing is sent."""
    total = session.get_global_func("arrays.sum")
    with session.capture() as program:
        program.output(total(program.input("x")))
    for what, match in {**LOSSY, **INSIDE, **WITHOUT_NUMBERS}.items():
        value = makers[what]()
        with pytest.raises(di.EncodingError, match=match):
            total(value)
        with pytest.raises(di.EncodingError, match=match):
            total(1, named=value)
        with pytest.raises(di.EncodingError, match=match), session.capture():
            total(value)
        with pytest.raises(di.EncodingError, match=match):
            program(value)
    assert tools.results("arrays.sum", 1, 2) == [3.0, 3.0]


def test_a_host_array_is_refused(session, makers):
    """By all that copies one to the workers, also in a list, and as a destination."""
    mesh, ref = session.mesh(), session.empty((3,), "float64")
    takes = (
        session.copy_to_worker_0,
        session.broadcast,
        session.scatter,
        lambda array: ref.debug_copy_from(0, array),
        lambda array: session.copy_to_worker_0(array, ref),
        lambda array: session.distribute(array, mesh, "R"),
        lambda array: session.distribute([array, array], mesh, "S[0]"),
        lambda array: asyncio.run(session.put(array)),
    )
    for what, match in {**LOSSY, **WITHOUT_NUMBERS}.items():
        for take in takes:
            with pytest.raises(di.EncodingError, match=match):
                take(makers[what]())
    for what, match in LOSSY.items():
        with pytest.raises(di.EncodingError, match=match):
            session.copy_from_worker_0(makers[what](), ref)
        with pytest.raises(di.EncodingError, match=match):
            asyncio.run(ref.get_into(makers[what]()))
    with pytest.raises(di.EncodingError, match=r"at \[1\]\[0\]: .*MaskedArray"):
        session.broadcast([[[1.0]], [makers["no mask"]()]])


def test_an_operand_is_refused(session, makers):
    """On both sides of an operator, in numpy's functions, and inside lists."""
    x = session.distribute(np.arange(3.0), session.mesh(), "R")
    for value, match in ((makers["masked"](), "mask"), (makers["length"](), "unit")):
        for compute in (
            lambda value=value: x + value,
            lambda value=value: x.__radd__(value),
            lambda value=value: np.add(value, x),
            lambda value=value: np.where(x > 1, x, value),
            lambda value=value: np.concatenate([x, value]),
            lambda value=value: np.stack([x, value]),
            lambda value=value: np.dot(value, x),
            lambda value=value: np.take(x, value.astype("int64")),
        ):
            with pytest.raises(di.EncodingError, match=match):
                compute()


def test_a_result_stays_on_its_worker(session, tools, makers):
    """A register may hold it, functions get it, and a fetch is refused with the way round."""
    for what, match in {**LOSSY, **INSIDE}.items():
        ref, like = tools.call("arrays.make", what), makers[what]()
        fetches = [ref.get, ref.numpy, ref.future().result]
        if what in LOSSY:
            out = np.empty(like.shape)
            fetches.append(lambda ref=ref, out=out: session.copy_from_worker_0(out, ref))
        for fetch in fetches:
            with pytest.raises(di.BadArgument, match=match):
                fetch()
    ref = tools.call("arrays.make", "masked")
    assert tools.results("arrays.sum", ref) == [2.0, 2.0]


def test_what_loses_nothing_arrives_as_a_plain_array(session, tools, makers):
    """A matrix, what lies in a file, and NaN: as argument, host array and result."""
    for what in KEPT:
        value = makers[what]()
        total = np.asarray(value).sum()
        np.testing.assert_equal(tools.results("arrays.sum", value), [total] * 2)
        held = session.broadcast(value)
        for ref in (tools.call("arrays.make", what), held):
            for found in (ref.get(), ref.numpy()):
                assert type(found) is np.ndarray
                np.testing.assert_array_equal(found, np.asarray(value))


def test_a_collective_refuses_it_on_every_worker(session, tools):
    """As source and as destination; the workers serve on."""
    for what, match in (("masked", "MaskedArray.*mask"), ("length", "Length.*unit")):
        ref = tools.call("arrays.make", what)
        for name in ("allreduce", "allgather", "team", "broadcast"):
            out = tools.call("echo", np.zeros(6 if name == "allgather" else 3))
            with pytest.raises(di.RemoteError, match=match):
                tools.results("arrays.collective", name, ref)
            with pytest.raises(di.RemoteError, match=match):
                tools.results("arrays.collective", name, out, ref)
        session.allreduce(ref)
        with pytest.raises(di.RemoteError, match=match):
            session.sync_all()


def test_a_collective_of_one_worker_refuses_it(open_session):
    """Where nothing is sent, too."""
    session = open_session(1)
    ref = session.get_global_func("arrays.make")("masked")
    for name in ("allreduce", "allgather"):
        with pytest.raises(di.RemoteError, match=r"MaskedArray.*mask"):
            session.get_global_func("arrays.collective")(name, ref).get()


def test_it_is_not_overwritten(session, tools):
    """A copy onto it would give the numbers a mask, or a unit, of something else."""
    ref = tools.call("arrays.make", "masked")
    with pytest.raises(di.BadArgument, match=r"MaskedArray.*mask"):
        ref.debug_copy_from(0, np.zeros(3))
    session.copy_to_worker_0(np.zeros(3), ref)
    with pytest.raises(di.BadArgument, match=r"MaskedArray.*mask"):
        session.sync_all()
