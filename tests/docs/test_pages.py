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
PAGES = ("README.md", "docs/functions.md", "docs/worker-functions.md", "docs/reliability.md")
PROGRAM = re.compile(
    r"```python\n(# (\w+\.py)\n.*?)```\n(.*?)(?=\n```python\n# \w+\.py|\Z)", re.DOTALL
)
RUN = re.compile(r"```console\n\$ (disco local [^\n]* -- python (\w+\.py))\n(.*?)```", re.DOTALL)
NAMES = re.compile(r"session-[0-9a-f]{6}")


def programs():
    """Each program that its page runs in a local cluster, with the command and the output."""
    for page in PAGES:
        for source, name, after in PROGRAM.findall((ROOT / page).read_text("utf-8")):
            for command, ran, output in RUN.findall(after)[:1]:
                if ran == name:
                    yield pytest.param(source, name, command, output, id=f"{page}:{name}")


@pytest.mark.parametrize(("source", "name", "command", "output"), list(programs()))
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
        timeout=50,
    )
    assert NAMES.sub("", done.stdout) == NAMES.sub("", output), done.stderr
