"""Cells of a notebook that every worker executes: ``%%disco``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import partial

import pytest

import disco_client
from disco_client import connect, errors
from disco_client.notebook_magic import execute_cell
from disco_client.session import open_sessions

KINDS = {
    "threads": disco_client.ThreadedSession,
    "processes": disco_client.ProcessSession,
}


@pytest.fixture(params=["cluster", *KINDS])
def open_own(request, open_session):
    """Opens a session of each kind, of two workers."""
    with contextlib.ExitStack() as opened:
        if request.param == "cluster":
            yield partial(open_session, 2)
        else:
            yield lambda: opened.enter_context(KINDS[request.param](2))


@pytest.fixture
def own_session(open_own):
    """Such a session."""
    return open_own()


def values(session, cell, name="Cell In[1]"):
    """What its last expression is on each worker."""
    found = execute_cell(session, cell, name)
    return None if found is None else found.get_all()


NAMES = """\
import disco_server
me = disco_server.current_worker().worker_id
def later():
    return me, step
"""


def test_each_worker_keeps_what_cells_define(own_session):
    """Names of its own, also where workers are threads; functions see what comes later."""
    assert values(own_session, NAMES) is None
    assert values(own_session, "step = me * 10\nlater()") == [(0, 0), (1, 10)]
    assert values(own_session, "step += 1\nstep") == [1, 11]
    assert values(own_session, "step += 1\nstep") == [2, 12]


def test_the_result_is_the_value_of_the_last_expression(own_session):
    """There is none where that is None on all workers, or the last statement is no expression."""
    assert values(own_session, "1\n2") == [2, 2]
    assert values(own_session, "'text'") == ["text", "text"]
    assert values(own_session, "x = 1") is None
    assert values(own_session, "") is None
    assert values(own_session, "# nothing") is None
    assert values(own_session, "print()") is None
    assert values(own_session, f"{NAMES}\nme or None") == [None, 1]


def test_a_result_is_a_reference_for_other_calls(own_session):
    """Of an array, and of a function that a cell defines."""
    array = execute_cell(own_session, "import numpy as np\nnp.ones(2)", "Cell In[1]")
    assert own_session.allreduce(array).numpy(1).tolist() == [2, 2]
    twice = execute_cell(own_session, "def twice(x):\n    return x + x\ntwice", "Cell In[2]")
    assert own_session.call_packed(twice, array).numpy(1).tolist() == [2, 2]


def test_sessions_do_not_share_names():
    """Not even those whose workers are threads of one program."""
    with disco_client.ThreadedSession(1) as one, disco_client.ThreadedSession(1) as other:
        values(one, "x = 1")
        assert values(other, "'x' in globals()") == [False]


PRINTS = """\
import sys
for i in range(20):
    print("line", i)
print("end", file=sys.stderr)
"""


def test_what_a_cell_prints_is_there_before_its_result(printed, open_own):
    """All lines, with the rank of each; a notebook shows them below the cell that runs."""
    session = open_own()  # here, as pytest gives each part of a test another standard output
    execute_cell(session, PRINTS, "Cell In[1]")
    said = printed()
    for place in session.workers:
        assert said.count(f"[worker {place.worker} {place.node}] line") == 20
        assert f"[worker {place.worker} {place.node}] end" in said


FAILS = """\
before = 1
class Oops(ValueError):
    pass
def fail():
    raise Oops("told to fail")
print("about to fail")
fail()
"""


def test_an_exception_has_the_lines_of_the_cell(printed, open_own):
    """With the magic's as line 1, and no frame of ours; what was printed before is there."""
    session = open_own()
    with pytest.raises(errors.RemoteException, match="told to fail") as caught:
        execute_cell(session, FAILS, "Cell In[3]")
    trace = str(caught.value)
    assert 'File "Cell In[3]", line 8, in <module>' in trace
    assert 'File "Cell In[3]", line 6, in fail\n      raise Oops("told to fail")' in trace
    assert "disco_server" not in trace
    assert printed().count("about to fail") == 2
    assert values(session, "before") == [1, 1]


def test_what_is_no_python_reaches_no_worker():
    """The error names the line of the cell."""
    with disco_client.ThreadedSession(1) as session:
        issued = session.statistics()["issued"]
        with pytest.raises(SyntaxError) as caught:
            execute_cell(session, "x = 1\ny = = 2", "Cell In[1]")
        assert (caught.value.filename, caught.value.lineno) == ("Cell In[1]", 3)
        assert session.statistics()["issued"] == issued


