"""The generated code is what the pinned generator makes of protos/."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PB = Path("disco_client/pb")
STAMP = ".venv-protos/.stamp"


def make(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A folder with what the generator makes now."""
    tools = make(STAMP)
    if tools.returncode != 0:
        lines = tools.stdout.strip().splitlines() or ["no output"]
        pytest.skip(f"the pinned generator could not be installed: {lines[-1]}")
    folder = tmp_path_factory.mktemp("protos")
    made = make("protos", f"OUT={folder}")
    assert made.returncode == 0, made.stdout
    return folder / PB


def generated(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob("*_pb2*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_committed_code_is_what_the_generator_makes(fresh):
    """The same files with the same bytes; `make protos` renews them."""
    made, kept = generated(fresh), generated(ROOT / PB)
    assert made, "the generator made nothing"
    differ = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    assert not differ, f"run `make protos` and look at {', '.join(differ)} in {PB}"
