"""Functions and classes that a program gives as they are, not by a name."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import disco_client
from disco_client import connect, errors

SCALING = """\
import disco_server

def scale(array, factor=2.0, *, bias=0):
    return array * factor + bias + disco_server.current_worker().worker_id

class Counter:
    def __init__(self, start, *, step=1):
        self.total, self._step = start, step

    def add(self):
        self.total += self._step
        return self.total

    @staticmethod
    def twice(x):
        return 2 * x

    class Inner:
        def name(self):
            return "inner"

def around(factor):
    def inside(x):
        return x * factor
    def apart(x):
        return x
    return inside, apart

short = lambda x: x

async def later():
    return 1

def several():
    yield 1

def replaced(x):
    return x

before = replaced

def replaced(x):
    return -x
"""


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """Writes a module of a program and imports it; returns it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def make(content=SCALING, name="disco_own_scaling"):
        (tmp_path / f"{name}.py").write_text(content)
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        names.append(name)
        return importlib.import_module(name)

    yield make
    for name in names:
        sys.modules.pop(name, None)


KINDS = {
    "threads": disco_client.ThreadedSession,
    "processes": disco_client.ProcessSession,
}


@pytest.fixture(params=["cluster", *KINDS])
def own_session(request, open_session):
    """A session of each kind."""
    if request.param == "cluster":
        yield open_session(2)
    else:
        with KINDS[request.param](2) as session:
            yield session


def test_a_function_is_called_as_it_is(own_session, bring):
    """It needs no registration and no name; what it calls of the worker is the worker's."""
    scaled = own_session.function(bring().scale)
    ones = own_session.broadcast(np.ones(2))
    assert [scaled(ones, 3, bias=1).numpy(worker).tolist() for worker in (0, 1)] == [[4, 4], [5, 5]]
    assert "disco_own_scaling.scale" in repr(scaled)
    assert own_session.function(bring().later)().get(1) == 1
    assert list(own_session.function(bring().several)().stream(1)) == [1]


def test_a_class_makes_objects(own_session, bring):
    """Nested ones as well; methods that need no object are functions."""
    module = bring()
    counter = own_session.create(module.Counter, 5, step=2)
    added = counter.add()
    assert [added.get(worker) for worker in (0, 1)] == [7, 7]
    assert counter.total.get() == 7
    assert counter[module.Counter.add]().get(1) == 9
    assert own_session.create(module.Counter.Inner).name().get(1) == "inner"
    assert own_session.function(module.Counter.twice)(21).get(1) == 42
    assert own_session.function(module.Counter.add)(counter).get(1) == 11


def test_what_is_installed_is_found_by_its_name(own_session):
    """Numpy's ufuncs, too, which have no module; nothing is brought for that."""
    rows = own_session.broadcast(np.arange(3.0))
    assert own_session.function(np.add)(rows, 1).numpy(1).tolist() == [1, 2, 3]
    assert own_session.function(np.sum)(rows).get(1) == 3
    assert own_session.function(np.linalg.norm)(rows).get(1) == pytest.approx(5**0.5)


def test_a_file_that_has_changed_replaces_its_functions(session, bring):
    """Where it has not changed, workers import nothing again."""
    module = bring(
        "loads = [0]\ndef count():\n    loads[0] += 1\n    return loads[0]\n", "disco_own_n"
    )
    assert [session.function(module.count)().get(3) for _ in range(3)] == [1, 2, 3]
    module = bring("def count():\n    return 'changed'\n", "disco_own_n")
    assert session.function(module.count)().get(3) == "changed"


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda m: m.around(3)[0], "captures factor of the function around it"),
        (lambda m: m.around(3)[1], "define it at the top of 'disco_own_scaling'"),
        (lambda m: m.short, "a lambda has no name"),
        (lambda m: m.before, "workers would find something else by that name"),
    ],
    ids=["closure", "local", "lambda", "replaced"],
)
def test_what_workers_cannot_find_is_refused_at_once(session, bring, choose, message):
    """The error says what to do, and the session goes on."""
    module = bring()
    with pytest.raises((errors.ConfigError, errors.BadArgument), match=message):
        session.function(choose(module))
    assert session.function(module.scale)(1).get(2) == 4


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda m: functools.partial(m.scale, 1), "give its function"),
        (lambda m: m.Counter(1).add, "a method of an object of this program"),
        (lambda m: m.Counter(1), "expected a function or a class"),
        (lambda m: "scale", "session.get_global_func"),
        (lambda m: m, "expected a function or a class"),
        (lambda m: [].append, "expected a function or a class"),
        (lambda m: None, "expected a function or a class"),
    ],
    ids=["partial", "method", "object", "text", "module", "builtin method", "nothing"],
)
def test_what_is_no_function_is_refused(session, bring, choose, message):
    """With what came, and what to give instead."""
    with pytest.raises(TypeError, match=message):
        session.function(choose(bring()))


def test_a_reference_is_no_function_of_the_program(session):
    """It is one on the workers already."""
    with pytest.raises(TypeError, match="which is on the workers already"):
        session.function(session.get_global_func("tests.echo"))


