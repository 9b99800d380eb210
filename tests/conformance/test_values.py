"""Values of the program's own classes: they arrive as what they left as, on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from travelling import assert_same, classes

import disco_client as di

BOTH_ENDS = pytest.mark.layouts((2, 1))


@BOTH_ENDS
@pytest.mark.parametrize(
    "value",
    [
        classes.Order("a", [1, (2, {3})]),
        classes.Outer("b", inner=classes.Outer.Inner(classes.Colour.GREEN)),
        classes.Fixed({"k": classes.Point(1, 2.5)}, classes.Access.READ | classes.Access.WRITE),
        classes.Point(x=classes.Order("c")),
        classes.Colour.ROT,
        {classes.Fixed(1), classes.Colour.RED},
    ],
    ids=["dataclass", "derived", "frozen", "named tuple", "enum", "set"],
)
def test_values_of_own_classes_go_there_and_back(session, tools, value):
    """As an argument, by name, inside others and as a result."""
    for came in tools.results("echo", value):
        assert_same(came, value)
    for (listed,), named in tools.results("named", [value], key=value):
        assert_same(listed[0], value)
        assert_same(named["key"], value)
    for came in session.get_global_func("values.kinds")(value).get_all():
        assert came[0] == type(value).__name__


@BOTH_ENDS
def test_workers_make_values_of_own_classes(session, tools):
    """A function of theirs calls the constructor; that they arrive calls it nowhere."""
    made = session.get_global_func("values.made")
    before, mine = tools.fetch(made()), classes.Order.made
    (first, second) = tools.fetch(session.get_global_func("values.order")("d"))
    order = object.__new__(classes.Order)
    order.name, order.items, order.total = "d", [classes.Point(1, classes.Fixed({2}))], 2
    order.items.append(classes.Colour.GREEN)
    assert_same(first, order)
    assert_same(second, order)
    assert tools.results("echo", order) == [order] * 2
    made_by_workers = [now - then for now, then in zip(tools.fetch(made()), before, strict=True)]
    shared = type(session) is di.ThreadedSession
    assert made_by_workers == ([2, 2] if shared else [1, 1])
    assert classes.Order.made - mine == (2 if shared else 0)


@BOTH_ENDS
def test_arrays_and_references_in_values_of_own_classes(session, tools):
    """Large arrays travel beside the commands, and a reference becomes what it stands for."""
    rank = session.call_packed(session.get_global_func("runtime.disco.worker_rank"))
    value = classes.Order("e", [np.arange(40_000), classes.Fixed(rank)])
    for worker, came in enumerate(tools.results("echo", value)):
        np.testing.assert_array_equal(came.items[0], np.arange(40_000))
        assert came.items[1] == classes.Fixed(worker)


@BOTH_ENDS
def test_a_fetched_value_of_an_own_class_is_a_copy(session, tools):
    """What the program changes in it, the worker keeps."""
    ref = session.get_global_func("values.order")("f")
    ref.get().items.append(1)
    ref.get().items[0].y.left.add(3)
    assert len(ref.get().items) == 2
    assert ref.get().items[0].y == classes.Fixed({2})


@BOTH_ENDS
def test_what_cannot_travel_in_an_own_class_is_refused_by_its_place(session, tools):
    """At the call, before a command is sent."""
    with pytest.raises(di.EncodingError, match=r"^argument 0 at \.items\[0\]: a value of type"):
        session.get_global_func("conformance.echo")(classes.Order("g", [object()]))


@BOTH_ENDS
def test_a_value_of_a_class_that_the_program_has_not_imported(session, tools):
    """It is refused where it is fetched, by its name, and nothing else is disturbed."""
    if type(session) is di.ThreadedSession:
        pytest.skip("the program has what its threads have imported")
    ref = session.get_global_func("values.foreign")()
    for fetch in (ref.get, ref.future().result, ref.get_all, lambda: tools.results("echo", [ref])):
        with pytest.raises(di.EncodingError, match=r"disco_only_on_workers\.Sample: the module"):
            fetch()
    assert tools.results("echo", 1) == [1, 1]
    session.sync_all()
