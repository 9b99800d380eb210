"""A program for TVM's Disco runs here when its import line is changed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"

TVM_IMPORT = "from tvm.runtime import disco as di"
OUR_IMPORT = "import disco_client as di"

# What is not Disco's own differs by installation: how the session is made, and the
# registered functions that it calls. Arrays are numpy's.
PROGRAM = """
import numpy as np
from tvm.runtime import disco as di


def make_session():
    return {expression}


def check(got, expected):
    np.testing.assert_array_equal(np.asarray(got), expected)


def use_functions(sess):
    # A function by name; each worker has a result of its own.
    add = sess.get_global_func("conformance.add")
    assert isinstance(add, di.DPackedFunc)
    three: di.DRef = add(1, 2)
    for i in range(num_workers):
        assert three.debug_get_from_remote(i) == 3
    # Results go on as arguments without leaving the workers.
    ten = sess.call_packed(add, three, 7)
    assert ten.debug_get_from_remote(num_workers - 1) == 10
    echo = sess.get_global_func("conformance.echo")
    for value in ("hello", 0.5, True, "a longer text of a program"):
        assert echo(value).debug_get_from_remote(0) == value
    sess.import_python_module("numpy.linalg")
    rank = sess.get_global_func("runtime.disco.worker_rank")()
    assert [rank.debug_get_from_remote(i) for i in range(num_workers)] == list(range(num_workers))
    del three, ten, rank
    sess._sync_all()


def use_copies(sess):
    host = np.arange(12, dtype="float32").reshape(3, 4)
    remote = sess.copy_to_worker_0(host)
    back = np.empty_like(host)
    sess.copy_from_worker_0(back, remote)
    sess.sync_worker_0()
    check(back, host)
    # Into an array that is there, and look at it.
    room = sess.empty((3, 4), "float32", worker0_only=True)
    assert sess.copy_to_worker_0(host * 2, room) is not None
    check(room.debug_get_from_remote(0), host * 2)
    assert room.debug_get_from_remote(1) is None
    # Put one somewhere else for debugging.
    everywhere = sess.empty((2,), "int64")
    everywhere.debug_copy_from(1, np.array([5, 6]))
    check(everywhere.debug_get_from_remote(1), [5, 6])
    sess._sync_worker(1)


def use_collectives(sess):
    whole = np.arange(num_workers * 6, dtype="float32").reshape(num_workers, 2, 3)
    d_part = sess.scatter(whole)
    d_sum = sess.empty((2, 3), "float32")
    d_all = sess.empty((num_workers, 2, 3), "float32")
    sess.allreduce(d_part, d_sum, op="sum", in_group=False)
    sess.allgather(d_part, d_all, in_group=False)
    for i in range(num_workers):
        check(d_part.debug_get_from_remote(i), whole[i])
        check(d_sum.debug_get_from_remote(i), whole.sum(axis=0))
        check(d_all.debug_get_from_remote(i), whole)
    weights = np.ones((2, 3), "float32")
    d_weights = sess.broadcast(weights)
    check(d_weights.debug_get_from_remote(num_workers - 1), weights)
    # From worker 0 and back, with arrays that the program has allocated.
    d_src = sess.copy_to_worker_0(whole, sess.empty(whole.shape, "float32", worker0_only=True))
    d_dst = sess.empty((2, 3), "float32")
    sess.scatter_from_worker0(d_src, d_dst, in_group=False)
    d_back = sess.empty(whole.shape, "float32", worker0_only=True, in_group=False)
    sess.gather_to_worker0(d_dst, d_back, in_group=False)
    result = np.empty_like(whole)
    sess.copy_from_worker_0(result, d_back)
    sess.sync_worker_0()
    check(result, whole)


def use_groups(sess):
    # Two groups of two workers; each reduces among itself.
    d_array = sess.empty((4,), "float32")
    for i in range(num_workers):
        d_array.debug_copy_from(i, np.full(4, i + 1, "float32"))
    d_group = sess.empty((4,), "float32")
    sess.allreduce(d_array, d_group, op="max")
    for i, expected in enumerate([2, 2, 4, 4]):
        check(d_group.debug_get_from_remote(i), np.full(4, expected))
    d_from_leader = sess.empty((4,), "float32")
    sess.broadcast_from_worker0(d_array, d_from_leader)
    for i, expected in enumerate([1, 1, 3, 3]):
        check(d_from_leader.debug_get_from_remote(i), np.full(4, expected))
    d_received = sess.call_packed(
        sess.get_global_func("conformance.hand_to_next_group"), d_array
    )
    check(d_received.debug_get_from_remote(3), np.full(4, 2))


