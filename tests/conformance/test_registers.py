"""Registers: how they are numbered, and how long what they hold lives."""

from __future__ import annotations

import gc

import pytest

import disco_client as di

BOTH_ENDS = pytest.mark.layouts((1, 1), (4, 1))


def alive(tools):
    """How many of the suite's objects each worker has, once it has done all before."""
    return tools.results("alive")


def test_freed_registers_are_used_again_last_freed_first(open_session):
    """And new ones are numbered one after the other, from 1."""
    session = open_session(1)
    session.sync_all()
    low = session.empty((1,), "int8")
    b, c, d = (session.empty((1,), "int8") for _ in range(3))
    first = b.reg_id
    assert low.reg_id >= 1
    assert [b.reg_id, c.reg_id, d.reg_id] == [first, first + 1, first + 2]
    del c
    again = session.empty((1,), "int8")
    assert again.reg_id == first + 1
    del b
    del d
    ids = [session.empty((1,), "int8") for _ in range(3)]
    assert [ref.reg_id for ref in ids] == [first + 2, first, first + 3]


def test_every_call_takes_a_register_for_its_result(session, tools):
    """Also where the result is None."""
    refs = [tools.call("echo", None) for _ in range(3)]
    assert len({ref.reg_id for ref in refs}) == 3
    assert 0 not in {ref.reg_id for ref in refs}


def test_a_register_that_nothing_was_written_to_holds_none(session, tools):
    """However far it lies beyond those in use."""
    keeper = tools.call("echo", 1)
    ref = di.DRef(5000, session, owner=keeper)
    assert tools.fetch(ref) == [None] * session.num_workers


@BOTH_ENDS
def test_a_register_is_emptied_when_its_reference_dies(tools):
    """On every worker, before the next command runs."""
    before = alive(tools)
    ref = tools.call("counted")
    assert alive(tools) == [count + 1 for count in before]
    del ref
    assert alive(tools) == before


@BOTH_ENDS
def test_only_that_register_is_emptied(tools):
    """What another one holds too lives on."""
    before = alive(tools)
    first = tools.call("counted")
    second = tools.call("echo", first)
    del first
    assert alive(tools) == [count + 1 for count in before]
    assert tools.results("kind", second) == ["Counted"] * len(tools.workers)
    del second
    assert alive(tools) == before


def test_what_a_call_uses_lives_until_it_has_run(session, tools, waiter):
    """A reference may be dropped right after the call, while the workers are busy."""
    before = alive(tools)
    tools.call("wait_for_file", str(waiter))
    result = tools.call("kind", tools.call("counted"))
    gc.collect()
    waiter.touch()
    assert tools.fetch(result) == ["Counted"] * session.num_workers
    assert alive(tools) == before


def test_thousands_of_results_need_few_registers(session, tools):
    """Those that are dropped are used again."""
    add = session.get_global_func("conformance.add")
    ref = tools.call("echo", 0)
    before = session.statistics()["registers"]
    for _ in range(2000):
        ref = add(ref, 1)
    assert tools.fetch(ref) == [2000] * session.num_workers
    assert session.statistics()["registers"] < before + 10


def test_a_module_is_not_held_by_its_functions_reference(session, tools):
    """Each reference frees its own register."""
    module = di.DModule(tools.call("module"), session)
    registers = {module.reg_id, module["add"].reg_id, module["multiply"].reg_id}
    assert module.reg_id in registers
    assert tools.results("kind", module) == ["module"] * session.num_workers


def test_references_that_die_after_their_session_are_harmless(open_session, tools_of):
    """In any order, with objects in their registers."""
    session = open_session(2)
    tools = tools_of(session)
    refs = [tools.call("counted"), tools.call("module"), session.empty((2,), "int8")]
    session.sync_all()
    session.shutdown()
    refs.clear()
    gc.collect()
    session.shutdown()
