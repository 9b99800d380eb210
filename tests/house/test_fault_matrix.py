"""The fault matrix: each of its rows is held by a test, or stands here with the reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "faults"
DOCUMENT = ROOT / "docs" / "reliability.md"
ROWS = range(1, 45)

# Rows that tests elsewhere hold, which need what those have.
ELSEWHERE = {
    1: "tests/cluster/test_failures.py::test_a_killed_worker_daemon_leaves_no_process",
    4: "tests/cluster/test_failures.py::test_a_stopped_worker_daemon_is_lost_after_the_lease",
    7: "tests/disco_server/controller/test_daemon.py"
    "::test_an_address_in_use_is_refused_with_advice",
    20: "tests/security/test_certificates.py"
    "::test_who_shows_no_good_certificate_is_told_so_at_once",
    21: "tests/security/test_rotation.py"
    "::test_new_connections_use_new_certificates_and_old_ones_live",
    28: "tests/benchmarks/test_soak.py::test_a_short_run_loses_nothing",
    32: "tests/disco_server/controller/test_client_streams.py"
    "::test_a_lone_command_does_not_wait_behind_what_another_session_has_sent",
    36: "tests/disco_server/worker/test_fork_server.py"
    "::test_killing_all_that_watches_leaves_nothing_either",
    37: "tests/disco_client/recovery/test_rebuilding.py"
    "::test_workers_that_are_lost_in_rebuild_are_replaced_as_well",
    42: "tests/conformance/test_reentry.py::test_what_a_handler_raises_leaves_the_session_whole",
    44: "tests/hunt/test_resources.py::test_each_wait_comes_right_or_names_what_is_missing",
}

# Rows without a test, and why. An entry must go when its test comes.
WITHOUT: dict[int, str] = {}


def rows_held() -> dict[int, list[str]]:
    """The tests of the suite under the rows that their first lines name."""
    found: dict[int, list[str]] = {}
    for file in sorted(FAULTS.glob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                row = re.match(r"Row (\d+): ", ast.get_docstring(node) or "")
                if row is not None:
                    found.setdefault(int(row[1]), []).append(f"{file.name}::{node.name}")
    return found


def test_each_row_has_a_test_or_a_reason():
    """No row of the matrix is forgotten, and none is in two lists."""
    held = rows_held()
    assert set(held) | set(ELSEWHERE) | set(WITHOUT) == set(ROWS)
    assert not set(WITHOUT) & (set(held) | set(ELSEWHERE))


def test_what_is_held_elsewhere_is_there():
    """Each of these tests exists under its name."""
    for where in ELSEWHERE.values():
        file, _, name = where.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), where


def test_the_document_names_a_test_for_each_row():
    """docs/reliability.md says which promise each row is, and which tests hold it."""
    told = {
        int(row[1]): row[0]
        for row in re.finditer(r"^\| (\d+) \|.*$", DOCUMENT.read_text(), re.MULTILINE)
    }
    assert set(told) == set(ROWS)
    held = rows_held()
    for row, line in told.items():
        files = {name.partition("::")[0] for name in held.get(row, [])}
        if row in ELSEWHERE:
            files.add(Path(ELSEWHERE[row].partition("::")[0]).name)
        assert all(f"`{file}`" in line for file in files), f"row {row} wants {files}"
