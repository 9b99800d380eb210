"""Programs of the pages run as they are printed, and print what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(
    r"```python\n# (\w+\.py)\n(.*?)```\n+```console\n\$ (.*?)\n(.*?)```", re.DOTALL
)


def programs():
    """Each program with its name, the command that runs it, and what it prints."""
    for page in ("asyncio.md", "functions.md"):
        for name, code, command, printed in PROGRAM.findall((ROOT / "docs" / page).read_text()):
            if "averaging" in code:
                continue  # which needs torch; tests/interop runs it
            yield pytest.param(name, code, command, printed, id=f"{page}-{name}")


@pytest.mark.parametrize(("name", "code", "command", "printed"), list(programs()))
def test_a_program_prints_what_its_page_says(name, code, command, printed, tmp_path):
    """In a process of its own, by the command that the page gives."""
    (tmp_path / name).write_text(code)
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        shlex.split(command),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_the_page_has_programs():
    """Otherwise nothing is tested."""
    assert len(list(programs())) >= 8
