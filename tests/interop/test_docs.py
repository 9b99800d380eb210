"""The programs of the pages that need torch on the workers, typed as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISCO = [sys.executable, "-m", "disco_server.cli.main"]


def run_disco(folder, *words, path):
    """Runs the command in a folder, with a path for imports and nothing else of this process's."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("DISCO_")}
    return subprocess.run(
        [*DISCO, *words],
        cwd=folder,
        env=env | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


@pytest.mark.timeout(300)
def test_the_program_in_the_page_prints_what_the_page_says(tmp_path):
    """With its module beside it."""
    pytest.importorskip("torch", reason="needs torch: `make interop`")
    page = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
    section = page.partition("\n## Arrays of other libraries\n")[2].partition("\n## ")[0]
    for text in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        (tmp_path / re.match(r"# (\w+\.py)", text)[1]).write_text(text, encoding="utf-8")
    (printed,) = re.findall(r"```console\n.*? program\.py\n(.*?)```", section, re.DOTALL)
    local = ["local", "--nodes", "2", "--slots", "2", "--", sys.executable, "program.py"]
    done = run_disco(tmp_path, *local, path=tmp_path)
    assert done.stdout == printed, done.stderr


@pytest.mark.timeout(300)
def test_a_script_of_torchrun_prints_on_the_workers_what_the_page_says(tmp_path):
    """By the command of the page; only which node has the rank may differ."""
    pytest.importorskip("torch", reason="needs torch: `make interop`")
    page = (ROOT / "docs" / "coming-from-torch-distributed.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(# ddp\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "ddp.py").write_text(text, encoding="utf-8")
    (words, printed) = re.search(
        r"^\$ disco (local .* ddp\.py 100)\n(.*\n)", page, re.MULTILINE
    ).groups()
    local, run = words.split(" -- disco ")
    inner = [*DISCO, *run.split()]
    done = run_disco(tmp_path, *local.split(), "--http", "off", "--", *inner, path=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace("node-0", "node-1") == printed
