"""Functions that return before any of their code has run are refused, and so are their results."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest

import disco_client as di

HOW = {
    "generator": "generator.*return a list",
    "asynchronous": "asynchronous generator.*return a list",
    "expression": "generator.*return a list",
    "begun": "generator.*return a list",
    "cached": "generator.*return a list",
}


def test_it_cannot_be_registered(tools):
    """As itself, in a partial, as a method or a lambda, and as an object that is called."""
    kinds = ("generator", "asynchronous", "partial", "object", "method", "lambda")
    for what in (*kinds, "static"):
        for told in tools.results("arrays.register", what):
            assert f"'arrays.{what}'" in told
            assert "a call on a worker would return before any of it has run" in told
            assert "as with list(...)" in told


def test_a_call_that_returns_one_fails(session, tools):
    """Its register stands for the failure, nothing has run, and Python does not complain."""
    rank = session.get_global_func("runtime.disco.worker_rank")()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for what, how in HOW.items():
            # A call in a batch's column of numbers, and one with other arguments.
            make = session.get_global_func("arrays.returning")
            for ref in (make(what), make(what, 1.5), make(what, rank)):
                with pytest.raises(di.BadArgument, match=how):
                    ref.get()
                with pytest.raises(di.BadArgument, match=how):
                    tools.call("echo", ref).get()
        gc.collect()
    assert tools.results("arrays.ran") == [[], []]


def test_a_plain_call_that_returns_one_fails(session, tools):
    """One with nothing but references, as most commands are."""
    what = tools.call("echo", "generator")
    ref = session.get_global_func("arrays.returning")(what)
    with pytest.raises(di.BadArgument, match=HOW["generator"]):
        ref.get()


def test_a_step_of_a_program_that_returns_one_fails(session, tools):
    """Whether anything reads its result or not, in each run, and outputs get the failure."""
    make = session.get_global_func("arrays.returning")
    for what, how in HOW.items():
        with session.capture("unfinished") as unread:
            make(unread.input("x"))
        with session.capture("unfinished") as program:
            x = program.input("x")
            program.output(make(x), x)
        assert unread("map") is None
        for _ in range(2):
            unread(what)
            with pytest.raises(di.BadArgument, match=how):
                session.sync_all()
            output, given = program(what)
            with pytest.raises(di.BadArgument, match=how):
                output.get()
            assert given.get() == what
    assert tools.results("arrays.ran") == [[], []]


def test_a_method_that_does_not_run_is_refused(session, tools):
    """When it is looked up, and so is a property."""
    model = session.create("arrays.Model")
    assert model.plain().get() == 7
    for use in (lambda: model.step().get(), lambda: model.batches().get()):
        with pytest.raises(di.BadArgument, match="would return before any of it has run"):
            use()
    with pytest.raises(di.BadArgument, match="return a list"):
        model.stream.get()
    assert tools.results("arrays.ran") == [[], []]


def test_a_function_that_runs_one_to_its_end_is_called(session, tools):
    """And plain iterators, which run when they are used, stay in their registers."""
    assert tools.results("arrays.returning", "run") == [5, 5]
    assert tools.results("arrays.returning", "list") == [[1], [1]]
    for what in ("map", "iterator"):
        ref = tools.call("arrays.returning", what)
        session.sync_all()
        assert tools.results("arrays.next", ref) == [{"map": "1", "iterator": 1}[what]] * 2
    assert tools.call("add", np.ones(2), 1).numpy().tolist() == [2, 2]
