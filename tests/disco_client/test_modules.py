"""Modules on the workers of a session."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import disco_client as di
from disco_client import errors


@pytest.fixture
def matrix(session):
    """The numbers from 0 to 11 on every worker."""
    return session.broadcast(np.arange(12, dtype="float32").reshape(3, 4), in_group=False)


def test_a_python_file_is_a_module(session, tmp_path):
    """Its public functions run on every worker."""
    (tmp_path / "model.py").write_text(
        "import disco_server\n"
        "def mine(x): return x * (disco_server.current_worker().worker_id + 1)\n"
    )
    module = session.load_vm_module(tmp_path / "model.py")
    results = module["mine"](5)
    assert [results.debug_get_from_remote(w) for w in range(4)] == [5, 10, 15, 20]
    assert module.debug_get_from_remote(0).text == "<module 'model.py'>"


@pytest.mark.parametrize("name", ["basics.so", "basics.tar"])
def test_a_compiled_module_runs_on_every_worker(session, tvm_modules, matrix, name):
    """One function after the other, without waiting for any."""
    module = session.load_vm_module(str(tvm_modules / name), "cpu")
    transpose = module["transpose"]
    turned = transpose(matrix)
    for worker in range(4):
        assert turned.numpy(worker).tolist() == matrix.numpy(worker).T.tolist()


def test_a_module_can_be_asked_what_it_has(session, tvm_modules, tmp_path):
    """A compiled one and a Python file; the question fails nothing."""
    (tmp_path / "model.py").write_text("def g(x): return x\ndef f(x): return x\n_limit = 5\n")
    python = session.load_vm_module(tmp_path / "model.py")
    compiled = session.load_vm_module(tvm_modules / "basics.so")
    assert python.names() == ["f", "g"]
    assert {"transpose", "pair", "same"} <= set(compiled.names())
    for module, name in ((python, "f"), (compiled, "transpose")):
        assert name in module
        assert "nope" not in module
        assert 5 not in module
        get = session.get_global_func("ffi.ModuleGetFunction")
        found, missing = get(module, name, True), get(module, "nope", True)
        for worker in range(4):
            assert found.debug_get_from_remote(worker) is not None
            assert missing.debug_get_from_remote(worker) is None
    session.sync_all()


def test_functions_of_imported_modules_are_found_where_they_are_asked_for(session, tvm_modules):
    """As TVM's query_imports says; a name in brackets, and ``in``, look there too."""
    module = session.load_vm_module(tvm_modules / "importing.so")
    find = session.get_global_func("ffi.ModuleGetFunction")
    without = find(module, "shard_rows", False)
    assert without.get_all() == [None] * 4
    rows = session.broadcast(np.arange(8, dtype="float32").reshape(4, 2), in_group=False)
    for func in (di.DPackedFunc(find(module, "shard_rows", True), session), module["shard_rows"]):
        halves = session.empty((2, 2, 2), "float32")
        func(rows, halves)
        assert halves.numpy(3).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert "shard_rows" in module


def test_items_of_a_result_are_fetched_and_passed_on(session, tvm_modules, matrix):
    """Each is a reference of its own, on every worker."""
    module = session.load_vm_module(tvm_modules / "basics.so")
    pair = module["pair"](matrix)
    doubled, inner = pair[0], pair[1]
    again = module["pair"](doubled)[0]
    assert again.numpy(3).tolist() == (matrix.numpy() * 4).tolist()
    assert inner[0].numpy(2).tolist() == (matrix.numpy() ** 2).tolist()
    assert inner[-1][1].numpy().tolist() == [4, 5, 6, 7]
    whole = pair.debug_get_from_remote(1)
    assert whole[1][1].shape == (3, 4)
    with pytest.raises(errors.BadArgument, match="a list with 2 items, got 2"):
        pair[2].debug_get_from_remote(0)
    with pytest.raises(TypeError, match="not iterable"):
        list(pair)


