"""Keyword arguments, on every kind of session."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di

LARGE = np.arange(40_000.0)  # beyond what travels inside a command


def test_arguments_arrive_under_their_names(session, tools):
    """Of every kind: values, references, and arrays of any size; also where a name is func."""
    rank = tools.call("runtime.disco.worker_rank")
    named = session.get_global_func("conformance.named")
    for ref in (
        named(1, "two", func=rank, rate=0.5, large=LARGE, self=None),
        session.call_packed(named, 1, "two", func=rank, rate=0.5, large=LARGE, self=None),
    ):
        for worker, (args, keywords) in enumerate(tools.fetch(ref)):
            np.testing.assert_array_equal(keywords.pop("large"), LARGE)
            assert args == [1, "two"]
            assert keywords == {"func": worker, "rate": 0.5, "self": None}
    assert tools.fetch(named(only=3))[1] == [[], {"only": 3}]


def test_names_that_a_function_lacks_are_errors_of_the_call(session, tools):
    """The function says which; what cannot travel is refused at once, and the session goes on."""
    add = session.get_global_func("conformance.add")
    add(1, third=2)
    with pytest.raises(di.RemoteException, match=r"TypeError: .*third"):
        session.sync_all()
    for wrong, text in (
        ({"second": {"a": (1, object())}}, r"^argument 'second' at \['a'\]\[1\]: a value of type"),
        ({"\ud800": 1}, "expected keywords that UTF-8 can encode"),
    ):
        with pytest.raises(di.EncodingError, match=text):
            add(1, **wrong)
    assert tools.fetch(add(first=1, second=2)) == [3] * session.num_workers


def test_what_a_call_overwrites_may_have_a_name(session, tools):
    """It is poisoned where the call fails, and whole again after the next one."""
    scale = session.get_global_func("conformance.scale_into")
    source, out = session.broadcast(np.ones(3)), session.empty((3,), "float64")
    scale(source, failing=True, out=out)
    with pytest.raises(di.RemoteException, match="told to fail"):
        out.numpy()
    scale(source, rate=2.0, out=out)
    assert out.numpy(1).tolist() == [2.0] * 3


def test_a_program_has_them_too(session, tools):
    """Under the same names in each run, of an input and of what is constant."""
    named = session.get_global_func("conformance.named")
    with session.capture() as program:
        given = program.input("given")
        program.output(named(given, rate=0.5, again=[given]))
    for value in (1, 2):
        want = [[value], {"rate": 0.5, "again": [value]}]
        assert tools.fetch(program(value)) == [want] * session.num_workers
