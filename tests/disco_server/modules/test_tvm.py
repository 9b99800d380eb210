"""Compiled libraries as modules."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading

import numpy as np
import pytest

from disco_client import cpu
from disco_client.wire.arrays import empty_array
from disco_server.modules import tvm
from disco_server.modules.base import FileRefused
from disco_server.modules.tvm import TvmFunction


def load(path, functions=None):
    path = path.resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return tvm.load(path, digest, cpu(), functions or {})


@pytest.fixture
def matrix():
    array = empty_array((3, 4), np.dtype("float32"))
    array[...] = np.arange(12).reshape(3, 4)
    return array


@pytest.mark.parametrize("name", ["basics.so", "basics.tar"])
def test_functions_of_a_virtual_machine_are_called(tvm_modules, name, matrix):
    """From a library, and from an archive that is linked first."""
    functions = load(tvm_modules / name)
    assert sorted(functions) == ["pair", "same", "transpose", "twice_bfloat16"]
    assert len(functions) == 4
    np.testing.assert_array_equal(functions["transpose"](matrix), matrix.T)
    assert functions.get("nope") is None


def test_several_results_are_nested_lists(tvm_modules, matrix):
    """As they are tuples in the module."""
    first, (second, third) = load(tvm_modules / "basics.so")["pair"](matrix)
    np.testing.assert_array_equal(first, matrix * 2)
    np.testing.assert_array_equal(second, matrix * matrix)
    assert np.shares_memory(third, matrix)


def test_nothing_is_copied_on_the_way_through(tvm_modules, matrix):
    """An argument that comes back is the same memory."""
    assert np.shares_memory(load(tvm_modules / "basics.so")["same"](matrix), matrix)


@pytest.mark.parametrize("name", ["plain.so", "plain.tar"])
def test_a_library_without_a_virtual_machine_works_too(tvm_modules, name):
    """Its functions write into their last argument, also where that lies askew."""
    functions = load(tvm_modules / name)
    assert "add_one" in list(functions)
    source = np.arange(65, dtype="float32")[1:]
    out = np.zeros(65, "float32")[1:]
    functions["add_one"](source, out)
    np.testing.assert_array_equal(out, source + 1)


def test_a_missing_function_is_named_when_the_module_starts(tvm_modules):
    """TVM looks all of them up at once."""
    with pytest.raises(FileRefused, match=r"cannot start missing\.so: .*tests\.nobody_has_this"):
        load(tvm_modules / "missing.so")


def scale_into(array, out):
    np.multiply(array, 3, out=out)


def refuse(array):
    raise KeyError(str(array.shape))


SERVED = {"tests.served.scale_into": scale_into, "tests.served.refuse": refuse}


def test_a_module_calls_what_is_registered_here(tvm_modules, matrix):
    """With arrays that are looked at in place; an error of it comes out as it was raised."""
    functions = load(tvm_modules / "serving.so", SERVED)
    np.testing.assert_array_equal(functions["scaled"](matrix), matrix * 3)
    with pytest.raises(KeyError, match=r"\(3, 4\)"):
        functions["refused"](matrix)
    np.testing.assert_array_equal(functions["scaled"](matrix), matrix * 3)


def test_each_load_starts_a_machine_of_its_own(tvm_modules, matrix):
    """Of one library; so threads that are ranks do not meet in it."""
    machines = [load(tvm_modules / "basics.so") for _ in range(2)]
    assert not machines[0].module.same_as(machines[1].module)
    failures = []

    def run(functions, factor):
        array = empty_array((3, 4), np.dtype("float32"))
        array[...] = factor
        got = [functions["pair"](array)[0][0, 0] for _ in range(200)]
        failures.extend(value for value in got if value != 2 * factor)

    threads = [threading.Thread(target=run, args=(m, i)) for i, m in enumerate(machines, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_library_that_was_compiled_anew_is_loaded_anew(tvm_modules, tmp_path, matrix):
    """Though the system's loader would give the old one for the same path."""
    path = tmp_path / "model.so"
    shutil.copy(tvm_modules / "basics.so", path)
    old = load(path)
    path.unlink()
    shutil.copy(tvm_modules / "serving.so", path)
    new = load(path, SERVED)
    assert sorted(new) == ["refused", "scaled"]
    np.testing.assert_array_equal(old["transpose"](matrix), matrix.T)


def archive(path, **members):
    with tarfile.open(path, "w") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def test_what_is_no_library_is_refused(tmp_path):
    """With the path, and what the loader or the linker said of it."""
    (tmp_path / "text.so").write_text("no library" * 100)
    with pytest.raises(FileRefused, match=r"a library that TVM compiled in .*invalid ELF"):
        load(tmp_path / "text.so")
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(FileRefused, match="expected an archive of object files"):
        load(tmp_path / "text.tar")
    with pytest.raises(FileRefused, match="found none"):
        load(archive(tmp_path / "empty.tar", readme_txt=b"hello"))
    with pytest.raises(FileRefused, match=r"cannot link .*exited with"):
        load(archive(tmp_path / "bad.tar", lib_o=b"no object"))


def test_an_archive_needs_a_compiler(tvm_modules, monkeypatch):
    """Where there is none, the message says what to do instead."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    tvm._libraries.pop(((tvm_modules / "plain.tar").resolve(), digest(tvm_modules)), None)
    with pytest.raises(FileRefused, match=r"export the module as \.so instead"):
        load(tvm_modules / "plain.tar")


def digest(folder):
    return hashlib.sha256((folder / "plain.tar").read_bytes()).hexdigest()


def test_a_module_made_by_tvm_s_code_is_a_module(tvm_modules):
    """A function that returns one gives something whose functions can be looked up."""
    start = TvmFunction(load(tvm_modules / "basics.so").module.get_function("get_function_arity"))
    assert start("pair") == 1
