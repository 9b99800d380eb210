"""The thin client works with the lowest versions it allows, and with the newest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Imports every module of the client, sends one value through protobuf, and
# prints the versions it did so with.
PROBE = """
import importlib, importlib.metadata, json, pkgutil
import disco_client
from disco_client.pb import values_pb2

loaded = []
for module in pkgutil.walk_packages(disco_client.__path__, "disco_client."):
    importlib.import_module(module.name)
    loaded.append(module.name)
sent = values_pb2.Value(list=values_pb2.ValueList(items=[values_pb2.Value(int=-5)]))
came = values_pb2.Value.FromString(sent.SerializeToString())
assert came.list.items[0].int == -5
names = ["grpcio", "numpy", "protobuf", "tqdm"]
print(json.dumps([loaded, {name: importlib.metadata.version(name) for name in names}]))
"""


def base_requirements() -> dict[str, str]:
    """The client's requirements by name, as pyproject.toml states them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.split(r"[<>=!~ ]", req)[0]: req for req in project["dependencies"]}


def lowest() -> list[str]:
    """The requirements, each held at its lower bound."""
    return [
        f"{name}=={re.search(r'>=([0-9.]+)', req)[1]}" for name, req in base_requirements().items()
    ]


def newest() -> list[str]:
    """The requirements, with the newest major version of protobuf."""
    return [*base_requirements().values(), "protobuf>=7"]


def environment(name: str, requirements: list[str]) -> Path:
    """Makes an environment in build/, once for each list, and returns its Python."""
    folder = ROOT / "build" / name
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    stamp = folder / "requirements.json"
    wanted = json.dumps([sys.version, requirements])
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *requirements],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if installed.returncode != 0:
            lines = installed.stdout.strip().splitlines() or ["no output"]
            # Versions that exclude each other are our mistake; no network is not.
            assert "ResolutionImpossible" not in installed.stdout, installed.stdout
            pytest.skip(f"could not install {' '.join(requirements)}: {lines[-1]}")
        stamp.write_text(wanted)
    return python


def probe(python: Path) -> dict[str, str]:
    """Runs PROBE in an environment; returns the versions it saw."""
    done = subprocess.run(
        [python, "-W", "error", "-c", PROBE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, versions = json.loads(done.stdout)
    assert "disco_client.pb.values_pb2" in loaded
    return versions


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_client_loads_with_the_lowest_versions():
    """Every module imports and a message travels, at each requirement's lower bound."""
    versions = probe(environment("lowest", lowest()))
    for name, requirement in base_requirements().items():
        bound = f">={versions[name].removesuffix('.0')}"
        assert bound in requirement, f"{name} {versions[name]} is not the lowest of {requirement}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_client_loads_with_the_newest_protobuf():
    """The same files load in the next major version of the runtime."""
    versions = probe(environment("newest", newest()))
    assert versions["protobuf"].startswith("7.")
