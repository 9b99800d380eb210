"""Objects of sessions: which classes are open, and what of their objects is reached."""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property, lru_cache, partial

import numpy as np
import pytest
from travelling import classes

from disco_client.errors import EncodingError
from disco_client.wire.values import Opaque
from disco_server.rank import objects
from disco_server.rank.errors import ArgumentRefused, FunctionMissing, ModuleNotAllowed
from disco_server.rank.functions import resolve
from disco_server.rank.objects import (
    BoundMethod,
    find_class,
    load_object,
    member_of,
    register_class,
    save_object,
)

FOREIGN = """
from collections import UserDict
from functools import partial
from subprocess import Popen, run

class Base:
    def inherited(self):
        return "inherited"

class Runner(Popen):
    def __init__(self):
        pass

class Model(Base, UserDict):
    run = run
    helper = staticmethod(run)
    made = classmethod(run)
    reading = property(run)
    shout = partial(run, "true")
    inside = UserDict
    lengthen = list.append

    def step(self):
        return "stepped"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that may be allowed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "disco_models.py").write_text(FOREIGN)
    yield "disco_models"
    sys.modules.pop("disco_models", None)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers goes with it."""
    monkeypatch.setattr(objects, "_classes", dict(objects._classes))
    monkeypatch.setattr(objects, "_open", set(objects._open))


class Layer:
    """What tests register; everything that a class may have."""

    __slots__ = ("__dict__", "empty", "slot")
    rate = 0.5

    def __init__(self):
        self.slot = 3
        self.array = np.arange(3)
        self.nested = {"a": [1, (2.5, None)], "b": self.array, 3: {2}}
        self.function = subprocess.run
        self.functions = [subprocess.run]
        self.holder = np.array([subprocess.run, None])
        self.inner = partial(print)
        self.step = subprocess.run
        self._hidden = 1

    def step(self, by=1):
        return by

    @property
    def doubled(self):
        return 2 * self.slot

    @cached_property
    def once(self):
        return [self.slot]

    @property
    def opener(self):
        return subprocess.run

    @lru_cache  # noqa: B019
    def cached(self):
        return "cached"

    def __call__(self):
        return "called"


def test_classes_are_found_by_registered_and_by_dotted_names(module):
    """A dotted one only where the allow-list covers the module that defines the class."""
    register_class("tests.Layer")(Layer)
    assert find_class("tests.Layer", ()) is Layer
    kind = find_class(f"{module}.Model", (module,))
    assert kind.__module__ == module
    assert find_class(f"{module}.Model", ("*",)) is kind
    assert find_class("numpy.random.RandomState", ("numpy",)) is np.random.RandomState


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("disco_models.Model", FunctionMissing, "not on its allow-list"),
        ("disco_tools.Popen", FunctionMissing, "not on its allow-list"),
        ("tests.Layr", FunctionMissing, r"did you mean 'tests\.Layer'"),
        ("Layer", FunctionMissing, "no class named"),
        ("numpy.random.RandomState", ModuleNotAllowed, "--allow-module numpy"),
        ("numpy.ndarray", ModuleNotAllowed, "--allow-module numpy"),
        ("cupy.RawKernel", ModuleNotAllowed, "--allow-module cupy"),
        ("builtins.type", FunctionMissing, "not on its allow-list"),
        ("runtime.disco.empty", FunctionMissing, "no class named"),
        ("", ArgumentRefused, "name of a class"),
        ("x" * 2000, ArgumentRefused, "1024"),
        (3, ArgumentRefused, "name of a class"),
    ],
)
def test_other_names_are_refused(module, name, error, words):
    """With the setting that would allow them; nothing is imported for them."""
    register_class("tests.Layer")(Layer)
    with pytest.raises(error, match=words):
        find_class(name, ())
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Popen", "belongs to module 'subprocess'"),
        ("UserDict", "belongs to module 'collections'"),
        ("Model.inside", "belongs to module 'collections'"),
        ("Model.__class__", "private name"),
        ("Model.step", "no class named"),
    ],
)
def test_classes_that_a_module_only_uses_are_not_reached_through_it(module, name, words):
    """As functions are not."""
    with pytest.raises((ModuleNotAllowed, FunctionMissing), match=words):
        find_class(f"{module}.{name}", (module,))


