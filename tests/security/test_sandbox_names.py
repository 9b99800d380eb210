"""Names of functions: what a session may reach on a real worker with the default settings."""

from __future__ import annotations

import re

import pytest

from disco_client import Opaque, connect, errors

CANARY = """
import pathlib
pathlib.Path(__file__).with_suffix(".sang").touch()

def sing():
    return "sang"
"""
TOOLS = """
import os
from os import system
from subprocess import Popen

def public():
    return "public"

class Reader(Popen):
    def __init__(self, fail=False):
        self.open, self.hooks, self.size = system, [system], 3

    def read(self):
        return "read"
"""


@pytest.fixture(scope="module")
def node(shared_daemons, tmp_path_factory):
    """A worker daemon that allows a module and a package, with canaries beside them."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "disco_tools.py").write_text(TOOLS)
    (folder / "disco_canary.py").write_text(CANARY)
    package = folder / "disco_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "canary.py").write_text(CANARY)
    controller = shared_daemons.controller()
    program = folder / "disco_program"
    program.mkdir()
    (program / "__init__.py").write_text("")
    (program / "__main__.py").write_text(CANARY + "raise SystemExit(0)\n")
    (program / "ending.py").write_text("raise SystemExit(0)\n")
    allowed = ("--allow-module", "disco_tools", "--allow-module", "disco_program")
    options = ("--slots", "1", *allowed)
    shared_daemons.worker(controller.address, *options, PYTHONPATH=str(folder))
    return controller.address, folder


@pytest.fixture(scope="module")
def session(node):
    """A session that every test uses, because none of them may harm it."""
    with connect(node[0], num_workers=1, logs=False) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("numpy.os.system", "--allow-module os"),
        ("numpy.sys.exit", "--allow-module sys"),
        ("disco_tools.os.system", "--allow-module os"),
        ("disco_tools.system", "--allow-module posix"),
        ("disco_tools.Popen", "--allow-module subprocess"),
        ("numpy.testing.runstring", "--allow-function numpy.testing.runstring"),
        ("numpy.testing._private.utils.os.system", "no setting allows"),
        ("numpy.ctypeslib.load_library", "--allow-function numpy.ctypeslib.load_library"),
        ("numpy.load", "--allow-function numpy.load"),
        ("numpy.fromfile", "--allow-function numpy.fromfile"),
        ("numpy.ndarray.tofile", "--allow-function numpy.ndarray.tofile"),
        ("numpy._core.multiarray.fromfile", "no setting allows"),
        ("numpy.__builtins__.exec", "no setting allows"),
        ("disco_tools.__dict__.get", "no setting allows"),
    ],
)
def test_a_name_that_leads_out_is_refused_with_the_setting(session, name, setting):
    """NotAllowed, which names what would allow it; the session goes on."""
    with pytest.raises(errors.NotAllowed, match=setting.replace(".", r"\.")):
        session.get_global_func(name).debug_get_from_remote(0)
    session.sync_all()


def test_what_is_allowed_is_reached(session):
    """A module's own functions, and what numpy computes."""
    assert session.get_global_func("disco_tools.public")().debug_get_from_remote(0) == "public"
    assert session.get_global_func("numpy.add.reduce")([1, 2]).debug_get_from_remote(0) == 3


@pytest.mark.parametrize(
    "name", ["disco_canary", "disco_package.canary", "disco_tools.disco_canary"]
)
def test_what_is_not_allowed_is_not_even_imported(session, node, name):
    """An import is code that runs; the canary writes a file when it is imported."""
    session.import_python_module(name)
    with pytest.raises((errors.NotAllowed, errors.FunctionNotFound)):
        session.sync_all()
    with pytest.raises((errors.NotAllowed, errors.FunctionNotFound)):
        session.get_global_func(f"{name}.sing").debug_get_from_remote(0)
    session.sync_all()
    assert not list(node[1].rglob("*.sang"))


