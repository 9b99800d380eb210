"""Runs the test suite of the Array API standard on ``session.numpy``: ``make arrays``.

The suite, https://github.com/data-apis/array-api-tests, is not part of this repository:
``ARRAY_API_TESTS`` names a checkout of it with its submodule. It prints what failed that
``xfails.txt`` does not name, and which share of the tests passes: passed / (passed + failed +
expected to fail + skipped because a name is missing). What sorts, and the extensions for linear
algebra and Fourier transforms, are left out. Exit code 0 if the share is large enough and nothing
failed that is not expected to, else 1; 2 where there is nothing to run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VARIABLE = "ARRAY_API_TESTS"

LEAST = 0.97
"""The share of the tests that has to pass."""

_FOLDER = "array_api_tests"
_FILES = ("test_fft", "test_linalg", "test_sorting_functions")
_NAMES = ("fft-", "linalg-", "sorting-")
_SIGNATURES = (
    "test_func_signature[argsort]",
    "test_func_signature[sort]",
    "test_extension_func_signature[fft.",
    "test_extension_func_signature[linalg.",
)
"""Of what is left out: files, names of functions and their signatures."""

_MISSING = ("not found", "not defined", "missing")
"""What a skipped test says where it lacks a name."""

PASSED, FAILED, NOTHING_TO_RUN = 0, 1, 2


def left_out() -> list[str]:
    """The arguments by which pytest leaves out what is not served yet."""
    files = [f"--ignore={_FOLDER}/{name}.py" for name in _FILES]
    names = [f"--deselect={_FOLDER}/test_has_names.py::test_has_names[{name}" for name in _NAMES]
    signatures = [f"--deselect={_FOLDER}/test_signatures.py::{name}" for name in _SIGNATURES]
    return [*files, *names, *signatures]


def outcome_of(case: ET.Element) -> str:
    """What became of a test, as a report of pytest's says it.

    Args:
        case: Its element.

    Returns:
        "passed", "failed", "xfailed", "missing" where it was skipped for a name, or "skipped".
    """
    for child in case:
        if child.tag in ("failure", "error"):
            return "failed"
        if child.tag == "skipped":
            if "xfail" in child.get("type", ""):
                return "xfailed"
            reason = child.get("message", "")
            return "missing" if any(text in reason for text in _MISSING) else "skipped"
    return "passed"


def share_of(outcomes: Iterable[str]) -> float:
    """How many of the tests that count have passed, from 0 to 1."""
    counts = Counter(outcomes)
    counts.pop("skipped", None)
    return counts["passed"] / max(sum(counts.values()), 1)


def run(suite: Path, examples: int, more: list[str]) -> int:
    """Runs the suite, and says what became of it.

    Args:
        suite: Its folder.
        examples: How many each of its properties draws.
        more: Further arguments of pytest.
    """
    path = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "ARRAY_API_TESTS_MODULE": "disco_xp",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += ["--disable-deadline", "--max-examples", str(examples)]
        # In one argument: by itself the file would be where pytest looks for its settings.
        command += [f"--xfails-file={HERE / 'xfails.txt'}", *left_out()]
        subprocess.run(
            [*command, f"--junit-xml={report}", *more, _FOLDER],
            env=env,
            cwd=suite,
            check=False,
        )
        if not report.exists():
            return FAILED
        cases = list(ET.parse(report).iter("testcase"))
    outcomes = [outcome_of(case) for case in cases]
    share = share_of(outcomes)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(Counter(outcomes).items()))
    print(f"{counts}: {share:.2%} passed of those that count, {LEAST:.0%} must")
    return PASSED if share >= LEAST and "failed" not in outcomes else FAILED


def main() -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=10, help="of each property; 10")
    chosen, more = parser.parse_known_args()
    named = os.environ.get(VARIABLE)
    if not named or not (Path(named) / _FOLDER).is_dir():
        print(f"{VARIABLE} names no checkout of data-apis/array-api-tests", file=sys.stderr)
        return NOTHING_TO_RUN
    return run(Path(named).resolve(), chosen.examples, more)


if __name__ == "__main__":
    sys.exit(main())
