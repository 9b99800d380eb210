"""The client is thin: what it asks for, and what it loads."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Not grpc_health and grpc_reflection: grpcio itself loads them where they are.
FORBIDDEN = {
    "click",
    "cupy",
    "disco_server",
    "mpi4py",
    "prometheus_client",
    "rich",
    "safetensors",
    "torch",
    "tvm",
}

# Loads the package, then every name that it offers, then all its modules.
IMPORT = "import disco_client"
NAMES = "from disco_client import *"
MODULES = """
import importlib, pkgutil, disco_client
for module in pkgutil.walk_packages(disco_client.__path__, "disco_client."):
    importlib.import_module(module.name)
"""


def loaded_by(program: str) -> set[str]:
    """The top-level packages that a fresh interpreter has after a program."""
    show = (
        "\nimport sys, json; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + show],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("program", [IMPORT, NAMES, MODULES], ids=["import", "names", "modules"])
def test_the_client_loads_nothing_of_the_server(program):
    """Neither our server package nor any library that only the server needs."""
    loaded = loaded_by(program) & FORBIDDEN
    assert loaded == set()


def test_the_base_install_asks_for_four_packages():
    """`pip install disco-runtime` brings gRPC, protobuf, numpy and tqdm, no more."""
    try:
        requirements = importlib.metadata.requires("disco-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail("disco-runtime is not installed here; run `make venv`")
    base = [r for r in requirements if "extra ==" not in r]
    names = sorted(re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in base)
    assert names == ["grpcio", "numpy", "protobuf", "tqdm"]
