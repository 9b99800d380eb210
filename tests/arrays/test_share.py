"""The program that runs the test suite of the Array API standard: what it counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

# A suite with a test for each outcome; the one that is expected to fail is one of these.
SUITE = """
import disco_xp as xp
import pytest

def test_passes():
    assert xp.sum(xp.ones(3)).item() == 3.0

@pytest.mark.xfail(reason="known")
def test_known():
    assert xp.__array_api_version__ == "1999.12"

def test_is_not_counted():
    pytest.skip("flaky")

def test_lacks_a_name():
    pytest.skip("fft not found in array module")
"""

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--max-examples", "--xfails-file"):
        parser.addoption(name, action="store")
    parser.addoption("--disable-deadline", action="store_true")
"""


def run(folder, *arguments):
    """Runs the program on a suite in a folder, on workers that are threads."""
    env = {**os.environ, "ARRAY_API_TESTS": str(folder), "ARRAYS_SESSION": "threads"}
    command = [sys.executable, str(HERE / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def written(folder, text):
    """Writes a suite, which imports the module that stands for the namespace."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    tests = folder / "array_api_tests"
    tests.mkdir()
    (tests / "test_some.py").write_text(text)
    return folder


def test_tests_that_lack_a_name_count_as_failed(tmp_path):
    """Those that are skipped for another reason do not count."""
    done = run(written(tmp_path, SUITE))
    assert "1 missing, 1 passed, 1 skipped, 1 xfailed: 33.33% passed" in done.stdout, done.stdout
    assert done.returncode == 1


def test_a_suite_that_passes_is_one_of_the_right_share(tmp_path):
    """The exit code says so, also of a failure among many."""
    many = "\n".join(f"def test_{number}(): pass" for number in range(99))
    assert run(written(tmp_path, many)).returncode == 0
    (tmp_path / "array_api_tests" / "test_more.py").write_text("def test_fails(): assert 0")
    done = run(tmp_path)
    assert "1 failed, 99 passed: 99.00% passed" in done.stdout
    assert done.returncode == 1


def test_without_a_checkout_there_is_nothing_to_run(tmp_path):
    """The program says which variable names one."""
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ARRAY_API_TESTS names no checkout" in done.stderr


def test_each_expected_failure_has_a_reason():
    """The file names tests below sentences, and none twice."""
    lines = (HERE / "xfails.txt").read_text().splitlines()
    tests = [line for line in lines if line and not line.startswith("#")]
    assert len(set(tests)) == len(tests)
    assert all(line.startswith("array_api_tests/test_") for line in tests)
    groups = "\n".join(lines).split("\n\n")
    assert all(group.startswith("# ") for group in groups)
