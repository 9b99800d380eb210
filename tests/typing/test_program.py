"""What type checkers find in a program of strict types."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "program.py"


@pytest.mark.timeout(180)
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(tmp_path):
    """In strict mode, of functions, classes and objects of a program, and of references."""
    shutil.copy(PROGRAM, tmp_path)
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    config |= {"reportUnusedExpression": "none"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = PROGRAM.read_text().splitlines()
    expected = [number for number, line in enumerate(lines) if line.endswith("# wrong")]
    assert sorted({each["range"]["start"]["line"] for each in found}) == expected, "\n".join(
        f"{each['range']['start']['line'] + 1}: {each['message']}" for each in found
    )
