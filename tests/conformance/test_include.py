"""Packages of the program on the workers of every kind of session."""

from __future__ import annotations

import importlib
import sys

import pytest

SCALING = """\
from pathlib import Path

FACTOR = {factor}

def scale(x):
    return f"{{x * FACTOR}} {{(Path(__file__).parent / 'data.txt').read_text()}}"

class Counter:
    def __init__(self, start):
        self.total = start * FACTOR
"""
PROGRAM = "from disco_included.inner.scaling import scale\ndef again(x):\n    return scale(x)\n"


@pytest.mark.layouts((2, 1))
def test_a_package_is_imported_on_workers_and_replaced_when_it_has_changed(
    case, session, tmp_path, monkeypatch
):
    """With data files, by its own functions and classes, and by those of a file beside it."""
    inner = tmp_path / "disco_included" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "disco_including.py").write_text(PROGRAM)
    (tmp_path / "disco_included" / "__init__.py").touch()

    def write(factor):
        (inner / "scaling.py").write_text(SCALING.format(factor=factor))
        (inner / "data.txt").write_text(f"data {factor}")

    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("disco_included", "disco_included.inner", "disco_included.inner.scaling")
    try:
        for factor in (3, 4):
            write(factor)
            session.include("disco_included")
            importlib.invalidate_caches()
            scaling = importlib.import_module(names[-1])
            program = importlib.import_module("disco_including")
            # Threads have what the program has, which imported the first one.
            code = factor if case.kind.processes else 3
            expected = [f"{2 * code} data {factor}"] * 2
            assert session.function(scaling.scale)(2).get_all() == expected
            assert session.function(program.again)(2).get_all() == expected
            assert session.create(scaling.Counter, 5).total.get_all() == [5 * code] * 2
    finally:
        for name in (*names, "disco_including"):
            sys.modules.pop(name, None)
