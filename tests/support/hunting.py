"""Writes down what each test of hypothesis did, while pytest runs: ``pytest -p hunting``.

One line of JSON for each test, into the file that HUNTING_FILE names: how many examples it
tried, and where it failed, the error with the example that hypothesis found for it. A line is
there as soon as its test has ended, whatever becomes of the process afterwards.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "HUNTING_FILE"
_COUNTED = re.compile(r"(\d+) passing\D+(\d+)\s+failing")


def examples_in(statistics: str) -> int:
    """How many examples a test has tried, by what hypothesis says of it."""
    return sum(int(number) for pair in _COUNTED.findall(statistics) for number in pair)


def told(error: BaseException) -> Iterator[str]:
    """Describes an error: its type and text, and the examples that are noted at it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from told(one)
        return
    notes = "\n".join(getattr(error, "__notes__", ()))
    yield f"{type(error).__name__}: {error}\n{notes}".strip()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    failures = list(told(call.excinfo.value)) if report.failed else []
    if call.when == "call" or failures:
        examples = examples_in(getattr(item, "hypothesis_statistics", ""))
        line = {
            "test": item.nodeid,
            "examples": examples if call.when == "call" else 0,
            "failures": failures,
        }
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return report
