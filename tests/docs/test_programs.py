"""The programs of the page about functions print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
# A file with its name in the first line, and what a console then shows.
PROGRAM = re.compile(
    r"```python\n(# (\w+\.py)\n.*?)```\n\n```console\n\$ python \2\n(.*?)```", re.DOTALL
)
PROGRAMS = {name: (text, shown) for text, name, shown in PROGRAM.findall(PAGE.read_text())}


@pytest.mark.parametrize("name", ["keywords.py", "objects.py", "chosen.py"])
def test_a_program_runs_as_it_is_typed(name, tmp_path):
    """Each in a file of its own, in an empty folder."""
    text, shown = PROGRAMS[name]
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (shown, "")
