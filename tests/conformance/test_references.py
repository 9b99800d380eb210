"""References: copies share a register, and one that has ended reads nobody's value."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle

import numpy as np
import pytest

import disco_client as di

OTHER = -77
"""What other commands leave in the registers that are free."""


@pytest.fixture
def fill(session):
    """Issues commands that take all free registers; returns their references."""
    echo = session.get_global_func("conformance.echo")

    def issue():
        most = session.statistics()["registers"]
        others = [echo(OTHER)]
        while others[-1].reg_id <= most:
            others.append(echo(OTHER))
        return others

    return issue


def capture(session):
    """A program that adds one."""
    add = session.get_global_func("conformance.add")
    with session.capture("more") as program:
        program.output(add(program.input("x"), 1))
    return program


def model(session):
    """An object on each worker."""
    return session.create("conformance.Model", 4)


HANDLES = {
    "reference": (lambda tools: tools.call("echo", 5), lambda ref: ref.get(1), 5),
    "function": (
        lambda tools: tools.session.get_global_func("conformance.add"),
        lambda f: f(2, 3).get(1),
        5,
    ),
    "chosen function": (
        lambda tools: tools.session.get_global_func("conformance.add").on(worker=1),
        lambda f: f(2, 3).get(1),
        5,
    ),
    "module": (
        lambda tools: di.DModule(tools.call("module"), tools.session),
        lambda module: module["add"](2, 3).get(1),
        5,
    ),
    "object": (lambda tools: model(tools.session), lambda it: it.kind.get(1), "model"),
    "chosen object": (
        lambda tools: model(tools.session).on(worker=1),
        lambda it: it.twice(4).get(1),
        8,
    ),
    "method": (lambda tools: model(tools.session).twice, lambda method: method(4).get(1), 8),
    "tensor": (
        lambda tools: tools.session.distribute(np.arange(4.0), placement="S[0]"),
        lambda x: x.numpy().tolist(),
        [0, 1, 2, 3],
    ),
    "program": (lambda tools: capture(tools.session), lambda program: program(4).get(1), 5),
    "future": (
        lambda tools: tools.call("echo", 5).future(),
        lambda future: future.result(60),
        5,
    ),
}
"""Of each kind how to make one, how to read it, and what that gives."""


class Cycle:
    """Objects that only the garbage collector frees."""

    def __init__(self, use, *kept):
        self.use, self.kept, self.me = use, kept, self

    def __del__(self):
        self.use(*self.kept)


def ended(make):
    """What something is once the garbage collector has ended it; it was in a cycle."""
    saved = []
    Cycle(saved.append, make())
    gc.collect()
    return saved.pop()


@pytest.mark.parametrize("name", HANDLES)
def test_a_copy_stands_for_the_same_and_frees_nothing(tools, fill, name):
    """Whichever of the two is gone, the other one reads its own value, and not another's."""
    make, read, expected = HANDLES[name]
    for first in (0, 1):
        both = [make(tools)]
        both.append(copy.copy(both[0]))
        assert type(both[1]) is type(both[0])
        del both[first]
        others = fill()
        assert read(both[0]) == expected
        del both, others


