"""TVM's runtime, and the functions it may call back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from disco_client import Shape
from disco_server.modules.tvm import find_global, runtime, serve

# Loads TVM's runtime as a rank does, in a fresh process.
FRESH = """
import sys, time
sys.path_hooks  # nothing is loaded before
from disco_server.modules.tvm import find_global
assert "tvm_ffi" not in sys.modules
assert find_global("vm.builtin.make_tuple") is not None
assert "tvm" not in sys.modules
print("loaded")
"""

WITHOUT = """
import sys
sys.modules["tvm_ffi"] = None
from disco_server.modules import tvm
assert tvm.find_global("testing.echo") is None
try:
    tvm.runtime()
except OSError as error:
    print(error)
"""

# A program that compiles, and is a rank as well, has both in one process.
BESIDE_THE_COMPILER = """
import sys
if sys.argv[1] == "compiler first":
    import tvm
from disco_server.modules.tvm import find_global
from disco_server.modules.tvm import from_tvm
assert find_global("testing.echo")("x") == "x"
import tvm
import numpy as np
assert from_tvm(tvm.runtime.tensor(np.ones(3))).sum() == 3
assert tvm.get_global_func("testing.echo")(5) == 5
import disco_client
disco_client.Shape((1,))
from disco_client.wire.codec import EncodedBatch
assert EncodedBatch().SerializeToString() == b""
print("fine")
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_loads_without_the_compiler():
    """The package tvm is not imported, and nothing is loaded before it is needed."""
    assert run(FRESH) == "loaded\n"


def test_where_it_is_missing_the_extra_is_named():
    """Looking a function up just finds none."""
    assert "pip install 'disco-runtime[tvm]'" in run(WITHOUT)


@pytest.mark.parametrize("order", ["compiler first", "runtime first"])
def test_it_lives_beside_the_compiler(order):
    """In one process, whichever was first, and beside protobuf and numpy."""
    assert run(BESIDE_THE_COMPILER, order) == "fine\n"


def test_a_function_of_tvm_is_found_by_name():
    """None where there is none."""
    assert find_global("testing.echo")([1, "a"]) == [1, "a"]
    assert find_global("testing.no_such_function") is None


def test_functions_are_served_under_their_names():
    """TVM's code calls them with its values; each call looks the function up anew."""
    functions = {"tests.served": lambda shape, array: [shape, array * 2]}
    serve(functions)
    served = find_global("tests.served")
    shape, doubled = served(Shape((1, 2)), np.ones(3))
    assert shape == Shape((1, 2))
    assert doubled.tolist() == [2, 2, 2]
    functions["tests.served"] = lambda *_: "another"
    serve(functions)
    assert served() == "another"


def test_what_tvm_has_stays_its_own():
    """Except for the names under which its modules expect the collectives."""
    functions = {"testing.nop": lambda: "ours", "runtime.disco.tests_rank": lambda: Shape((3,))}
    before = find_global("testing.nop")
    assert before is not None
    serve(functions)
    assert find_global("testing.nop")() != "ours"
    runtime().register_global_func("runtime.disco.tests_late", lambda: "theirs")
    serve({"runtime.disco.tests_late": lambda: "ours"})
    assert find_global("runtime.disco.tests_late")() == "ours"
    assert find_global("runtime.disco.tests_rank")() == Shape((3,))
