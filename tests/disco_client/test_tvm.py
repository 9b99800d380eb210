"""Programs that import TVM's Disco run on Disco, and nothing in them is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from own_ports import own_port

pytestmark = pytest.mark.skipif(find_spec("tvm") is None, reason="TVM is not installed")

RUN = ("-m", "disco_client.tvm")

PROGRAM = """
import sys

import numpy as np
import tvm
import tvm_ffi
from tvm.exec import disco_worker
from tvm.runtime import disco as di
from tvm.runtime.disco.session import REDUCE_OPS, Session

kind = getattr(di, sys.argv[1])
ccl = tvm.get_global_func("runtime.disco.compiled_ccl")()
sess = kind(num_workers=4, num_groups=2)
assert isinstance(sess, kind) and isinstance(sess, Session)
assert REDUCE_OPS["max"] == 3
sess.init_ccl(ccl, 0, 1, 2, 3)


def on_all(ref):
    return [ref.debug_get_from_remote(i) for i in range(4)]


# The functions of the default entrypoint are on every worker.
assert on_all(sess.get_global_func("tests.disco.add_one")(1)) == [2] * 4
for value in on_all(sess.get_global_func("tests.disco.shape_tuple")(tvm_ffi.Shape([-1, 2]))):
    assert isinstance(value, tvm_ffi.Shape) and list(value) == [-1, 2, 4, 5]
array = np.arange(6, dtype="float32").reshape(2, 3)
d_array = sess.empty((2, 3), "float32", device=tvm.cpu(0))
for i in range(4):
    d_array.debug_copy_from(i, array + i)
more = sess.get_global_func("tests.disco.add_one_tensor")(d_array)
np.testing.assert_equal(more.debug_get_from_remote(3).numpy(), array + 4)

# What TVM's tests of its collectives call, by the name of the library.
of_ccl = f"runtime.disco.{ccl}."
sess.get_global_func(of_ccl + "test_worker2_sends_to_worker0")(d_array)
np.testing.assert_equal(d_array.debug_get_from_remote(0).numpy(), array + 2)
sess.get_global_func(of_ccl + "test_send_to_next_group_recv_from_prev_group")(d_array)
np.testing.assert_equal(d_array.debug_get_from_remote(3).numpy(), array + 1)
sess.get_global_func(of_ccl + "sync_worker")()
compiled = on_all(sess.get_global_func("runtime.disco.compiled_ccl")())
# In this process too, whose registry workers that are threads share.
assert tvm.get_global_func("runtime.disco.compiled_ccl")() == ccl
sess.shutdown()
print(ccl, *compiled)
"""

SOCKETS = """
import subprocess
import sys

from tvm.runtime import disco as di

port = sys.argv[1]
node = [sys.executable, "-m", "tvm.exec.disco_remote_socket_session", "localhost", port, "1"]
with subprocess.Popen(node, stdout=subprocess.DEVNULL) as remote:
    sess = di.SocketSession(2, 1, 1, "localhost", int(port))
    added = sess.get_global_func("tests.disco.add_one")(1)
    print([added.debug_get_from_remote(i) for i in range(2)])
    sess.shutdown()
    print(remote.wait(30))
"""

FORGOTTEN = """
from tvm.runtime import disco as di


def ask():
    sess = di.ProcessSession(4, entrypoint="json")
    func = sess.get_global_func("runtime.disco.world_size")
    sess._sync_all()
    print(func().debug_get_from_remote(3))


for _ in range(3):
    ask()
"""

NCCL = """
import numpy as np
from tvm.runtime import disco as di

sess = di.ThreadedSession(2)
sess.init_ccl("nccl", 0, 1)
array = sess.broadcast(np.ones(2))
sess.allreduce(array, array)
print(array.debug_get_from_remote(1))
sess.shutdown()
"""

SHORT = """
import subprocess
import sys

from tvm.runtime import disco as di

with di.ThreadedSession(2) as sess:
    print(sess.num_workers, *sys.argv[1:], sys.path[0])
child = "from tvm.runtime import disco as di; print(di.Session.__module__)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def run(*arguments, folder=None, **environ):
    """What a Python program prints, which must end well."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        cwd=folder,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def written(tmp_path):
    """Writes a program, and returns its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("kind", "used"), [("ThreadedSession", "local"), ("ProcessSession", "mpi")]
)
def test_a_program_runs_on_threads_and_on_processes(written, kind, used):
    """With the functions of TVM's worker, its own values, and what its tests of nccl call."""
    got = run(*RUN, written(PROGRAM), kind, DISCO_ADDRESS="")
    # Threads are joined by their own library, of whatever name the program says.
    assert got in (f"mpi{f' {used}' * 4}\n", f"mpi{' mpi' * 4}\n")


