"""Objects with methods and attributes, on every kind of session."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di


@pytest.fixture
def model(session):
    """An object on each worker."""
    return session.create("conformance.Model", 4, rate=0.25)


def test_methods_are_called_and_attributes_read(session, tools, model):
    """In the order of the log, with arguments of every kind; each worker has its own object."""
    assert isinstance(model, di.DObject)
    assert tools.fetch(model.loss) == [None] * 2
    before, rate = model.loss, model.rate
    rank = tools.call("runtime.disco.worker_rank")
    assert [got.tolist() for got in tools.fetch(model.step(rank))] == [[3.0, 3.0], [3.25, 3.25]]
    assert tools.fetch(model.step(rank, rate=1.0))[1].tolist() == [1.0, 1.0]
    assert tools.fetch(before) == [None] * 2
    assert tools.fetch(rate) == [0.25] * 2
    assert tools.fetch(model.losses) == [[6.0, 0.0], [4.5, 0.0]]
    assert tools.fetch(model.total()) == [pytest.approx(1.0)] * 2
    assert tools.fetch(model.kind) == ["model"] * 2
    assert tools.fetch(model.name_of()) == ["Model"] * 2
    assert tools.fetch(model["twice"](4)) == [8, 8]


def test_a_method_is_a_function_like_any_other(session, tools, model):
    """It can be kept, passed on, and called on chosen workers; errors name it."""
    step = model.step
    step(0.0)
    session.call_packed(step, 0.0, rate=0.0)
    model.on(worker=1).step(0.0)
    got = model.on(workers=[1])["step"](0.0, rate=0.0)
    assert tools.fetch(model.losses)[0] == [6.0, 6.0]
    assert len(tools.fetch(model.losses)[1]) == 4
    assert got.debug_get_from_remote(0) is None
    model.step(0.0, failing=[1])
    with pytest.raises(di.RemoteException, match=r"told to fail[^\0]*in Model\.step") as raised:
        session.sync_all()
    assert raised.value.worker == 1
    assert tools.fetch(model.rate) == [0.25] * 2


def test_an_array_is_the_objects_own(session, tools, model):
    """So collectives and copies change the object."""
    weight = model.weight
    session.allreduce(weight, weight)
    assert tools.fetch(model.step(0.0, rate=0.0))[0].tolist() == [8.0, 8.0]


def test_objects_are_arguments(session, tools, model):
    """A function gets the object itself; a reference to one that a function made is wrapped."""
    assert tools.results("kind", model) == ["Model"] * 2
    again = di.DObject(tools.call("echo", model), session)
    again.step(4.0)
    assert tools.fetch(model.losses) == [[0.0]] * 2


def test_a_program_holds_them(session, tools, model):
    """Its runs call the object's methods, and read what its attributes are then."""
    with session.capture() as program:
        target = program.input("target")
        program.output(model.step(target, rate=0.5), model.loss)
    for loss in (4.0, 2.0):
        _, got = program(0.0)
        assert tools.fetch(got) == [loss] * 2
    with session.capture() as program:
        program.output(session.create("conformance.Model", 1).step(0.0, rate=0.5))
    assert [program().numpy(1)[0], program().numpy(1)[0]] == [0.5, 0.5]


def test_what_is_missing_or_wrong_is_an_error_of_the_next_wait(session, tools, model):
    """It says what there is; the session and the object go on."""
    for use, error, words in (
        (lambda: session.create("conformance.Models", 1), di.FunctionNotFound, "conformance.Model"),
        (lambda: session.create("conformance.Model"), di.RemoteException, "start"),
        (lambda: model.stpe(1.0), di.FunctionNotFound, "did you mean 'step'"),
        (lambda: model.rate(1.0), di.BadArgument, "expected a function"),
        (lambda: di.DObject(tools.call("echo", [1]), session)["0"], di.BadArgument, "name"),
    ):
        use()
        with pytest.raises(error, match=words):
            session.sync_all()
    for use in (lambda: model._secret, lambda: model["__class__"], lambda: model.on([0])._x):
        with pytest.raises(AttributeError, match="private"):
            use()
    with pytest.raises(TypeError):
        session.create(3)
    with pytest.raises(di.EncodingError, match=r"^argument 0 at \[1\]: ") as refused:
        session.create("conformance.Model", (4, object()))
    assert (refused.value.argument, refused.value.path) == (0, "[1]")
    assert not hasattr(model, "__array_interface__")
    assert tools.fetch(model.rate) == [0.25] * 2


def test_what_cannot_travel_is_described(session, tools, model):
    """An attribute that is another object gives no hold of it: nothing to call."""
    for worker in tools.workers:
        came = model.run.debug_get_from_remote(worker)
        assert isinstance(came, di.Opaque)
        assert "system" in came.text
    model.run("true")
    with pytest.raises(di.BadArgument, match="expected a function"):
        session.sync_all()


def test_an_object_goes_with_its_reference(session, tools):
    """And its arrays with it."""
    made = session.create("conformance.Model", 1)
    weight = made.weight
    del made
    session.sync_all()
    np.testing.assert_array_equal(weight.numpy(1), [1.0, 1.0])