@pytest.mark.parametrize(
    ("name", "error", "setting"),
    [
        ("disco_tools.Popen", errors.NotAllowed, "--allow-module subprocess"),
        ("disco_tools.os.popen", errors.NotAllowed, "--allow-module os"),
        ("disco_tools.Reader.__class__", errors.NotAllowed, "no setting allows"),
        ("numpy.random.RandomState", errors.NotAllowed, "--allow-module numpy"),
        ("numpy.memmap", errors.NotAllowed, "--allow-module numpy"),
        ("subprocess.Popen", errors.FunctionNotFound, "not on its allow-list"),
        ("disco_canary.Bird", errors.FunctionNotFound, "not on its allow-list"),
        ("disco_tools.public", errors.FunctionNotFound, "what has that name is"),
    ],
)
def test_a_class_that_is_not_open_has_no_objects(session, node, name, error, setting):
    """The error names what would allow it; the session goes on, and nothing is imported."""
    with pytest.raises(error, match=setting):
        session.create(name, "true").debug_get_from_remote(0)
    session.sync_all()
    assert not list(node[1].rglob("*.sang"))


def test_an_object_gives_only_what_its_own_class_defines(session):
    """Nothing that it inherits, nothing private, and no attribute that can be called."""
    reader = session.create("disco_tools.Reader")
    assert reader.read().debug_get_from_remote(0) == "read"
    assert reader.size.debug_get_from_remote(0) == 3
    assert type(reader["open"].debug_get_from_remote(0)) is Opaque
    with pytest.raises(errors.BadArgument, match=r"^at \[0\]: a value of type .* cannot leave its"):
        reader["hooks"].debug_get_from_remote(0)
    look_up = session.get_global_func("runtime.disco.get_attribute")
    for held, name in (
        (reader, "communicate"),
        (reader, "__init__"),
        (reader, "_execute_child"),
        (session.get_global_func("disco_tools.public"), "__globals__"),
        (session.get_global_func("numpy.add"), "reduce"),
        (session.empty((2,), "float64"), "tofile"),
        ([reader], "pop"),
    ):
        look_up(held, name)
        with pytest.raises(errors.NotAllowed):
            session.sync_all()
    for use in (lambda: reader["open"]("true"), lambda: reader.hooks[0]):
        use()
        with pytest.raises(errors.BadArgument):
            session.sync_all()
    assert reader.read().debug_get_from_remote(0) == "read"


def test_a_captured_program_reaches_no_more(session):
    """Its names are looked up by the same rules."""
    with session.capture() as program:
        program.output(session.get_global_func("numpy.save")("/tmp/disco-canary.npy", 1))
    with pytest.raises(errors.NotAllowed, match="--allow-function"):
        program().debug_get_from_remote(0)
    session.sync_all()


def test_a_name_has_a_longest(session):
    """A megabyte of name is refused in a line."""
    with pytest.raises(errors.BadArgument, match="at most 1024 characters, got 1000000"):
        session.get_global_func("x" * 1_000_000).debug_get_from_remote(0)
    session.sync_all()


@pytest.mark.parametrize(
    "name",
    [
        "numpy.linalg.lapack_lite.dgelsd",
        "numpy.linalg.lapack_lite.dgeqrf",
        "numpy.random.set_state",
        "numpy.random.RandomState.set_state",
        "numpy.random.mtrand.set_state",
        "numpy.matrixlib.defmatrix.N.fromfile",
        "numpy.ma.core.mu.fromfile",
        "numpy.ma.core.mu.frombuffer",
        "numpy.ma.extras.np.lib.stride_tricks.as_strided",
        "numpy.ndarray",
    ],
)
def test_what_writes_outside_of_arrays_is_refused(session, name):
    """Neither internal modules nor public aliases of private ones are reached by default."""
    with pytest.raises(errors.NotAllowed, match=f"--allow-function {re.escape(name)}"):
        session.get_global_func(name).debug_get_from_remote(0)
    session.sync_all()


def test_a_program_is_not_imported(session, node):
    """``__main__`` of a package ends its process, so it is refused and the rank lives on."""
    for name in ("numpy.f2py.__main__", "disco_program.__main__"):
        session.import_python_module(name)
        with pytest.raises(errors.NotAllowed, match=f"'{re.escape(name)}' is a program"):
            session.sync_all()
    session.import_python_module("disco_program.ending")
    with pytest.raises(errors.FunctionNotFound, match="its import ended with exit status 0"):
        session.sync_all()
    assert not list(node[1].rglob("*.sang"))
    assert session.get_global_func("numpy.add")(1, 2).debug_get_from_remote(0) == 3
