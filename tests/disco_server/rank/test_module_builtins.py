"""The builtins of modules, as a rank calls them."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_client import cuda
from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.modules.base import FileRefused, LoadedModule, LoadNotAllowed, LoadRules
from disco_server.rank.builtins import core, files
from disco_server.rank.errors import ArgumentRefused, FunctionMissing, ModuleNotAllowed
from disco_server.rank.functions import resolve
from disco_server.rank.worker import Worker, current_worker, set_current_worker

ANYTHING = LoadRules(("*",))


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, rules=ANYTHING):
        worker = Worker(worker_id, 4, 1, open_groups=None, allow_modules=("numpy",), loading=rules)
        set_current_worker(worker)
        return worker

    yield become
    set_current_worker(None)


def call(name, *args):
    return resolve(name, ())(*args)


def test_a_modules_functions_are_found_in_it(at):
    """Public and callable ones of allowed modules."""
    at(0)
    assert call("ffi.ModuleGetFunction", np, "matmul") is np.matmul
    for name, error in (
        ("nope", FunctionMissing),
        ("pi", FunctionMissing),
        ("_x", ModuleNotAllowed),
    ):
        with pytest.raises(error):
            call("ffi.ModuleGetFunction", np, name)
    with pytest.raises(ModuleNotAllowed):
        call("ffi.ModuleGetFunction", os, "system")
    with pytest.raises(ArgumentRefused, match="expected a module"):
        call("ffi.ModuleGetFunction", 5, "f")


def test_a_missing_function_is_answered_with_those_there_are(at):
    """Up to a number of them, and how many more."""
    at()
    module = LoadedModule("m.so", {"f": abs, "g": abs})
    assert call("ffi.ModuleGetFunction", module, "f") is abs
    assert call("ffi.ModuleGetFunction", module, "f", False) is abs
    with pytest.raises(FunctionMissing, match=r"module 'm.so' has no function 'h'; it has f, g$"):
        call("ffi.ModuleGetFunction", module, "h")
    many = LoadedModule("m.so", {f"f{i:02}": abs for i in range(25)})
    with pytest.raises(FunctionMissing, match=r"f18, f19 and 5 more$"):
        call("ffi.ModuleGetFunction", many, "h")
    with pytest.raises(FunctionMissing, match="does not tell"):
        call("ffi.ModuleGetFunction", LoadedModule("m", {}), "h")


class MadeOnAccess(dict):
    """What a loader of another kind of file may return: functions that it makes when asked."""

    def get(self, name, default=None):
        return abs if name == "made" else super().get(name, default)


@pytest.mark.parametrize("module", [LoadedModule("m.onnx", MadeOnAccess(f=abs, text="x")), np])
def test_a_question_for_a_function_is_answered_with_none(at, module):
    """Where there is none, by a third argument of any value; without one it is an error."""
    at()
    there, name = ("f", "text") if module is not np else ("matmul", "pi")
    ask = resolve("ffi.ModuleGetFunction", ())
    assert callable(ask(module, there, True))
    assert ask(module, "nope", True) is ask(module, name, True) is None
    assert ask(module, "nope", False) is None
    with pytest.raises(FunctionMissing):
        ask(module, "nope")
    if module is not np:
        assert ask(module, "made", True) is abs


def test_the_names_of_a_module_are_those_of_its_public_functions(at):
    """Sorted."""
    at()
    loaded = LoadedModule("m", {"g": abs, "f": abs})
    assert call("runtime.disco._module_names", loaded) == ["f", "g"]
    names = call("runtime.disco._module_names", np)
    assert "matmul" in names
    assert "pi" not in names
    with pytest.raises(ArgumentRefused, match="expected a module"):
        call("runtime.disco._module_names", 5)


@pytest.mark.parametrize(
    ("value", "key", "item"),
    [
        ([1, [2]], 1, [2]),
        ((1, 2), -1, 2),
        ({"a": 3}, "a", 3),
        (np.array([1.5, 2.5]), 1, 2.5),
        (np.array([True]), 0, True),
    ],
)
def test_an_item_is_taken_by_position_or_key(value, key, item):
    """Out of lists, maps and arrays."""
    got = call("runtime.disco.get_item", value, key)
    assert got == item
    assert not isinstance(got, np.number)


def test_a_row_of_an_array_is_the_array_s_own_memory():
    """Nothing is copied."""
    array = np.zeros((2, 3))
    call("runtime.disco.get_item", array, 1)[:] = 5
    assert array[1].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        ([1, 2], 2, "expected an item of a list with 2 items, got 2"),
        ([1, 2], "a", "got 'a'"),
        ({"a": 1}, "b", r"a dict with keys \['a'\], got 'b'"),
        ({"a": 1}, [1], r"got \[1\]"),
        (np.zeros(3), 3, "an array with 3 items, got 3"),
        (np.zeros(()), 0, "to take item 0 of, got an array"),
        (5, 0, "got a int"),
        ("text", 0, "got a str"),
        (None, 0, "got a NoneType"),
    ],
)
def test_an_item_that_is_not_there_is_refused(value, key, message):
    """With what there is."""
    with pytest.raises(ArgumentRefused, match=message):
        call("runtime.disco.get_item", value, key)


@pytest.mark.parametrize("path", [5, "", "a\0b", None])
def test_a_path_is_text(at, path):
    """Anything else is refused before the file system is asked."""
    at()
    with pytest.raises(ArgumentRefused, match="expected the path of a file"):
        call("runtime.disco.load_vm_module", path, None)


def test_a_module_runs_on_the_workers_own_device(at, tmp_path):
    """Another one is refused, as for an array."""
    at()
    (tmp_path / "a.py").write_text("def f(): return 1\n")
    path = str(tmp_path / "a.py")
    assert call("runtime.disco.load_vm_module", path, None).functions["f"]() == 1
    assert call("runtime.disco.load_vm_module", path, "cpu:0").functions["f"]() == 1
    with pytest.raises(ArgumentRefused, match="expected this worker's device cpu:0, got cuda:0"):
        call("runtime.disco.load_vm_module", path, cuda())


def test_what_is_not_allowed_is_not_told_from_what_is_missing(at, tmp_path):
    """A session learns nothing about files that it may not load."""
    at(rules=LoadRules((str(tmp_path),)))
    with pytest.raises(FileRefused, match="No such file"):
        call("runtime.disco.load_vm_module", str(tmp_path / "nope.py"), None)
    for path in ("/etc/nope.py", os.__file__):
        with pytest.raises(LoadNotAllowed, match="--allow-load"):
            call("runtime.disco.load_vm_module", path, None)


def test_a_digest_must_be_one(at, tmp_path):
    """It becomes the name of a file."""
    at(rules=LoadRules(("*",), tmp_path, 100))
    for digest in ("../../x", "A" * 64, 5):
        with pytest.raises(ArgumentRefused, match="expected a SHA-256"):
            call("runtime.disco._wants_file", "a.py", digest, [0])
        with pytest.raises(ArgumentRefused, match="expected a SHA-256"):
            call("runtime.disco._begin_file", "a.py", digest, 1, [0])


def test_only_the_asked_ranks_take_a_file(at, tmp_path):
    """One a node is enough; the others look on."""
    at(1, LoadRules(("*",), tmp_path, 100))
    assert call("runtime.disco._wants_file", "/nope/a.py", "0" * 64, [1, 2]) is True
    assert call("runtime.disco._wants_file", "/nope/a.py", "0" * 64, [0, 2]) is False
    assert call("runtime.disco._begin_file", "/nope/a.py", "0" * 64, 1, [0]) is None
    call("runtime.disco._append_file", None, None, 0)
    call("runtime.disco._finish_file", None)
    with pytest.raises(ArgumentRefused, match="expected a file under way"):
        call("runtime.disco._append_file", None, None, 1)


def test_a_file_for_all_is_taken_where_it_is_missing(at, tmp_path):
    """Not where it is there already; then nothing need be allowed, and its bytes pass by."""
    content = b"def two():\n    return 2\n"
    digest = hashlib.sha256(content).hexdigest()
    at(1, LoadRules(("*",), tmp_path / "cache", 100))
    incoming = call("runtime.disco._begin_file", "/nope/a.py", digest, len(content), [])
    call("runtime.disco._append_file", incoming, np.frombuffer(content, np.uint8), -1)
    call("runtime.disco._finish_file", incoming)
    assert call("runtime.disco._begin_file", "/nope/a.py", digest, len(content), []) is None
    call("runtime.disco._append_file", None, np.frombuffer(content, np.uint8), -1)
    loaded = call("runtime.disco._load_content", "/nope/a.py", digest, None)
    assert loaded.functions["two"]() == 2


def test_without_a_folder_nothing_is_brought(at):
    """The rank of a session kind that keeps no uploads says so."""
    at()
    with pytest.raises(FileRefused, match="no folder for what clients bring"):
        call("runtime.disco._begin_file", "a.py", "0" * 64, 1, [0])
    with pytest.raises(FileRefused, match="no folder for what clients bring"):
        call("runtime.disco._load_content", "/nope/a.py", "0" * 64, None)
    assert (files.__all__, core.__all__) == (["content_of"], [])


@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (4, 1), (4, 2)])
def test_ranks_that_are_threads_meet_in_their_own_collectives(tvm_modules, ranks, groups):
    """Though TVM's registry is one for the process: each call belongs to its thread's rank."""
    world = LocalWorld(ranks, groups)
    shards = ranks // groups
    path = str(tvm_modules / f"sharded_{ranks}.so")

    def run(rank):
        def communicator(worker, ccl):
            return LocalGroups(rank, world)

        set_current_worker(Worker(rank, ranks, groups, open_groups=communicator, loading=ANYTHING))
        module = call("runtime.disco.load_vm_module", path, None)
        mine = np.full((2, 6), rank + 1, "float32")
        got = []
        for position in range(1, 21):
            current_worker().guard.position = position
            got.append(module.functions["sum_of_group"](mine)[1, 5])
        return got

    first = [rank // shards * shards for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as threads:
        results = list(threads.map(run, range(ranks), timeout=50))
    expected = [sum(range(low + 1, low + shards + 1)) for low in first]
    assert results == [[value] * 20 for value in expected]
