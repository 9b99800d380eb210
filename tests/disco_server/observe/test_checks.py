"""Checks in a child process: what it tells, and what is found where it cannot."""

from __future__ import annotations

import os

import pytest

from disco_server.observe.checks import CheckResult, State, ask, first_line

PROGRAM = """
import os, signal, sys, time
from disco_server.observe.checks import CheckResult, State, tell

def fine():
    os.write(1, b'{"name": "third", "state": "ok"}\\n')
    print("chatter")
    return CheckResult("first", State.OK, "all is well", facts={"n": 1})

def second():
    %s

tell([("first", fine), ("second", second)])
"""
CHECKS = {"first": "mend the first", "second": "mend the second", "third": "mend the third"}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Asks a child whose second check does as a test says; there is no third."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def asked_of(second, timeout=50.0):
        (tmp_path / "checks_of_a_test.py").write_text(PROGRAM % second)
        return ask("checks_of_a_test", checks=CHECKS, timeout=timeout)

    return asked_of


def test_findings_come_back_as_they_were_made(asked):
    """What a library prints meanwhile is not taken for an answer."""
    first, second, _ = asked("return CheckResult('second', State.MISSING, 'not there', 'get it')")
    assert first == CheckResult("first", State.OK, "all is well", facts={"n": 1})
    assert second == CheckResult("second", State.MISSING, "not there", "get it")


def test_an_exception_of_a_check_is_its_finding(asked):
    """The next checks go on, and an exit counts as an exception."""
    for statement, said in (
        ("raise OSError('no\\nroom')", "OSError: no"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise ValueError", "ValueError"),
    ):
        _, second, _ = asked(statement)
        assert second == CheckResult("second", State.BROKEN, said)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended the process with SIGSEGV"),
        ("os.write(2, b'why\\n\\n'); os._exit(7)", "ended the process with status 7 (why)"),
        (
            "os.write(2, b'why\\n'); os.write(1, b'noise\\n'); os._exit(7)",
            "ended the process with status 7 (why)",
        ),
        ("os.write(1, b'as it is\\n'); os._exit(7)", "ended the process with status 7 (as it is)"),
        ("os.kill(os.getpid(), signal.SIGRTMIN)", "ended the process with SIGRTMIN"),
    ],
)
def test_a_check_that_ends_its_process_is_named(asked, statement, said):
    """It is broken, with its hint; what came before stands, what comes after was not looked at.

    The reason is the last line of its standard error, whenever its standard output comes,
    which counts where there is nothing else.
    """
    first, second, third = asked(statement)
    assert first.state is State.OK
    assert (second.state, second.hint) == (State.BROKEN, "mend the second")
    assert second.detail.startswith(f"looking at second {said}")
    assert third == CheckResult("third", State.NOT_APPLICABLE, "not looked at, because of second")


def test_a_check_that_hangs_is_ended_with_what_it_started(asked, tmp_path, all_end):
    """After the timeout neither the child nor its own children are left.

    On a busy machine a child may need longer to get there, and is given more then.
    """
    pid = tmp_path / "pid"
    program = (
        f"import subprocess; child = subprocess.Popen(['sleep', '600']);"
        f" open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    for timeout in (3, 12, 36):
        _, second, _ = asked(program, timeout=timeout)
        if pid.exists():
            break
    words = f"looking at second did not come back within {timeout} s"
    assert second.detail.startswith(words)
    all_end([int(pid.read_text())])


def test_a_program_that_does_not_start_is_the_first_check_s_fault():
    """Nothing was told, so nothing is known, and the last line of its complaint is shown."""
    first, *others = ask("no_such_module_of_disco", checks=CHECKS, timeout=50.0)
    assert first.state is State.BROKEN
    assert first.detail.startswith("getting ready to look at first ended the process with status 1")
    assert "no_such_module_of_disco" in first.detail
    assert {each.state for each in others} == {State.NOT_APPLICABLE}


def test_the_environment_of_the_child_can_be_another(tmp_path):
    """It is given whole, and this process's own stays as it is."""
    text = "import os\nfrom disco_server.observe.checks import CheckResult, State, tell\n"
    text += "tell([('first', lambda: CheckResult('first', State.OK, os.environ['OF_A_TEST']))])\n"
    (tmp_path / "environment_of_a_test.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "OF_A_TEST": "seen"}
    (found,) = ask("environment_of_a_test", checks={"first": ""}, timeout=50.0, environ=environ)
    assert found.detail == "seen"


def test_the_first_line_of_an_exception_says_enough():
    """Its kind always, its text where it has one."""
    assert first_line(OSError("a\nb")) == "OSError: a"
    assert first_line(KeyError()) == "KeyError"