def test_members_are_found_on_the_class():
    """Methods before what the object holds; values without any code but its properties."""
    register_class("tests.Layer")(Layer)
    held = Layer()
    step = member_of(held, "step", ())
    assert isinstance(step, BoundMethod)
    assert (step.name, step(by=2)) == ("Layer.step", 2)
    assert member_of(held, "cached", ())() == "cached"
    values = {name: member_of(held, name, ()) for name in ("rate", "slot", "doubled", "once")}
    assert values == {"rate": 0.5, "slot": 3, "doubled": 6, "once": [3]}
    assert member_of(held, "array", ()) is held.array
    nested = member_of(held, "nested", ())
    assert nested == {"a": [1, (2.5, None)], "b": held.array, 3: {2}}
    assert nested[3] is not held.nested[3]
    held.nested["a"].append(subprocess.run)
    assert len(nested["a"]) == 2


@pytest.mark.parametrize("name", ["function", "holder", "inner", "opener"])
def test_what_can_be_called_never_comes_out(name):
    """What comes is a description."""
    register_class("tests.Layer")(Layer)
    assert isinstance(member_of(Layer(), name, ()), Opaque)


@pytest.mark.parametrize("name", ["functions", "keyed", "noted", "unordered"])
def test_what_holds_something_that_can_be_called_is_refused(name):
    """With the place of that, in whatever it is."""
    register_class("tests.Layer")(Layer)
    held = Layer()
    held.keyed, held.noted = {(1, len): 2}, classes.Point(1, {2: [len]})
    held.unordered = {1, len}
    with pytest.raises(EncodingError, match=r"^(at|in) .*: a value of type builtins"):
        member_of(held, name, ())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, ModuleNotAllowed) for name in ("_hidden", "__init__", "__class__", "__dict__")),
        *((name, ArgumentRefused) for name in ("", "a.b", "1", "step()", None, "x" * 2000)),
        ("stpe", FunctionMissing),
        ("empty", FunctionMissing),
    ],
)
def test_other_members_are_refused(name, error):
    """Private ones, what is no name, and what is not there."""
    register_class("tests.Layer")(Layer)
    with pytest.raises(error):
        member_of(Layer(), name, ())


@pytest.mark.parametrize(
    "name",
    ["run", "helper", "made", "reading", "lengthen", "update", "copy", "fromkeys", "setdefault"],
)
def test_what_a_class_takes_from_other_modules_is_refused(module, name):
    """Its attributes and its bases' methods, whether it is registered or allowed by name."""
    kind = find_class(f"{module}.Model", (module,))
    held = kind()
    assert member_of(held, "step", (module,))() == "stepped"
    assert member_of(held, "inherited", (module,))() == "inherited"
    for other in ("shout", "inside", "data"):
        assert isinstance(member_of(held, other, (module,)), (Opaque, dict))
    for patterns in ((module,), ()):
        register_class("tests.Model", override=True)(kind)
        with pytest.raises(ModuleNotAllowed, match="--allow-module"):
            member_of(held, name, patterns)


@pytest.mark.parametrize(
    "held", [np.arange(3), subprocess.run, [1], {}, Layer, int, resolve, partial(print)]
)
def test_objects_of_other_classes_have_no_members(held):
    """Whatever a register may hold."""
    register_class("tests.Layer")(Layer)
    for name in ("tofile", "append", "mro", "func", "args", "real", "slot", "step"):
        with pytest.raises(ModuleNotAllowed, match="is not registered"):
            member_of(held, name, ())


def test_a_name_is_taken_once_and_a_reloaded_module_registers_again():
    """Objects of the former class keep their members."""
    register_class("tests.Layer")(Layer)
    held = Layer()
    with pytest.raises(ValueError, match="registered already"):
        register_class("tests.Layer")(type("Layer", (), {"__module__": "elsewhere"}))
    again = type("Layer", (), {"__module__": Layer.__module__, "__qualname__": "Layer"})
    register_class("tests.Layer")(again)
    assert find_class("tests.Layer", ()) is again
    assert member_of(held, "step", ())() == 1
    for name, thing in (("", Layer), (None, Layer), ("tests.function", resolve)):
        with pytest.raises(ValueError, match="expected a"):
            register_class(name)(thing)


def test_an_object_is_saved_under_a_name_by_which_its_class_is_found():
    """And by no other; both methods are needed, and a dict."""

    class Saved:
        def __init__(self):
            self.state = {"a": 1}

        def __disco_state__(self):
            return self.state

        def __disco_load__(self, state):
            self.loaded = state

    held = Saved()
    with pytest.raises(EncodingError, match="not on its allow-list"):
        save_object(held, ())
    register_class("tests.Saved")(Saved)
    assert save_object(held, ()) == ("tests.Saved", {"a": 1})
    assert load_object("tests.Saved", {"a": 2}, ()).loaded == {"a": 2}
    held.state = [1]
    with pytest.raises(ArgumentRefused, match="expected a dict"):
        save_object(held, ())
    register_class("tests.Layer")(Layer)
    with pytest.raises(EncodingError, match="__disco_load__"):
        save_object(Layer(), ())
