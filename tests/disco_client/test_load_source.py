"""Files of a program that workers import under their names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from disco_client import connect, errors

HERE = "/proc/self/cwd"
"""Each process reads its own working folder under this path."""

SCALING = """\
import pathlib
import disco_server

with open({log!r}, "a") as log:
    log.write(f"{{__name__}} {{disco_server.current_worker().worker_id}}\\n")

@disco_server.register_func("tests.scaled")
def scale(x):
    return x * {factor} + disco_server.current_worker().worker_id

@disco_server.register_func("tests.scaling_fails")
def fail():
    raise ValueError("told to fail")
"""


@pytest.fixture
def write(tmp_path):
    """Writes a file of a program; returns its path."""

    def make(content, name="disco_scaling.py"):
        (tmp_path / name).write_text(content)
        return tmp_path / name

    return make


def test_a_file_is_imported_once_and_anew_when_it_has_changed(session, write, tmp_path):
    """Under its own name; the functions of the changed file replace those of before."""
    log = tmp_path / "log"
    for factor, imports in ((10, 4), (10, 4), (100, 8)):
        session.load_source(write(SCALING.format(log=str(log), factor=factor)))
        scaled = session.get_global_func("tests.scaled")(7)
        got = [scaled.debug_get_from_remote(worker) for worker in range(4)]
        assert got == [7 * factor + worker for worker in range(4)]
        lines = log.read_text().splitlines()
        assert sorted(lines) == sorted([f"disco_scaling {w}" for w in range(4)] * (imports // 4))


def test_a_module_of_the_program_is_brought_by_its_file(session, write, tmp_path, monkeypatch):
    """One that the client has imported; its name is the module's."""
    write(
        "import disco_server\n@disco_server.register_func('tests.module_name')\n"
        "def f():\n    return __name__\n",
        "disco_scaling_module.py",
    )
    monkeypatch.syspath_prepend(tmp_path)
    session.load_source(importlib.import_module("disco_scaling_module"))
    name = session.get_global_func("tests.module_name")()
    assert name.debug_get_from_remote(2) == "disco_scaling_module"


def test_tracebacks_show_the_file_of_the_program(session, write, tmp_path):
    """Its path at the client, with the line."""
    path = write(SCALING.format(log=str(tmp_path / "log"), factor=1))
    session.load_source(path)
    session.get_global_func("tests.scaling_fails")()
    with pytest.raises(errors.RemoteException) as raised:
        session.sync_all()
    assert f'File "{path}", line 13, in fail' in raised.value.remote_traceback
    assert 'raise ValueError("told to fail")' in raised.value.remote_traceback


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ("x = 1\ndef f(:\n", errors.RemoteException, r"bad_source\.py, line 2"),
        ("import no_such_sibling\n", errors.BadFile, "without what stands beside it"),
        ("from . import sibling\n", errors.BadFile, "without what stands beside it"),
        ("import sys\nsys.exit(3)\n", errors.BadFile, "is a program: .* exit status 3"),
        (
            "import disco_client\ndisco_client.connect(num_workers=1)\n",
            errors.BadArgument,
            "opens a session while a worker imports it.*__main__",
        ),
    ],
    ids=["syntax", "sibling", "relative", "exit", "no-guard"],
)
def test_what_cannot_be_imported_says_why(session, write, content, kind, text):
    """At the next wait; a function that is missing for it names the same cause."""
    session.load_source(write(content, "bad_source.py"))
    with pytest.raises(kind, match=text):
        session.sync_all()
    session.get_global_func("tests.never_registered")
    with pytest.raises(errors.FunctionNotFound, match=r"load_source\('bad_source'\) failed"):
        session.sync_all()


def test_a_file_may_import_one_that_was_brought_before(session, write):
    """By its name."""
    session.load_source(write("def twice(x):\n    return 2 * x\n", "disco_helper.py"))
    using = (
        "import disco_server\nfrom disco_helper import twice\n"
        "disco_server.register_func('tests.helped')(lambda x: twice(x) + 1)\n"
    )
    session.load_source(write(using, "disco_helped.py"))
    assert session.get_global_func("tests.helped")(20).debug_get_from_remote(3) == 41


def test_what_is_no_file_of_the_program_is_refused_at_once(session, tmp_path, write):
    """Before anything is sent."""
    for source, kind, text in (
        (5, TypeError, "expected the path of a Python file, or a module"),
        (sys, errors.ConfigError, "a module of one Python file"),
        (importlib, errors.ConfigError, "packages"),
        (tmp_path / "model.so", errors.ConfigError, r"ends in \.py"),
        (write("", "random.py"), errors.ConfigError, "a name of Python's own"),
        (write("", "__main__.py"), errors.ConfigError, "a name of Python's own"),
        (tmp_path / "nope.py", FileNotFoundError, "nope"),
    ):
        with pytest.raises(kind, match=text):
            session.load_source(source)
    session.load_source(write("", "numpy.py"))
    with pytest.raises(errors.BadFile, match="another module 'numpy' already"):
        session.sync_all()


