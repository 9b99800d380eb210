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
    "opentelemetry",
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


@pytest.mark.parametrize("name", ["ThreadedSession", "ProcessSession"])
def test_a_session_that_needs_the_server_says_how_to_install_it(name):
    """Where the server's requirements are missing; as an error that both worlds know."""
    program = f"""
import sys
sys.modules["disco_server.embedded"] = None
import disco_client
try:
    disco_client.{name}(2)
except disco_client.ExtraMissing as error:
    assert isinstance(error, ImportError)
    assert "disco-runtime[server]" in str(error) and "{name}" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_embedded_sessions_load_no_grpc():
    """Neither a program with one, nor asyncio to drive it."""
    loaded = loaded_by("import disco_client; disco_client.ProcessSession")
    assert not loaded & {"grpc", "asyncio"}


def test_the_base_install_asks_for_four_packages():
    """`pip install disco-runtime` brings gRPC, protobuf, numpy and tqdm, no more."""
    try:
        requirements = importlib.metadata.requires("disco-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail("disco-runtime is not installed here; run `make venv`")
    base = [r for r in requirements if "extra ==" not in r]
    names = sorted(re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in base)
    assert names == ["grpcio", "numpy", "protobuf", "tqdm"]
