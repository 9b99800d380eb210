"""What a program prints that an error ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

PROGRAM = """\
import sys
import traceback
import numpy as np
import disco_client

def fail(session):
    session.get_global_func("numpy.add")({"a": [object()]}, 1)

def refuse(session):
    session.distribute(np.ones((4, 2)), placement="S[0]").sum(axis=5)

def chain(session):
    try:
        refuse(session)
    except disco_client.ConfigError as error:
        raise RuntimeError("while training") from error

def group(session):
    try:
        refuse(session)
    except disco_client.ConfigError as error:
        raise ExceptionGroup("all", [error])

def keep(session):
    try:
        refuse(session)
    except disco_client.ConfigError as error:
        traceback.print_exception(error)
        sys.exit(1)

def hooked(session):
    sys.excepthook = lambda *error: traceback.print_exception(*error)
    refuse(session)

with disco_client.ThreadedSession(2) as session:
    {call}(session)
"""


def ours(tmp_path, call, **variables):
    """How many frames of the library a program prints, and all that it prints."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{call}", call))
    ran = subprocess.run(
        [sys.executable, path],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    lines = ran.stderr.splitlines()
    frames = [line for line in lines if line.lstrip(" |").startswith(f'File "{HOME}/disco_')]
    return len(frames), ran.stderr


@pytest.mark.parametrize(
    ("call", "last"),
    [
        ("fail", "EncodingError: argument 0 at ['a'][0]: "),
        ("refuse", "OutOfBounds: a tensor of 2 axes has no axis 5"),
        ("chain", "RuntimeError: while training"),
        ("group", "OutOfBounds: a tensor of 2 axes has no axis 5"),
    ],
)
def test_an_error_that_ends_a_program_has_few_frames_of_ours(tmp_path, call, last):
    """At most two in each error of a chain or a group; the program's own are all there."""
    count, said = ours(tmp_path, call)
    assert 1 <= count <= 2
    assert last in said
    assert f"in {call}\n" in said
    assert call not in ("chain", "group") or "in refuse\n" in said
    assert call != "chain" or "OutOfBounds: a tensor of 2 axes" in said
    all_of_them, _ = ours(tmp_path, call, DISCO_TRACEBACK="full")
    assert all_of_them > count


@pytest.mark.parametrize("call", ["keep", "hooked"])
def test_the_error_keeps_its_frames(tmp_path, call):
    """For a program that prints it itself, by a hook of its own too."""
    count, _ = ours(tmp_path, call)
    assert count == ours(tmp_path, call, DISCO_TRACEBACK="full")[0] > 2
