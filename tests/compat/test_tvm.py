"""TVM's own tests of its Disco pass with Disco in its place.

They are not part of this repository: ``TVM_TESTS`` names the folder ``tests/python/disco`` of
a checkout of Apache TVM, of the release that is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

HERE = Path(__file__).parent
FILES = ("test_session", "test_ccl", "test_loader", "test_callback", "test_custom_allreduce")

# They call functions of which TVM's own C++ tests consist, and which no program has.
EXCLUDED = (
    "test_send_to_next_group_receive_from_prev_group",
    "test_worker2_send_to_worker0",
)

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
        + ["-k", " and ".join(f"not {name}" for name in EXCLUDED), f"--junit-xml={report}"]
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
