"""The program that repeats suites."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CONFTEST = """
from hypothesis import settings
settings.register_profile("hunt", max_examples=200, database=None, deadline=None)
"""

GOOD = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_sums(number):
    assert number + 1 > number
"""

BAD = """
import os
from hypothesis import given, strategies as st

@given(st.integers(), st.booleans())
def test_two_faults(number, negative):
    if number > 700:
        raise KeyError("too large") if negative else ValueError(f"{number} is too large")

@given(st.integers())
def test_that_crashes(number):
    if number > 300:
        os.abort()
"""


@pytest.fixture
def suite(tmp_path):
    """Writes a suite outside of this repository, and returns its path."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def write(text):
        file = tmp_path / "test_suite.py"
        file.write_text(text)
        return str(file)

    return write


def hunt(*arguments):
    command = [sys.executable, str(HERE / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rounds_have_fresh_seeds_and_count_their_examples(suite):
    """Rounds follow one another until the time is over, each with another seed."""
    done = hunt(suite(GOOD), "--minutes", "0.05")
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = re.findall(r"^ +(\d+) +(\d+) +200 +([\d,]+) +0 +\d+$", done.stdout, re.MULTILINE)
    assert len(rounds) >= 2
    assert [number for number, _, _ in rounds] == [str(1 + i) for i in range(len(rounds))]
    assert len({seed for _, seed, _ in rounds}) == len(rounds)
    assert [int(total.replace(",", "")) for *_, total in rounds] == [
        200 * (1 + i) for i in range(len(rounds))
    ]
    assert f"rounds: {len(rounds)}, examples: {200 * len(rounds):,}, findings: 0" in done.stdout


def test_a_finding_has_its_example_its_seed_and_its_command(suite):
    """Faults of one test are told apart, a crash is one too, and a seed finds them again."""
    path = suite(BAD)
    done = hunt(path, "--seed", "77")
    assert done.returncode == 1
    assert "ValueError: 701 is too large" in done.stdout
    assert "KeyError: 'too large'" in done.stdout
    assert re.search(r"number=701,\n +negative=False", done.stdout)
    assert "the round ended with -6" in done.stdout
    assert done.stdout.count(f"again: make hunt SUITE={path} SEED=77") == 3
    assert "findings: 3" in done.stdout
    assert hunt(path, "--seed", "77").stdout.count("701") == done.stdout.count("701")


def test_a_finding_is_printed_once(suite):
    """What several rounds find is one finding, with the seed that found it first."""
    done = hunt(suite(BAD.partition("@given(st.integers())\n")[0]), "--minutes", "0.05")
    assert done.returncode == 1
    assert done.stdout.count("again: make hunt") == 2
    first = re.search(r"^ +1 +(\d+)", done.stdout, re.MULTILINE)
    assert first
    assert re.findall(r", seed (\d+)", done.stdout) == [first[1]] * 2


def test_ctrl_c_ends_with_the_summary(suite):
    """The round that is under way ends, and what was found so far is counted."""
    slow = GOOD.replace("    assert", "    import time; time.sleep(0.2)\n    assert")
    command = [sys.executable, "-u", str(HERE / "run.py"), suite(slow)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "round" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    assert "findings: 0" in said


def test_an_unknown_suite_is_refused_with_those_there_are():
    """So is one that is missing, and one without a test of hypothesis."""
    for arguments in ((), ("weather",)):
        done = hunt(*arguments)
        assert done.returncode == 2
        assert "scalars      tests/hunt/test_scalars.py" in done.stderr


def test_tests_that_try_no_example_are_refused(suite):
    """A hunt with tests that are none of hypothesis would find nothing for ever."""
    done = hunt(suite("def test_nothing():\n    pass\n"))
    assert done.returncode == 2
    assert "has tried no example" in done.stderr