sess = make_session()
num_workers = sess.num_workers
assert num_workers == 4
sess.import_python_module("disco_conformance_functions")
use_functions(sess)
use_copies(sess)
use_collectives(sess)
use_groups(sess)
sess.shutdown()
print("done")
"""


VALUES = """
import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import disco as di


def check(got, expected):
    np.testing.assert_array_equal(got, expected)


sess = {expression}
sess.import_python_module("disco_conformance_functions")
echo = sess.get_global_func("conformance.echo")
kind = sess.get_global_func("conformance.kind")
host = np.arange(40_000 * 2, dtype="float32").reshape(2, -1)

# TVM's tensors go to worker 0 and come back into TVM's tensors.
for array in (host[:, :3], host):
    d_array = sess.empty(array.shape, "float32", device=tvm.cpu(0), worker0_only=True)
    sess.copy_to_worker_0(tvm.runtime.tensor(array), d_array)
    back = tvm.runtime.empty(array.shape, "float32", device=tvm.cpu())
    sess.copy_from_worker_0(back, d_array)
    sess.sync_worker_0()
    check(back.numpy(), array)
    # Everywhere else that takes a host array.
    less = tvm.runtime.tensor(-array)
    d_array.debug_copy_from(1, less)
    for got in (d_array, sess.broadcast(less), echo(less)):
        result = got.debug_get_from_remote(1)
        check(result.numpy(), -array)
        assert result.device == tvm.cpu(0)
    check(sess.scatter(less).debug_get_from_remote(1).numpy(), -array[1])

# Results are read, copied and given back as TVM's are.
result = echo(d_array).debug_get_from_remote(0)
target = tvm.runtime.empty(result.shape, "float32")
assert result.copyto(target) is target
check(target.numpy(), host)
result.copyfrom(np.zeros(result.shape))
check(echo(result).numpy(1), np.zeros(result.shape))
check(echo([result, 1]).debug_get_from_remote(1)[0].numpy(), np.zeros(result.shape))

# Shapes, dtypes, devices and texts.
shape = echo(tvm_ffi.Shape([1, 2])).debug_get_from_remote(1)
assert isinstance(shape, tvm_ffi.Shape) and list(shape) == [1, 2]
assert kind(tvm_ffi.Shape([1, 2])).debug_get_from_remote(0) == "Shape"
assert kind(tvm.cuda(3)).debug_get_from_remote(1) == "Device"
assert echo(tvm.cuda(3)).debug_get_from_remote(1) == di.cuda(3)
assert echo(tvm.DataType("float16")).debug_get_from_remote(0) == np.dtype("float16")
assert kind(tvm_ffi.core.String("a text")).debug_get_from_remote(1) == "str"
d_shaped = sess.empty(tvm_ffi.Shape([3]), tvm.DataType("int8"))
assert d_shaped.debug_get_from_remote(1).shape == (3,)

sess.shutdown()
print("done")
"""


@pytest.mark.skipif(find_spec("tvm") is None, reason="TVM is not installed")
def test_a_program_with_tvms_own_values_runs_with_another_import(program):
    """Its tensors, shapes, dtypes, devices and texts; what is fetched answers as they do."""
    run(VALUES, program(2))


@pytest.mark.layouts((4, 2))
def test_a_program_of_tvms_runs_with_another_import(program, own_words):
    """Functions, copies, collectives, groups, debug access, shutdown; it ends cleanly."""
    said = run(PROGRAM, program(4, 2), "-W", "error")
    assert own_words(said) == ""


def run(program, expression, *options):
    """Runs a program with the session of an expression, in a process of its own; its errors."""
    text = program.replace("{expression}", expression)
    assert text.count(TVM_IMPORT) == 1
    path = os.pathsep.join((str(WORKER_MODULES), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *options, "-c", text.replace(TVM_IMPORT, OUR_IMPORT)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done.stderr
