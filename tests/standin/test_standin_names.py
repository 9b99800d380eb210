"""The stand-in has no name that the library has not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "names_program.py"


def environment(**more):
    """The present one, without what could put the stand-in before the library."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, **more}


@pytest.fixture
def names(tmp_path):
    """The stand-in's names, in a file."""
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM],
        env=environment(PYTHONPATH=str(FOLDER)),
        check=True,
        capture_output=True,
    )
    file = tmp_path / "names.json"
    file.write_bytes(done.stdout)
    return file


@pytest.fixture
def library_python():
    """An interpreter that has the library; `CUPY_PYTHON` names one other than this."""
    python = os.environ.get("CUPY_PYTHON", sys.executable)
    # Asked elsewhere, because another test of this process may use the stand-in.
    look = [python, "-P", "-c", "import cupy"]
    if subprocess.run(look, env=environment(), capture_output=True, check=False).returncode:
        pytest.skip("there is no cupy here; CUPY_PYTHON may name an interpreter that has it")
    return python


def test_every_name_of_the_standin_is_the_librarys(names, library_python, tmp_path):
    """With the parameters of the same names, as far as the library tells them."""
    done = subprocess.run(
        [library_python, "-P", PROGRAM, names],
        env=environment(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    ours, theirs = json.loads(names.read_text()), json.loads(done.stdout)

    assert [name for name in ours if name not in theirs] == []
    differing = {
        name: (ours[name], theirs[name])
        for name in ours
        if ours[name] is not None and theirs[name] is not None and ours[name] != theirs[name]
    }
    assert differing == {}


def test_the_standin_has_what_disco_needs(names):
    """A list that has gone empty would pass the other test."""
    ours = json.loads(names.read_text())

    assert {
        "cupy:ndarray.get",
        "cupy:einsum",
        "cupy.cuda:Stream.wait_event",
        "cupy.cuda.nccl:NcclCommunicator.reduceScatter",
        "cupy.cuda.runtime:memcpyAsync",
    } <= ours.keys()
