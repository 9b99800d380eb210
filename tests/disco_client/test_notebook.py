"""What notebooks show; examples/test_tour runs one."""

from __future__ import annotations

import sys
import types

import pytest

import disco_client as di
from disco_client.notebook import StatusLine, facts_table, in_notebook, progress


@pytest.fixture
def kernel(monkeypatch):
    """This process looks like a notebook's kernel."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_all_text_of_a_table_is_escaped():
    """Names of sessions and nodes are anybody's."""
    text = facts_table("<b>", {"<script>": "a & b"})
    assert "<b>" not in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a &amp; b" in text


def test_a_session_and_its_references_are_small_tables():
    """Without a script or a colour, and without asking anybody."""
    with di.ThreadedSession(3) as session:
        ref = session.empty((2,), "float32")
        issued = session.statistics()["issued"]
        shown = session._repr_html_()
        assert f"Session {session.name}" in shown
        assert ">open<" in shown
        assert "workers 0-2 on cpu" in shown
        assert f"{issued} issued" in shown
        assert f"{ref.reg_id} on each of 3 workers" in ref._repr_html_()
        assert session.statistics()["issued"] == issued
    assert ">closed<" in session._repr_html_()
    for text in (shown, ref._repr_html_()):
        assert "<script" not in text
        assert "color" not in text


def test_a_program_knows_that_it_is_in_a_notebook(kernel, monkeypatch):
    """IPython in a terminal is none."""
    assert in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


def test_a_bar_is_shown_where_somebody_looks(capsys):
    """Not where standard error is a file, unless it is asked for; an upload never there."""
    for shown, late, seen in ((None, False, False), (True, False, True), (None, True, False)):
        with progress("weights", 8, shown, late=late) as bar:
            bar.update(8)
        assert ("weights" in capsys.readouterr().err) == seen


@pytest.mark.usefixtures("kernel")
def test_a_notebook_shows_bars_and_waits_in_one_place(capsys):
    """A wait is one line that changes, not a line for each change."""
    with progress("weights", 8) as bar:
        bar.update(8)
    line = StatusLine()
    line.say("waiting for 2 slots: 0 of 4 are free")
    line.say("waiting for 2 slots: 1 of 4 are free")
    line.close()
    said = capsys.readouterr().err
    assert "weights: 100%" in said
    assert "1 of 4 are free" in said
    assert "\n" not in said.partition("waiting")[2].replace("\r", "").strip("\n")
    assert "disco:" not in said


def test_elsewhere_each_change_of_a_wait_is_a_line(capsys):
    """On standard error, where a person or a log file has it."""
    line = StatusLine()
    line.say("waiting for 2 slots")
    line.close()
    assert capsys.readouterr().err == "disco: waiting for 2 slots\n"
