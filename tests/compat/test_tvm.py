"""TVM's own tests of its Disco pass with Disco in its place.

Two files run as they are, by the plugin that users have. The others ask for GPUs, and run with
`tvm_stand_in`, which gives them CPUs. They are not part of this repository: ``TVM_TESTS`` names
the folder ``tests/python/disco`` of a checkout of Apache TVM, of the release that is installed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from disco_server.cli.local import LocalCluster

HERE = Path(__file__).parent
FILES = ("test_session", "test_ccl", "test_loader", "test_callback", "test_custom_allreduce")

ON_GPUS = ("test_mlp", "test_attention")
"""Of the files that run as they are, what compiles for a GPU."""

# test_nvshmem is about kernels that use NVSHMEM, which Disco does not serve.


@pytest.fixture
def folder() -> Path:
    """Where TVM's tests are."""
    named = os.environ.get("TVM_TESTS")
    if not named:
        pytest.skip("TVM_TESTS names no folder with TVM's tests of its Disco")
    return Path(named).resolve()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["threads", "processes", "sockets", "cluster"])
def test_tvms_own_tests_pass(folder, tmp_path, kind):
    """All of those that need no GPU, on every kind of session."""
    report = tmp_path / "report.xml"
    path = [
        str(HERE),
        str(HERE.parent / "support"),
        str(folder),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder)]
        + ["-p", "no:cacheprovider", "-p", "tvm_stand_in", "--disco-kind", kind, "-q"]
        + [f"--junit-xml={report}"]
        + [str(folder / f"{name}.py") for name in FILES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=tmp_path,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    unhappy = [f"{case.get('classname')}::{case.get('name')}" for case in cases if len(case)]
    print(f"{len(cases) - len(unhappy)} of {len(cases)} passed on {kind}")
    assert not unhappy, done.stdout[-20000:]
    assert {case.get("classname").rpartition(".")[2] for case in cases} == set(FILES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("on_cluster", [False, True], ids=["here", "cluster"])
def test_tvms_own_tests_pass_as_they_are(folder, tmp_path, on_cluster):
    """By the plugin: on threads, processes and sockets, and with processes on two daemons."""
    report = tmp_path / "report.xml"
    command = ["-B", "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-q"]
    command += ["-p", "no:cacheprovider", "-p", "disco_client.tvm", f"--junit-xml={report}"]
    command += [str(folder / f"{name}.py") for name in ("test_session", "test_ccl")]
    with contextlib.ExitStack() as stack:
        environ = {**os.environ, "DISCO_ADDRESS": ""}
        if on_cluster:
            cluster = stack.enter_context(LocalCluster(2, 4, import_path=sys.path))
            environ["DISCO_ADDRESS"] = cluster.address
            command += ["-k", "ProcessSession"]
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            check=False,
        )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    unhappy = [str(case.get("name")) for case in cases if len(case)]
    print(f"{len(cases) - len(unhappy)} of {len(cases)} passed")
    assert not [name for name in unhappy if not name.startswith(ON_GPUS)], done.stdout[-20000:]
    # Of each test, on how many kinds of sessions.
    assert len(cases) == (29 if on_cluster else 69)
    assert len(unhappy) <= (2 if on_cluster else 4)