def test_a_session_without_logs_waits_for_no_output(printed):
    """Nothing is shown."""
    with disco_client.ProcessSession(1, logs=False) as session:
        assert values(session, "print('unseen')\n5") == [5]
    assert "unseen" not in printed()


def test_a_worker_that_takes_no_files_takes_no_cells(daemons):
    """The error says what allows both."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", 1, "--name", "closed")
    with (
        connect(controller.address, num_workers=1, logs=False) as session,
        pytest.raises(errors.NotAllowed, match="--allow-load uploads"),
    ):
        execute_cell(session, "1", "Cell In[1]")


def test_another_worker_has_the_names_after_a_loss(open_session, lose, tmp_path):
    """The cells are executed again, also those before a checkpoint."""
    session = open_session(2, recover="replay")
    values(session, f"{NAMES}\nstep = 5")
    values(session, "step += 1")
    lose(session)
    assert values(session, "later()") == [(0, 6), (1, 6)]
    session.checkpoint(tmp_path / "checkpoint")
    lose(session)
    assert values(session, "step += 1\nlater()") == [(0, 7), (1, 7)]


def test_a_session_that_has_ended_is_not_open():
    """Others are known in the order in which they were opened."""
    before = open_sessions()
    with disco_client.ThreadedSession(1) as one, disco_client.ThreadedSession(1) as other:
        assert open_sessions() == [*before, one, other]
    assert open_sessions() == before


# In IPython ---------------------------------------------------------------------------

SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
for cell in {cells!r}:
    done = shell.run_cell(cell, store_history=True)
    error = done.error_in_exec
    print("RESULT", repr(done.result), type(error).__name__, str(error).replace(chr(10), "|"))
"""


@pytest.fixture
def run_cells(tmp_path, monkeypatch):
    """Executes cells in IPython; returns what is said of each result and error."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def run(*cells):
        program = [sys.executable, "-c", SHELL.format(cells=cells)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=55, check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return [line.removeprefix("RESULT ") for line in lines if line.startswith("RESULT ")]

    return run


def test_the_result_of_a_cell_is_the_shell_s_last_one(run_cells):
    """A semicolon hides it; the error of a cell names the cell, here and on the worker."""
    said = run_cells(
        "%load_ext disco_client",
        "import disco_client\nsession = disco_client.ThreadedSession(2)",
        "%%disco\n40 + 2",
        "_.get_all()",
        "%%disco\n1;",
        "%%disco session\n1 / 0",
        "session.shutdown()",
    )
    assert said[2].startswith("DRef(")
    assert said[3].startswith("[42, 42]")
    assert said[4].startswith("None NoneType")
    assert "RemoteException" in said[5]
    assert 'issued at File "<ipython-input-6-' in said[5]
    assert 'File "Cell In[6]", line 2, in <module>' in said[5]


def test_a_session_is_named_or_the_only_one(run_cells):
    """Otherwise the error says what there is, and what to write."""
    said = run_cells(
        "%load_ext disco_client",
        "%%disco\n1",
        "import disco_client\none = disco_client.ThreadedSession(1)",
        "%%disco other\n1",
        "other = disco_client.ThreadedSession(2)",
        "%%disco\n1",
        "%%disco disco_client\n1",
        "%%disco other\n1",
        "other.shutdown()",
        "%%disco\n1",
        "one.shutdown()",
    )
    assert "ConfigError %%disco needs an open session" in said[1]
    assert "got 'other', which is not defined; there is one" in said[3]
    assert "2 sessions are open; write the variable of one after %%disco (one, other)" in said[5]
    assert "which is <module 'disco_client'" in said[6]
    assert said[7].startswith("DRef(")
    assert said[9].startswith("DRef(")


# In a notebook ------------------------------------------------------------------------

CELLS = [
    "%load_ext disco_client\nimport disco_client\nsession = disco_client.ProcessSession(2)",
    "def add(x, y=1):\n    return x + y",
    "%%disco\nimport disco_server\nme = disco_server.current_worker().worker_id\nprint('on', me)",
    "%%disco\nme * 10",
    "print(session.function(add)(_).get_all())",
    "session.shutdown()",
]


def test_a_notebook_runs(tmp_path, monkeypatch):
    """What workers print is below its cell, and a cell's function takes the result of another."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    book = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=50, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(o.text for o in cell.outputs if "text" in o) for cell in book.cells]
    assert sorted(printed[2].splitlines()) == ["[worker 0 local] on 0", "[worker 1 local] on 1"]
    assert [each.output_type for each in book.cells[2].outputs] == ["stream"] * len(
        book.cells[2].outputs
    )
    assert "DRef(" in book.cells[3].outputs[0].data["text/plain"]
    assert printed[4] == "[1, 11]\n"