def test_an_import_that_fails_is_raised_at_the_call(session, bring):
    """With what the file raised; and it is tried again when the file has changed."""
    module = bring(
        "import os\nif 'DISCO_RANK' in os.environ or True:\n    pass\ndef f():\n    return 1\n",
        "disco_own_bad",
    )
    Path(module.__file__).write_text("raise KeyError('told to fail')\n")
    with pytest.raises(errors.RemoteError, match="told to fail"):
        session.function(module.f)
    Path(module.__file__).write_text("def f():\n    return 2\n")
    assert session.function(module.f)().get(1) == 2


def test_a_worker_that_takes_no_files_has_what_is_installed(daemons, bring, tmp_path, monkeypatch):
    """If its settings allow that; otherwise the error says what allows files."""
    module, controller = bring(), daemons.controller()
    daemons.worker(controller.address, "--slots", 1, "--name", "closed")
    with connect(controller.address, num_workers=1, logs=False) as session:
        with pytest.raises(errors.NotAllowed, match="--allow-load uploads"):
            session.function(module.scale)
        with pytest.raises(errors.NotAllowed, match="--allow-load uploads"):
            session.create(module.Counter, 1)
        with pytest.raises(errors.NotAllowed, match="--allow-load uploads"):
            session.include(module)
        session.sync_all()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    controller = daemons.controller()
    allowed = ("--allow-module", module.__name__)
    daemons.worker(controller.address, "--slots", 2, "--name", "has", *allowed)
    with connect(controller.address, num_workers=2, logs=False) as session:
        assert session.function(module.scale)(1).get(1) == 3
        assert session.create(module.Counter, 1).add().get(1) == 2


def test_another_worker_has_it_after_a_loss(open_session, bring, lose):
    """The commands that brought it are repeated."""
    module, decorated = bring(), bring(DECORATED, "disco_own_decorated")
    session = open_session(2, recover="replay")
    scaled, counter = session.function(module.scale), session.create(module.Counter, 5)
    ones = session.broadcast(np.ones(1))
    counter.add()
    decorated.scale.remote(ones)
    lose(session)
    assert scaled(1).get(1) == 3
    assert decorated.scale.remote(ones, 3).get_all() == [3, 3]
    assert counter.add().get(1) == 7
    assert session.function(module.scale)(2).get(1) == 5


def test_another_worker_has_it_after_a_checkpoint(open_session, bring, lose, tmp_path):
    """What a session had brought before is brought again with what makes its functions."""
    module = bring()
    session = open_session(2, recover="replay")
    scaled = session.function(module.scale)
    assert scaled(1).get(1) == 3
    session.checkpoint(tmp_path / "checkpoint")
    lose(session)
    assert scaled(1).get(1) == 3
    assert session.function(module.scale)(2).get(1) == 5
    assert session.create(module.Counter, 1).add().get(1) == 2


DECORATED = """\
import disco_client
import disco_server

@disco_client.remote
def scale(array, factor=2.0, *, bias=0):
    "Scales."
    return array * factor + bias

@disco_client.remote
async def later(x):
    return x

@disco_client.remote
class Counter:
    def __init__(self, start, *, step=1):
        self.total, self._step = start, step

    def add(self):
        self.total += self._step
        return self.total

    @staticmethod
    @disco_client.remote
    def twice(x):
        return 2 * x

class Faster(Counter):
    pass

def from_a_worker():
    return scale.remote(1)
"""


def test_what_is_decorated_runs_here_and_on_workers(own_session, bring):
    """Plainly called it is itself, and `remote` is what function() and create() do with it."""
    module, ones = bring(DECORATED, "disco_own_decorated"), own_session.broadcast(np.ones(2))
    assert module.scale(3, bias=1) == 7
    assert module.scale.remote(ones, 3, bias=1).numpy(1).tolist() == [4, 4]
    assert own_session.function(module.scale)(3).get(1) == 6
    assert module.later.remote(x=ones).numpy(1).tolist() == [1, 1]
    assert module.Counter.twice.remote(ones).numpy(1).tolist() == [2, 2]
    assert module.Counter(1).add() == 2
    assert own_session.create(module.Counter, 5, step=2).add().get(1) == 7
    counters = [kind.remote(2, step=ones) for kind in (module.Counter, module.Faster)]
    assert [each.add().numpy(1).tolist() for each in counters] == [[3, 3], [3, 3]]
    with pytest.raises(AttributeError, match="its class has"):
        _ = module.Counter(1).remote