@pytest.mark.timeout(120)
def test_processes_are_on_a_cluster_whose_address_is_set(written, cluster):
    """They are of the program's class, and have imported what they would have run."""
    assert run(*RUN, written(PROGRAM), "ProcessSession", DISCO_ADDRESS=cluster.address) == (
        "mpi mpi mpi mpi mpi\n"
    )


@pytest.mark.timeout(120)
def test_sessions_that_a_program_has_forgotten_give_their_slots_back(written, cluster):
    """Each of the three needs all slots; none is shut down."""
    assert run(*RUN, written(FORGOTTEN), DISCO_ADDRESS=cluster.address) == "4\n4\n4\n"


@pytest.mark.timeout(120)
def test_a_node_that_the_program_starts_joins_its_socket_session(written):
    """By TVM's own module, which may then import and load what the program asks for."""
    assert run(*RUN, written(SOCKETS), own_port(), DISCO_ADDRESS="") == "[2, 2]\n0\n"


def test_nccl_is_what_there_is_where_there_are_no_gpus(written):
    """A program that names it need not be changed."""
    environ = {"DISCO_ADDRESS": "", "CUDA_VISIBLE_DEVICES": ""}
    assert run(*RUN, written(NCCL), **environ) == "[2. 2.]\n"


@pytest.mark.parametrize("how", ["program", "module", "import", "import after TVM"])
def test_every_way_to_start_a_program_gives_it_disco(written, how):
    """With its arguments and its folder, and the programs that it starts have Disco too."""
    before = {"import": "import disco_client.tvm", "import after TVM": "import tvm"}.get(how, "")
    after = "import disco_client.tvm" if how == "import after TVM" else ""
    program = written(f"{before}\n{after}\n{SHORT}")
    where = program.parent
    if how == "module":
        got = run(*RUN, "-m", "program", "a", "-b", folder=where, PYTHONPATH=path_with(where))
    else:
        got = run(*(RUN if how == "program" else ()), program, "a", "-b")
    assert got.splitlines()[1] == "disco_client.session"
    words = got.splitlines()[0].split()
    assert words[:3] == ["2", "a", "-b"]
    assert Path(words[3]) == where


def path_with(folder):
    """The path of this process for modules, and a folder before it."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))


def test_an_environment_keeps_its_own_sitecustomize(written):
    """Programs that a program starts run it too."""
    written("import os; os.environ['OWN'] = 'seen'", "sitecustomize.py")
    child = "import os, sys; print(os.environ['OWN'], 'sitecustomize' in sys.modules)"
    program = written(
        "import subprocess, sys, os\n"
        "del os.environ['OWN']\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    assert run(*RUN, program, PYTHONPATH=path_with(program.parent)) == "seen True\n"


def test_it_is_a_plugin_of_pytest_also_in_several_processes(written):
    """Tests find Disco when they are collected."""
    tests = written(
        "from tvm.runtime import disco as di\n"
        "def test_one(): assert di.ThreadedSession(1).num_workers == 1\n"
        "def test_two(): assert di.ThreadedSession(2).num_workers == 2\n",
        "test_disco.py",
    )
    options = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "disco_client.tvm", "-n", "2"]
    assert "2 passed" in run("-m", "pytest", "-q", *options, tests, folder=tests.parent)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected a program, or -m and a module, got nothing; usage: python -m"),
        (("-m",), "expected a program, or -m and a module, got -m; usage: python -m"),
        (("nowhere.py",), "expected the file of a program, and there is no 'nowhere.py'"),
        (("-m", "no.such"), "expected a module that can be run, and there is none named 'no.such'"),
    ],
)
def test_what_cannot_be_run_is_said(arguments, said):
    """Before anything is started; the exit status is that of a wrong command line."""
    done = subprocess.run(
        [sys.executable, *RUN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_tvm_the_extra_is_named(written):
    """As an ExtraMissing, which is also an ImportError."""
    program = (
        "import sys\n"
        "import importlib.machinery as machinery\n"
        "find = machinery.PathFinder.find_spec\n"
        "machinery.PathFinder.find_spec = lambda name, *more: "
        "None if name == 'tvm' else find(name, *more)\n"
        "import disco_client, disco_client.tvm\n"
        "try:\n"
        "    disco_client.tvm.prepare([sys.argv[0]])\n"
        "except disco_client.ExtraMissing as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'disco-runtime[server,tvm]'" in run(written(program))
