"""Calls in a thread of their own, which nothing interrupts."""

from __future__ import annotations

import _thread
import subprocess
import sys

import pytest

from disco_client.threads import call_undisturbed


def test_a_call_is_made_though_its_thread_ends_before_its_first_line(monkeypatch):
    """What is raised asynchronously in the caller may end the thread that it starts."""
    start, lost, made = _thread.start_new_thread, [], []

    def lose_first(function, arguments):
        if lost:
            return start(function, arguments)
        lost.append(1)
        del function
        return start(lambda: None, ())

    monkeypatch.setattr(_thread, "start_new_thread", lose_first)
    call_undisturbed(lambda: made.append(1))
    assert (lost, made) == ([1], [1])


def test_what_a_call_raises_is_raised_where_it_is_waited_for():
    """The caller gets it, and the call was made once."""
    made = []

    def call():
        made.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call_undisturbed(call)
    assert made == [1]


@pytest.mark.parametrize("gil", [True, False])
def test_a_python_without_the_global_interpreter_lock_is_warned_of(gil):
    """By a warning that names the package and what to do, where the package is imported."""
    program = f"import sys; sys._is_gil_enabled = lambda: {gil}; import disco_client"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = "RuntimeWarning: disco_client relies on the global interpreter lock"
    assert (told in done.stderr, "PYTHON_GIL=1" in done.stderr) == (not gil, not gil)
