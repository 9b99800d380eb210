"""References: their life is their registers' life, on a real cluster."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest

from disco_client import (
    BadArgument,
    DModule,
    DObject,
    DPackedFunc,
    DRef,
    EncodingError,
    ForeignReference,
    FunctionNotFound,
    NotAllowed,
    Opaque,
    RemoteException,
)
from fakes import pair

session = pair


def test_the_id_of_a_dead_reference_is_used_again_last_first(session):
    """As in the original: what died last is taken first, before the counter moves on."""
    echo = session.get_global_func("tests.echo")
    first, second, third = (echo(n) for n in range(3))
    ids = [ref.reg_id for ref in (first, second, third)]
    del second
    assert echo(3).reg_id == ids[1]
    del first, third
    fourth, fifth = echo(4), echo(5)
    assert [fourth.reg_id, fifth.reg_id][0] in (ids[0], ids[2])
    assert len({fourth.reg_id, fifth.reg_id, echo.reg_id}) == 3
    assert [fourth.debug_get_from_remote(1), fifth.debug_get_from_remote(1)] == [4, 5]


def test_a_dropped_reference_empties_the_register_without_another_call(session, eventually):
    """Also when nothing else is sent: the workers' memory does not wait for the next command."""
    count = session.get_global_func("tests.registers")
    array = session.empty((10,), "float32")
    _, held = count().debug_get_from_remote(1)
    issued = session.statistics()["issued"]
    del array
    eventually(lambda: session.statistics()["issued"] == issued + 1, what="a command that frees")
    assert count().debug_get_from_remote(1)[1] == held - 1


def test_other_registers_with_the_same_object_keep_it(session):
    """Freeing one reference drops only that reference's hold."""
    array = session.copy_to_worker_0(np.arange(3))
    alias = session.get_global_func("tests.echo")(array)
    del array
    session.sync_all()
    assert alias.numpy().tolist() == [0, 1, 2]


def test_a_function_keeps_the_reference_it_was_made_of(session):
    """The register lives as long as any of the two."""
    echo = session.get_global_func("tests.echo")
    wrapped = DPackedFunc(DRef(echo.reg_id, session, owner=echo), session)
    again = DPackedFunc(wrapped, session)
    register = echo.reg_id
    del echo, wrapped
    gc.collect()
    session.empty((1,), "int8")
    assert again.reg_id == register
    assert again(5).debug_get_from_remote(1) == 5


def test_calling_a_function_reference_is_call_packed(session):
    """With a plain reference as the result."""
    add = session.get_global_func("tests.add")
    assert type(add(1, 2)) is DRef
    assert add(add(1, 2), 3).debug_get_from_remote(1) == 6


def test_a_module_offers_its_functions(session):
    """Whatever allowed module a register holds; private names and missing ones are refused."""
    module = DModule(session.get_global_func("importlib.import_module")("math"), session)
    assert isinstance(module["sqrt"], DPackedFunc)
    assert module["sqrt"](9.0).debug_get_from_remote(1) == 3.0
    for name, error in (
        ("no_such", FunctionNotFound),
        ("__loader__", NotAllowed),
        ("pi", FunctionNotFound),
    ):
        module[name]
        with pytest.raises(error, match=name):
            session.sync_all()
    wrong = DModule(session.get_global_func("tests.echo")(5), session)
    wrong["f"]
    with pytest.raises(BadArgument, match="expected a module"):
        session.sync_all()


def test_a_wrapper_must_be_made_for_the_references_own_session(session, open_session):
    """A function of one session is nothing in another."""
    other = open_session(1)
    for kind in (DPackedFunc, DModule):
        with pytest.raises(ForeignReference):
            kind(other.empty((1,), "int8"), session)
    other.shutdown()


@pytest.mark.parametrize("count", [4, 100_000])
def test_copying_into_a_register_fills_the_array_that_is_there(session, count):
    """On that worker only, and every register with the same array sees it."""
    array = session.get_global_func("tests.rank_array")([count], "float32")
    alias = session.get_global_func("tests.echo")(array)
    array.debug_copy_from(1, np.full(count, 9, "float32"))
    assert (alias.numpy(1) == 9).all()
    assert (alias.numpy(0) == 1).all()


def test_copying_into_a_register_replaces_what_is_no_array(session):
    """A list becomes an array as numpy makes one; None and text go."""
    for before in (None, "text", 5):
        ref = session.get_global_func("tests.echo")(before)
        ref.debug_copy_from(1, [1, 2])
        assert ref.numpy(1).tolist() == [1, 2]
        assert ref.numpy(1).dtype == np.int64
        assert ref.debug_get_from_remote(0) == before


@pytest.mark.parametrize("value", [np.zeros(3, "float32"), np.zeros(2, "float64")], ids=str)
def test_copying_an_array_that_does_not_fit_is_refused(session, value):
    """The call itself raises; the register keeps its array."""
    ref = session.get_global_func("tests.rank_array")([2], "float32")
    with pytest.raises(BadArgument, match=r"float32\[2\]") as refused:
        ref.debug_copy_from(1, value)
    assert (refused.value.worker, refused.value.function) == (1, "debug_copy_from")
    assert ref.numpy(1).tolist() == [2, 2]
    session.sync_all()


