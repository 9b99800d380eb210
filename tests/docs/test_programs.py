"""The programs of the pages do what the pages say, typed as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": 1,
    "docs/asyncio.md": 4,
    "docs/dtensor.md": 2,
    "docs/functions.md": 4,
    "docs/reliability.md": 1,
    "docs/worker-functions.md": 1,
}
"""The pages, with how many programs each has at least."""

PROGRAM = re.compile(
    r"```python\n(# (\w+\.py)\n.*?)```\n(.*?)(?=\n```python\n# \w+\.py|\Z)", re.DOTALL
)
RUN = re.compile(
    r"```console\n\$ ((?:disco local [^\n]* -- )?python (\w+\.py))\n(.*?)```", re.DOTALL
)
NAMES = re.compile(r"session-[0-9a-f]{6}")
WITH_TORCH = ("program.py",)
"""Run by the tests of other libraries."""


def programs_of(page):
    """Each program that its page runs, with the command and the output."""
    for source, name, after in PROGRAM.findall((ROOT / page).read_text("utf-8")):
        for command, ran, output in RUN.findall(after)[:1]:
            # A page may also show what a program of the reader's cluster prints.
            alone = "connect(" not in source or command.startswith("disco ")
            if ran == name and alone and name not in WITH_TORCH:
                yield pytest.param(source, name, command, output, id=f"{page}:{name}")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_programs(page):
    """Otherwise nothing of it would be tested."""
    assert len(list(programs_of(page))) >= PAGES[page]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("source", "name", "command", "output"), [each for page in PAGES for each in programs_of(page)]
)
def test_a_program_prints_what_its_page_shows(source, name, command, output, tmp_path):
    """In a shell, in a folder with nothing else; only names of sessions differ."""
    (tmp_path / name).write_text(source, "utf-8")
    scripts = Path(sys.executable).parent
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    done = subprocess.run(
        command,
        shell=True,
        executable=shutil.which("sh"),
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert NAMES.sub("", done.stdout) == NAMES.sub("", output), done.stderr
