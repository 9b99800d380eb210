"""The error tree, and how errors read."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import pickle
import signal
from pathlib import Path

import pytest

from disco_client import errors
from disco_client.errors import IssuedAt, RemoteException, RemoteFailure, WorkerLost, describe_exit

FAILURE = RemoteFailure(
    worker=2,
    seq=41,
    message="no such key",
    node="node-1",
    function="tests.f",
    exception="KeyError",
    traceback='Traceback (most recent call last):\n  File "f.py", line 3, in f\nKeyError: 5\n',
    issued_at=IssuedAt("program.py", 12, "main"),
)


def test_the_tree_is_as_drawn():
    """The picture in docs/errors.md names every class, under its base, with what it is."""
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    tree = page.partition("## The tree")[2].split("```")[1]
    drawn, path = {}, []
    for line in tree.strip().splitlines():
        text = line.lstrip(" │├└─")
        name, _, said = text.partition(" ")
        depth = (len(line) - len(text)) // 4
        assert said.strip() or not depth, name
        path = [*path[:depth], name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.DiscoError)
    }
    assert drawn == {name: kind.__bases__[0].__name__ for name, kind in classes.items()}
    assert set(classes) <= set(errors.__all__)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        ("ConfigError", "ValueError"),
        ("DtypeError", "TypeError"),
        ("DtypeError", "ValueError"),
        ("OutOfBounds", "IndexError"),
        ("ConnectionFailed", "ConnectionError"),
        ("EncodingError", "TypeError"),
        ("NoSlots", "TimeoutError"),
        ("ForeignReference", "ValueError"),
        ("ControllerLost", "ConnectionError"),
        ("FunctionNotFound", "LookupError"),
        ("NotAllowed", "PermissionError"),
        ("BadArgument", "ValueError"),
        ("CollectiveMismatch", "ValueError"),
        ("WeightsMismatch", "ValueError"),
        ("BadFile", "OSError"),
    ],
)
def test_errors_are_also_what_python_would_raise(error, builtin):
    """Whoever catches the built-in error catches ours."""
    assert issubclass(getattr(errors, error), getattr(builtins, builtin))


def test_a_remote_error_reads_from_cause_to_traceback():
    """What, where, issued by which line, and the traceback of the worker."""
    error = RemoteException([FAILURE])
    assert str(error) == (
        "KeyError: no such key\n"
        "  on worker 2 (node-1), command #41 in tests.f\n"
        '  issued at File "program.py", line 12, in main\n'
        "traceback on worker 2:\n"
        "  Traceback (most recent call last):\n"
        '    File "f.py", line 3, in f\n'
        "  KeyError: 5"
    )
    assert (error.worker, error.node, error.seq, error.function) == (2, "node-1", 41, "tests.f")
    assert (error.exception, error.issued_at) == ("KeyError", FAILURE.issued_at)
    assert error.remote_traceback == FAILURE.traceback


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"program": 7, "step": 3, "program_name": "p"}, "#41, step 3 of program 'p' in tests.f"),
        ({"program": 7, "step": 3}, "#41, step 3 of program of command #7 in tests.f"),
        ({"program": 7, "program_name": "p"}, "#41, program 'p' in tests.f"),
    ],
    ids=["named", "forgotten", "no step"],
)
def test_an_error_in_a_program_names_the_step(fields, text):
    """With the line that captured it, where that is known."""
    captured = IssuedAt("program.py", 5, "main")
    failure = dataclasses.replace(FAILURE, **fields, captured_at=captured)
    error = RemoteException([failure])
    assert text in str(error)
    assert '\n  captured at File "program.py", line 5, in main\n  issued at File' in str(error)
    assert (error.step, error.captured_at) == (fields.get("step", 0), captured)


def test_several_workers_are_named_and_only_differences_repeated():
    """Those that say the same are listed; who says something else is quoted."""
    alike = RemoteFailure(worker=0, seq=41, message="no such key", exception="KeyError")
    other = RemoteFailure(worker=3, seq=41, message="too late", exception="OSError")
    text = str(RemoteException([FAILURE, alike, other]))
    assert "on workers 2 (node-1), 0 and 3, command #41" in text
    assert text.count("no such key") == 1
    assert "worker 3 says: OSError: too late" in text


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-signal.SIGKILL, "died of SIGKILL (signal 9, Killed)"),
        (-250, "died of signal 250"),
    ],
)
def test_an_exit_status_is_told_in_words(status, text):
    """A code, or a signal with its name."""
    assert describe_exit(status) == text


def test_a_lost_worker_is_described_by_fields():
    """So that a program can decide without reading the message."""
    lost = WorkerLost("gone", worker=1, node="n", exit_status=-9, output=["last words"])
    assert isinstance(lost, errors.SessionLost)
    assert (lost.worker, lost.node, lost.exit_status) == (1, "n", -9)
    assert lost.output == ("last words",)


@pytest.mark.parametrize(
    "error",
    [
        RemoteException([FAILURE]),
        WorkerLost("gone", worker=1, node="n", exit_status=-9, output=["x"]),
        errors.NodeLost("gone", node="n"),
        errors.NoSlots("full", total_slots=4, free_slots=1),
        errors.ControllerLost("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pass_between_the_programs_own_processes(error):
    """A program that runs sessions in a pool of processes gets them whole."""
    came = pickle.loads(pickle.dumps(error))
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert vars(came) == vars(error)