@pytest.mark.parametrize("value", [object(), "text", [None]], ids=lambda v: type(v).__name__)
def test_only_an_array_can_be_copied_into_a_register(session, value):
    """Refused here."""
    with pytest.raises(EncodingError):
        session.empty((1,), "int8").debug_copy_from(0, value)


def test_a_good_value_heals_a_poisoned_register(session):
    """After it, the register is as if nothing had happened."""
    ref = session.get_global_func("tests.fail_on")(1)
    with pytest.raises(RemoteException):
        session.sync_all()
    ref.debug_copy_from(1, [7])
    assert ref.numpy(1).tolist() == [7]
    session.sync_all()


def test_an_object_that_cannot_travel_is_described(session):
    """Functions, modules and the like stay where they are."""
    func = session.get_global_func("tests.echo").debug_get_from_remote(1)
    assert isinstance(func, Opaque)
    assert func.type == "builtins.function"
    assert "echo" in func.text


def test_numpy_fetches_arrays_and_nothing_else(session):
    """Something else in the register is named; scalars of numpy's count as numbers."""
    assert session.get_global_func("numpy.ones")([2, 2]).numpy(1).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(TypeError, match="'text'"):
        session.get_global_func("tests.echo")("text").numpy()


def test_a_reference_shows_its_register_and_session(session):
    """For people who look at one in a notebook; and its array, where the session knows it."""
    ref = session.empty((1,), "int8")
    known = f"reg_id={ref.reg_id}, session='shared'"
    assert repr(ref) == f"DRef({known}, shape=(1,), dtype='int8')"
    assert "int8 (1,)" in ref._repr_html_()
    assert repr(session.broadcast(np.ones((2, 3), "float32"))).endswith(
        "shape=(2, 3), dtype='float32')"
    )
    assert "shape=(), dtype='bool'" in repr(session.copy_to_worker_0(np.array(True)))
    ref.debug_copy_from(0, np.zeros(1, "int8"))
    assert repr(ref) == f"DRef({known})"
    assert "array" not in ref._repr_html_()
    assert "shape" not in repr(session.get_global_func("tests.echo")(1))
    assert ref.session is session
    assert ref.reg_id > 0


class Named(DPackedFunc):
    """A function with fields of a program's own."""

    __slots__ = ("note", "numbers")


class Open(DPackedFunc):
    """The same without slots."""


@pytest.mark.parametrize("kind", [Named, Open])
def test_a_copy_has_the_fields_of_subclasses(session, kind):
    """As a shallow copy of any object: the same values, and fields of its own."""
    echo = kind(session.get_global_func("tests.echo"), session)
    echo.note, echo.numbers = "first", [1]
    other = copy.copy(echo)
    other.note = "second"
    other.numbers.append(2)
    assert (echo.note, echo.numbers) == ("first", [1, 2])
    register = echo.reg_id
    del echo
    gc.collect()
    assert (type(other), other.note, other.reg_id) == (kind, "second", register)
    assert other(5).debug_get_from_remote(1) == 5


def test_copies_show_the_same_array(session):
    """And none of them shows it any more after one of them was copied into."""
    ref = session.empty((1,), "int8")
    other = copy.copy(ref)
    assert repr(other) == repr(ref)
    assert "shape=(1,)" in repr(other)
    other.debug_copy_from(0, np.zeros(1, "int8"))
    assert "shape" not in repr(ref)
    assert repr(other) == repr(ref)


def test_a_reference_ends_once(session):
    """However often, and by whomever it is ended; it shows that it has."""
    echo = session.get_global_func("tests.echo")
    ref = echo(5)
    register, others = ref.reg_id, []
    for first in (0, 3):
        ref.__del__()
        others += [echo(first + n) for n in range(3)]
        assert register in {other.reg_id for other in others}
        assert len({other.reg_id for other in others}) == first + 3
    assert repr(ref) == f"DRef(reg_id={register}, session='shared', freed=True)"
    with pytest.raises(ForeignReference, match="its register was freed"):
        ref.get()
    with pytest.raises(ForeignReference, match="its register was freed"):
        copy.copy(ref)
    del ref
    assert [other.get() for other in others] == list(range(6))


def test_a_wrapper_outlives_the_end_of_the_reference_it_was_made_of(session):
    """As it owns the register as well, which neither frees alone."""
    plain = session.get_global_func("importlib.import_module")("math")
    module = DModule(plain, session)
    plain.__del__()
    others = [session.get_global_func("tests.echo")(n) for n in range(3)]
    assert module["sqrt"](9.0).get(1) == 3.0
    register = module.reg_id
    assert register not in {other.reg_id for other in others}
    module.__del__()
    assert session.get_global_func("tests.echo").reg_id == register


@pytest.mark.parametrize("kind", [DRef, DPackedFunc, DModule, DObject])
def test_a_reference_that_was_never_made_frees_nothing(session, kind):
    """As where its constructor has raised; nothing is written about it."""
    before = session.statistics()
    made = kind.__new__(kind)
    made.__del__()
    del made
    with pytest.raises(AttributeError):
        kind(5, None)
    assert session.statistics() == before