def test_bfloat16_goes_through_a_compiled_module(session, tvm_modules):
    """Though neither numpy nor DLPack knows it."""
    module = session.load_vm_module(tvm_modules / "basics.so")
    ones = session.broadcast(np.ones((3, 4), ml_dtypes.bfloat16), in_group=False)
    got = module["twice_bfloat16"](ones).numpy(3)
    assert got.dtype == ml_dtypes.bfloat16
    assert got.astype("float32").tolist() == np.full((3, 4), 2).tolist()


def test_a_module_calls_functions_of_the_workers(session, tvm_modules, matrix):
    """Those that a Python module registered, each rank its own."""
    module = session.load_vm_module(tvm_modules / "calling.so")
    scaled = module["scaled"](matrix)
    for worker in range(4):
        assert scaled.numpy(worker).tolist() == (matrix.numpy() * (worker + 1)).tolist()
    module["refused"](matrix)
    with pytest.raises(errors.RemoteException) as raised:
        session.sync_all()
    assert raised.value.exception == "disco_test_functions.ShyError"


def test_functions_of_tvm_are_found_by_name(session):
    """Where no function or module of Python has the name."""
    echo = session.get_global_func("testing.echo")
    assert echo([1, "a"]).debug_get_from_remote(3) == [1, "a"]
    session.get_global_func("testing.no_such_thing")
    with pytest.raises(errors.FunctionNotFound, match="'testing'"):
        session.sync_all()


def test_what_is_not_there_is_named(session, tvm_modules, tmp_path):
    """A function with those there are; a file; a kind with those that can be loaded."""
    module = session.load_vm_module(tvm_modules / "basics.so")
    module["nope"]
    with pytest.raises(errors.FunctionNotFound, match="it has pair, same, transpose"):
        session.sync_all()
    session.load_vm_module(tmp_path / "nope.so")
    with pytest.raises(errors.BadFile, match=r"nope\.so.*No such file"):
        session.sync_all()
    (tmp_path / "a.xyz").write_text("")
    with pytest.raises(errors.BadFile, match=r"expected a file ending in \.py, \.so, \.tar"):
        session.load_vm_module(tmp_path / "a.xyz")
    (tmp_path / "text.so").write_text("no library" * 100)
    session.load_vm_module(tmp_path / "text.so")
    with pytest.raises(errors.BadFile, match="expected a library that TVM compiled"):
        session.sync_all()
    with pytest.raises(errors.BadFile, match=r"needs|cannot start missing\.so"):
        session.load_vm_module(tvm_modules / "missing.so").debug_get_from_remote(0)
    (tmp_path / "bad.py").write_text("def f(:\n")
    session.load_vm_module(tmp_path / "bad.py")
    with pytest.raises(errors.RemoteException, match="SyntaxError"):
        session.sync_all()
    assert module["same"](5) is not None
    with pytest.raises(errors.RemoteException):
        session.sync_all()


def test_wrong_arguments_are_refused_at_once(session, tvm_modules):
    """Before anything is sent."""
    with pytest.raises(TypeError):
        session.load_vm_module(5)
    with pytest.raises(TypeError, match="as text"):
        session.load_vm_module(b"/tmp/a.so")
    with pytest.raises(errors.ConfigError, match="expected a device"):
        session.load_vm_module(tvm_modules / "basics.so", "tpu")
    session.load_vm_module(tvm_modules / "basics.so", "cuda:0")
    with pytest.raises(errors.BadArgument, match="expected this worker's device"):
        session.sync_all()


def test_a_captured_program_calls_a_module(session, tvm_modules, matrix):
    """Its functions and the items of their results are steps like any other."""
    module = session.load_vm_module(tvm_modules / "basics.so")
    with session.capture() as program:
        state = program.input("state")
        for _ in range(3):
            state = module["pair"](state)[0]
        program.output(state)
    assert program(state=matrix).numpy(3).tolist() == (matrix.numpy() * 8).tolist()
    with pytest.raises(errors.CaptureError, match="outside"), session.capture():
        session.load_vm_module(tvm_modules / "basics.so")
    session.sync_all()
