"""What returns before any of its code has run is refused where nobody can go through it."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di


def test_a_property_that_does_not_run_is_refused(session, tools):
    """Values of attributes are plain."""
    model = session.create("arrays.Model")
    assert model.plain().get() == 7
    with pytest.raises(di.BadArgument, match=r"a generator.*return a list"):
        model.stream.get()
    assert tools.results("arrays.ran") == [[], []]


def test_a_function_of_tensors_that_does_not_run_is_refused(session, tools):
    """It has to return the part of a tensor."""
    make = session.numpy.fromfunction
    with pytest.raises(di.BadArgument, match=r"a generator.*return a list"):
        make("arrays.generating", 4, dtype="float64").numpy()
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