@pytest.mark.skipif(not Path(HERE).exists(), reason=f"needs {HERE}")
def test_what_only_the_client_has_is_brought_where_uploads_are_allowed(
    daemons, tmp_path, monkeypatch
):
    """And refused with the setting elsewhere."""
    (tmp_path / "client").mkdir()
    monkeypatch.chdir(tmp_path / "client")
    content = "import disco_server\n@disco_server.register_func('tests.seven')\ndef f(): return {}"
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", 1, "--name", "open", "--allow-load", "uploads")
    with connect(controller.address, num_workers=1, logs=False) as session:
        for number in (7, 8):
            Path("disco_seven.py").write_text(content.format(number))
            session.load_source(f"{HERE}/disco_seven.py")
            assert session.get_global_func("tests.seven")().debug_get_from_remote(0) == number
    daemons.worker(controller.address, "--slots", 1, "--name", "closed")
    with connect(controller.address, num_workers=2, logs=False) as session:
        with pytest.raises(errors.NotAllowed, match="--allow-load uploads") as refused:
            session.load_source(f"{HERE}/disco_seven.py")
        assert refused.value.node == "closed"
        session.sync_all()


PROGRAM = """\
import sys
import disco_client
import disco_server

@disco_server.register_func("tests.own")
def own():
    return f"{__name__} {disco_server.current_worker().worker_id}"

if __name__ == "__main__":
    with disco_client.open_kind(2) as session:
        for source in (__file__, sys.modules["__main__"]):
            session.load_source(source)
            got = session.get_global_func("tests.own")()
            print([got.debug_get_from_remote(worker) for worker in range(2)])
"""


@pytest.mark.parametrize("kind", ["ThreadedSession", "ProcessSession"])
def test_a_program_brings_itself(write, kind):
    """Workers import it under the name of its file, in the program's own process too."""
    path = write(PROGRAM.replace("open_kind", kind), "disco_program.py")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.stdout == "['disco_program 0', 'disco_program 1']\n" * 2, done.stderr


FORGETFUL = """\
import disco_client
import disco_server
import disco_helping

@disco_server.register_func("tests.forgotten")
def forgotten():
    return 1

@disco_server.register_class("tests.Forgotten")
class Forgotten:
    pass

def attempt(call):
    try:
        with session.scope():
            call()
            session.sync_all()
    except disco_client.FunctionNotFound as error:
        print(str(error).splitlines()[0])

def capture():
    with session.capture() as program:
        program.output(session.get_global_func("tests.forgotten")())
    program().get()

if __name__ == "__main__":
    with disco_client.ProcessSession(1) as session:
        attempt(lambda: session.get_global_func("tests.forgotten"))
        attempt(lambda: session.create("tests.Forgotten"))
        attempt(lambda: session.get_global_func("tests.helping"))
        attempt(lambda: session.get_global_func("tests.registered_nowhere"))
        attempt(capture)
"""


def test_who_forgot_it_is_told_which_file_to_bring(write):
    """Of a function, a class and a step of a program: what registers it here, and the call."""
    write(
        "import disco_server\n@disco_server.register_func('tests.helping')\ndef f(): ...\n",
        "disco_helping.py",
    )
    program = write(FORGETFUL, "disco_forgetful.py")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    said = ran.stdout.splitlines()
    assert len(said) == 5, ran.stderr
    own = f"in {str(program)!r}; call session.load_source(__file__) first"
    helper = str(program.with_name("disco_helping.py"))
    for line, name, how in (
        (said[0], "tests.forgotten", own),
        (said[1], "tests.Forgotten", own),
        (said[2], "tests.helping", f"in {helper!r}; call session.load_source({helper!r}) first"),
        (said[4], "tests.forgotten", own),
    ):
        assert line == f"{name!r} is registered by this program, and not on this worker: {how}"
    assert "no function named 'tests.registered_nowhere' is registered" in said[3]


def test_what_is_registered_in_no_file_is_to_be_put_into_one():
    """As in a notebook, or behind ``python -c``."""
    program = FORGETFUL.replace("import disco_helping\n", "")
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    said = "in no file; put it into one, and call session.load_source(path) first"
    assert ran.stdout.splitlines()[0].endswith(said), ran.stderr
