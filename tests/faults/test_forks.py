"""A program that forks beside its session, of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_tools.forking import KINDS

SUPPORT = str(Path(__file__).parents[1] / "support")
OVER_GRPC = ("connect", "replay", "socket")
_PROGRAM_S = 200
"""More than any child of a program lives."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here"),
    pytest.mark.timeout(_PROGRAM_S + 40),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the session."""
    return request.param


@pytest.fixture
def program(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[str], Any]]:
    """Runs a program of ``fault_tools.forking`` to its end; returns what it found."""
    started: list[subprocess.Popen[str]] = []

    def run(what: str) -> Any:
        cluster = kind in ("connect", "replay")
        address = request.getfixturevalue("shared_node").address if cluster else "none"
        path = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "fault_tools.forking", kind, address, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
        )
        started.append(process)
        out, err = process.communicate(timeout=_PROGRAM_S)
        assert process.returncode == 0, err
        assert "fork() handlers" not in err  # gRPC's, which can end a child
        return json.loads(out)

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_every_use_in_a_forked_child_is_refused_at_once(program, kind):
    """Row 30: of the session and its references, with advice; the parent's data stay right."""
    found = program("refused")
    told, again = found["told"]
    why = told.pop("why")
    assert "belongs to the process that forked this one" in why
    assert "'spawn'" in why
    assert ("open another one here" in why) is (kind not in OVER_GRPC)
    assert told.pop("pickle") == "EncodingError"
    assert set(told.values()) == {"SessionClosed"}, told
    assert again == [0, "SessionClosed"]
    assert (found["status"], found["sound"]) == (0, True)


def test_children_end_at_once_in_every_way(program):
    """Row 30: by return, exit, error, or in a ``with`` block; the parent's session goes on."""
    found = program("exits")
    wanted = {"block": 0, "lambda": 0, "traced": 0, "captured": 0, "_exit": 7, "exit": 7}
    assert found == {**wanted, "error": 1, "end": 0, "untouched": True, "sound": True}


def test_forks_beside_threads_that_use_the_session(program):
    """Row 30: whatever uploads, syncs and captures other threads were at, both sides are sound."""
    found = program("busy")
    assert not found["wrong"]
    assert found["children"] == [[0, ["SessionClosed"] * 3]] * 5
    assert found["sound"]


def test_processes_of_multiprocessing(program):
    """Row 30: one of fork is refused, those of spawn and forkserver open sessions of their own."""
    found = program("methods")
    assert found["fork"] == [0, "SessionClosed"]
    for method in ("spawn", "forkserver"):
        assert found[method] == [0, True]
        assert found[f"{method} given"] == "EncodingError"
    assert found["sound"]


def test_sessions_that_a_forked_child_opens(program, kind):
    """Row 30: any before its parent used gRPC, afterwards those without it; others are refused."""
    found = program("own")
    assert found["before"] == [0, True]
    assert found["after"]["process"] == found["after"]["threaded"] == [0, True]
    if kind in OVER_GRPC:
        status, said = found["after"][kind]
        assert status == 0
        assert said.startswith("ConfigError: this process was forked from one that has used gRPC")
        assert "'spawn'" in said
    assert found["sound"]


def test_a_child_that_outlives_its_parents_session(program):
    """Row 30: it holds neither slots nor the port of what its parent opens next."""
    assert program("outlived") == {"status": 0, "sound": True}


def test_a_child_that_collects_its_parents_garbage(program):
    """Row 30: what earlier sessions left there waits for no thread that is missing here."""
    assert program("garbage") == {"status": 0, "sound": True}