def test_the_last_copy_frees_the_register(tools, fill):
    """On every worker, and once."""
    before = tools.results("alive")
    refs = [tools.call("counted")]
    refs += [copy.copy(refs[0]), di.DPackedFunc(refs[0], tools.session)]
    refs += [copy.copy(ref) for ref in refs]
    while refs:
        assert tools.results("alive") == [count + 1 for count in before]
        del refs[len(refs) // 2]
    assert tools.results("alive") == before
    others = fill()
    assert len({ref.reg_id for ref in others}) == len(others)


def finalizer(ref, use):
    """An object of a cycle uses it in its end."""
    Cycle(use, ref)


def generator(ref, use):
    """A generator uses it, which refers to itself."""

    def steps():
        itself = yield
        try:
            yield itself
        finally:
            use(ref)

    running = steps()
    next(running)
    running.send(running)


def caught(ref, use):
    """An object uses it, which keeps an error that was raised beside it."""

    class Task:
        def run(self, ref):
            self.ref = ref
            try:
                int("no number")
            except ValueError as error:
                self.error = error

        def __del__(self):
            use(self.ref)

    Task().run(ref)


@pytest.mark.parametrize("user", [finalizer, generator, caught])
def test_what_a_collected_cycle_reads_is_right_or_refused(tools, fill, user):
    """By objects that use their references when these may have ended already."""
    echo = tools.session.get_global_func("conformance.echo")
    seen, others = [], []

    def use(ref):
        others.extend(fill())
        try:
            seen.append(ref.get(1))
        except di.ForeignReference as error:
            seen.append(str(error).partition(",")[0])

    for wrap in (lambda ref: ref, lambda ref: di.DPackedFunc(ref, tools.session)):
        ref = echo(5)
        user(wrap(ref), use)
        del ref
        gc.collect()
    assert len(seen) == 2
    assert set(seen) <= {5, "this reference has ended and its register was freed"}


def uses_of(session, ref):
    """Every kind of use of a reference, by name."""
    add = session.get_global_func("conformance.add")
    program, good, host = capture(session), session.empty((2,), "float32"), np.zeros(2, "float32")

    async def awaited(what):
        return await what()

    def in_batch():
        with session.batch():
            add(ref, 1)

    def in_capture():
        with session.capture() as program:
            program.output(add(ref, 1))

    def as_output():
        with session.capture() as program:
            program.output(ref)

    return {
        "get": ref.get,
        "get_all": ref.get_all,
        "numpy": ref.numpy,
        "debug_get_from_remote": lambda: ref.debug_get_from_remote(1),
        "debug_copy_from": lambda: ref.debug_copy_from(0, host),
        "future": ref.future,
        "as_completed": lambda: di.as_completed([ref]),
        "await": lambda: asyncio.run(awaited(lambda: ref)),
        "get_into": lambda: asyncio.run(awaited(lambda: ref.get_into(host))),
        "item": lambda: ref[0],
        "copy": lambda: copy.copy(ref),
        "argument": lambda: add(1, ref),
        "keyword": lambda: add(1, b=ref),
        "nested": lambda: add([1, {"a": [ref]}], 1),
        "beside an array": lambda: add(np.zeros(100_000), ref),
        "chosen": lambda: add.on(worker=1)(ref, 1),
        "called": lambda: session.call_packed(ref, 1),
        "called with a keyword": lambda: session.call_packed(ref, a=1),
        "function": lambda: di.DPackedFunc(ref, session),
        "module": lambda: di.DModule(ref, session),
        "object": lambda: di.DObject(ref, session),
        "owner": lambda: di.DRef(ref.reg_id, session, owner=ref),
        "copy_to_worker_0": lambda: session.copy_to_worker_0(host, ref),
        "copy_from_worker_0": lambda: session.copy_from_worker_0(host, ref),
        "collective": lambda: session.allreduce(ref),
        "destination": lambda: session.allreduce(good, ref),
        "publish": lambda: session.publish("x", ref),
        "create": lambda: session.create("conformance.Model", ref),
        "input": lambda: program(ref),
        "named input": lambda: program(x=[ref]),
        "batch": in_batch,
        "capture": in_capture,
        "output": as_output,
    }


def uses_of_others(session, tools, tmp_path):
    """Uses of what else has a reference: of functions, objects, tensors and programs."""
    f = ended(lambda: session.get_global_func("conformance.add"))
    module = ended(lambda: di.DModule(tools.call("module"), session))
    it = ended(lambda: model(session))
    program = ended(lambda: capture(session))
    x = ended(lambda: session.distribute(np.arange(4.0), placement="S[0]"))
    total = ended(lambda: session.distribute(np.arange(4.0), placement="S[0]").sum())
    y = session.distribute(np.arange(4.0), placement="S[0]")

    def nested():
        with session.capture() as outer:
            outer.output(program(1))

    return {
        "call": lambda: f(1, 2),
        "call on": lambda: f.on(worker=1)(1, 2),
        "module[]": lambda: module["add"],
        "module.names": module.names,
        "module in": lambda: "add" in module,
        "object.": lambda: it.kind,
        "object[]": lambda: it["kind"],
        "object.on": lambda: it.on([1]),
        "program": lambda: program(1),
        "program copy": lambda: copy.copy(program)(1),
        "program nested": nested,
        "tensor.numpy": x.numpy,
        "tensor.shard": lambda: x.shard(1),
        "tensor copy": lambda: copy.copy(x).numpy(),
        "operand": lambda: y + x,
        "reflected": lambda: 1 - x,
        "ufunc": lambda: np.exp(x),
        "concatenate": lambda: np.concatenate([y, x]),
        "redistribute": lambda: x.redistribute("R").numpy(),
        "redistribute nowhere": lambda: x.redistribute("S[0]").numpy(),
        "slice": lambda: x[::-1],
        "float": lambda: float(total),
        "partial": total.numpy,
        "argument": lambda: tools.call("echo", x),
        "publish": lambda: session.publish("x", x),
        "save": lambda: session.save(tmp_path / "saved", {"x": x}),
        "assign from": lambda: session.assign({"x": y}, {"x": x}),
        "assign to": lambda: session.assign({"x": x, "y": y}, {"x": y, "y": y}),
    }


def test_every_use_of_what_has_ended_is_refused(session, tools, fill, tmp_path):
    """At the call, whatever is in the register by then; and nothing was done."""
    echo = session.get_global_func("conformance.echo")
    before = session.failures().total  # those that other tests have left in the session
    ref = ended(lambda: echo(5))
    others = fill()
    assert ref.reg_id in {other.reg_id for other in others}
    uses = uses_of(session, ref)
    of_others = uses_of_others(session, tools, tmp_path)
    others += fill()
    uses |= {f"of others: {name}": use for name, use in of_others.items()}
    answers = {}
    for name, use in uses.items():
        try:
            answers[name] = repr(use())
        except di.DiscoError as error:
            answers[name] = type(error).__name__
    wrong = {name: answer for name, answer in answers.items() if answer != "ForeignReference"}
    assert not wrong
    assert [other.get(1) for other in others] == [OTHER] * len(others)
    assert session.failures().total == before


def test_a_program_keeps_what_it_took_though_references_to_it_have_ended(session, tools, fill):
    """In a cycle that is collected these end first; nested programs keep theirs as well."""
    add = session.get_global_func("conformance.add")
    seen = []

    def use(run, _taken):
        others = fill()
        seen.append(run[0](1).get(1))
        del others

    for nested in (False, True):
        taken = tools.call("echo", 5)
        with session.capture("inner") as program:
            program.output(add(program.input("x"), taken))
        run = []
        cycle = Cycle(use, run, taken)
        if nested:
            inner = program
            with session.capture("outer") as program:
                program.output(inner(program.input("x")))
            cycle.inner = inner
            del inner
        else:
            with session.capture("again") as program:
                program.output(add(program.input("x"), taken))
        run.append(program)
        del taken, program, run, cycle
        gc.collect()
    assert seen == [6, 6]


def test_what_a_program_took_is_freed_with_it(session, tools):
    """Also what the programs inside it took, and however the references to them ended."""
    before = tools.results("alive")
    with session.capture("inner") as inner:
        inner.output(session.get_global_func("conformance.kind")(tools.call("counted")))
    assert tools.results("alive") == before  # it was made inside
    taken = tools.call("counted")
    with session.capture("inner") as inner:
        inner.output(session.get_global_func("conformance.kind")(taken))
    with session.capture("outer") as outer:
        outer.output(inner())
    del taken, inner
    gc.collect()
    assert tools.fetch(outer()) == ["Counted"] * session.num_workers
    del outer
    gc.collect()
    assert tools.results("alive") == before


def test_deep_copies_and_pickles_say_what_to_do_instead(session, tools):
    """In every protocol, also of what only contains a reference."""
    advice = {
        "reference": r"ref\.get\(\) or ref\.numpy\(\)",
        "function": r"session\.get_global_func\(name\)",
        "chosen function": r"session\.get_global_func\(name\)",
        "module": r"session\.load_vm_module\(path\)",
        "object": "create an object",
        "chosen object": "create an object",
        "method": r"session\.get_global_func\(name\)",
        "tensor": r"x\.numpy\(\).*session\.distribute",
        "program": "pass the program itself, or capture it",
        "future": r"future\.result\(\)",
        "session": "pass the session itself.*open another one",
        "scope": r"session\.scope\(\)",
    }
    handles = {name: make(tools) for name, (make, _, _) in HANDLES.items()}
    handles |= {"session": session, "scope": session.scope()}
    for name, handle in handles.items():
        for refused in (
            lambda: copy.deepcopy(handle),  # noqa: B023  (called in the same round)
            lambda: copy.deepcopy({"a": [handle]}),  # noqa: B023
            *(lambda p=p: pickle.dumps(handle, p) for p in range(pickle.HIGHEST_PROTOCOL + 1)),  # noqa: B023
            lambda: object.__reduce_ex__(handle, 2),  # noqa: B023
        ):
            with pytest.raises(di.EncodingError, match=advice[name]):
                refused()
    with pytest.raises(di.EncodingError, match="neither copied nor pickled"):
        copy.copy(session)