def test_the_session_of_a_remote_call_is_found(bring):
    """By an argument, also in a capture; without one it is the one that is open; or an error."""
    module, kind = bring(DECORATED, "disco_own_decorated"), disco_client.ThreadedSession
    with pytest.raises(errors.ConfigError, match=r"needs an open session.*scale\(...\) is a call"):
        module.scale.remote(1)
    with kind(1) as first:
        assert module.scale.remote(1).get() == 2
        with kind(2) as second:
            assert module.scale.remote(second.broadcast(np.ones(1))).get_all() == [2, 2]
            assert module.scale.remote(1, factor=first.broadcast(np.ones(1))).get_all() == [1]
            with first.capture() as program:
                x = program.input("x")
                program.output(module.scale.remote(x, 5))
            assert program(3).get() == 15
            with pytest.raises(errors.ConfigError, match=r"2 sessions.*session\.function\(scale\)"):
                module.scale.remote(1)
            with pytest.raises(errors.ConfigError, match=r"session\.create\(Counter, ...\)"):
                module.Counter.remote(1)
        with pytest.raises(errors.BadArgument, match="this is a worker, which calls scale"):
            first.function(module.from_a_worker)().get()


def test_a_decorated_file_is_brought_once_to_a_session(bring):
    """What a session keeps of the function goes with it."""
    module = bring(DECORATED, "disco_own_decorated")
    with disco_client.ProcessSession(1) as session:
        assert module.scale.remote(1).get() == 2
        Path(module.__file__).write_text("raise KeyError('told to fail')\n")
        assert module.scale.remote(2).get() == 4
        with pytest.raises(errors.RemoteError, match="told to fail"):
            session.function(module.scale)
        alive = weakref.ref(module.scale)
        del module, sys.modules["disco_own_decorated"]
        gc.collect()
        assert alive() is None


def test_a_decorated_function_stays_itself(bring):
    """For pickle, inspect and asyncio."""
    module = bring(DECORATED, "disco_own_decorated")
    assert pickle.loads(pickle.dumps(module.scale)) is module.scale
    assert pickle.loads(pickle.dumps(module.Counter)) is module.Counter
    assert str(inspect.signature(module.scale)) == "(array, factor=2.0, *, bias=0)"
    assert (module.scale.__name__, module.scale.__doc__) == ("scale", "Scales.")
    assert inspect.iscoroutinefunction(module.later)
    assert repr(module.scale.remote) == "<disco_own_decorated.scale on the workers>"


class HasRemote:
    remote = 5


@pytest.mark.parametrize(
    ("choose", "kind", "message"),
    [
        (lambda m: m.around(3)[0], errors.ConfigError, "captures factor of the function around it"),
        (lambda m: m.around(3)[1], errors.ConfigError, "define it at the top of 'disco_own_scal"),
        (lambda m: m.short, errors.ConfigError, "a lambda has no name"),
        (lambda m: functools.partial(m.scale, 1), TypeError, "expected a function or a class"),
        (lambda m: staticmethod(m.scale), TypeError, "write @remote below @staticmethod"),
        (lambda m: HasRemote, TypeError, "has an attribute 'remote' of its own, 5"),
    ],
    ids=["closure", "local", "lambda", "partial", "static method", "own attribute"],
)
def test_what_workers_cannot_find_is_not_decorated(bring, choose, kind, message):
    """In the words of session.function, where the decorator is."""
    thing = choose(bring())
    with pytest.raises(kind, match=message):
        disco_client.remote(thing)


def test_a_decorator_loads_little():
    """A module that has one is imported without what sessions need."""
    program = "import sys; from disco_client import remote; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "disco_client.decorator" in done.stdout.split()
    heavy = {"numpy", "grpc", "google.protobuf", "disco_client.core", "disco_server"}
    assert not heavy & set(done.stdout.split())


PROGRAM = """\
import disco_client

state = []

def note(x):
    state.append(x)
    return __name__

def work(session):
    with session:
        print(session.function(note)(5).get(), state)

GUARD work(disco_client.KIND(1))
"""


@pytest.mark.parametrize(
    ("kind", "guard", "says"),
    [
        ("ProcessSession", 'if __name__ == "__main__":', "program []"),
        ("ThreadedSession", 'if __name__ == "__main__":', "__main__ [5]"),
        ("ThreadedSession", "if True:", "__main__ [5]"),
        ("ProcessSession", "if True:", "below 'if __name__ =="),
    ],
    ids=["processes", "threads", "threads without a guard", "processes without a guard"],
)
def test_the_program_s_own_functions_are_on_its_workers(tmp_path, kind, guard, says):
    """Threads have the very functions; processes import the file, except what its guard keeps."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("GUARD", guard).replace("KIND", kind))
    program = [sys.executable, str(file)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert says in done.stdout + done.stderr


def test_a_function_below_the_guard_is_not_on_workers(tmp_path):
    """The error says that they do not execute it."""
    text = (
        "import disco_client\nif __name__ == '__main__':\n    def f(): return 1\n"
        "    with disco_client.ProcessSession(1) as s:\n        s.function(f)"
    )
    (tmp_path / "guarded.py").write_text(text)
    program = [sys.executable, str(tmp_path / "guarded.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert "'guarded.py' defines no function or class 'f'" in done.stderr
    assert "does not execute what stands below" in done.stderr


def test_a_prompt_without_sources_is_refused():
    """The error says where to put the function."""
    text = (
        "import disco_client\ndef f(): return 1\n"
        "with disco_client.ThreadedSession(1) as s:\n    s.function(f)"
    )
    program = [sys.executable, "-c", text]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert "put it into a file and import it from there" in done.stderr
