"""What the comparisons of families share: where the example is, and a table of what they found."""

from __future__ import annotations

import sys
from pathlib import Path

# As a script, chat.py has its own folder on the path; the tests do as Python does.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

TABLE = "families"
"""The property of a test that is a row of the table."""


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    rows = {value for report in reports for name, value in report.user_properties if name == TABLE}
    if rows:
        terminalreporter.section("largest difference of logits, in their standard deviation")
        for row in sorted(rows):
            terminalreporter.line(row)
