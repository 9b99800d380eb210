"""The tree's own rules: sizes, mirrored tests, a sentence for each test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("disco_client", "disco_server")
PLACES = (*PACKAGES, "benchmarks", "examples", "tests")
GENERATED = ROOT / "disco_client" / "pb"
MAX_LINES = 500

# Modules without a test file of their own, and why. An entry must go when the
# module goes or its test comes.
UNMIRRORED = {
    "disco_client/transport/base.py": "a protocol and its records, met by every transport's tests",
    "disco_client/transport/doors.py": "a protocol and two errors, met by the tests of its kinds",
    "disco_client/transport/handshake.py": "met by security/test_certificates",
    "disco_client/transport/reaching.py": "met by security/test_certificates and test_tokens",
    "disco_server/worker/auditing.py": "met by security/test_audit_log",
    "disco_server/sources.py": "met by test_config",
    "disco_server/controller/page_feed.py": "met by test_page and by browser/test_dashboard",
    "disco_client/version.py": "one constant",
    "disco_client/arguments.py": "met by the tests of every way to open a session",
    "disco_client/call_sites.py": "met by test_command_log",
    **dict.fromkeys(
        (
            "disco_client/transport/again.py",
            "disco_client/transport/deaths.py",
            "disco_client/transport/life.py",
        ),
        "parts of one thing, met by test_replaying and by row 27 of the fault suite",
    ),
    "disco_server/runtime/snapshot_builtins.py": "met by test_checkpointing",
    "disco_client/identity.py": "met by the tests of every session",
    "disco_server/core/effects.py": "records",
    "disco_client/starting.py": "met by the tests of every session",
    **dict.fromkeys(
        (
            "disco_server/runtime/dtensor_moves.py",
            "disco_server/runtime/dtensor_ops.py",
        ),
        "met by the properties of test_dtensor",
    ),
    "disco_client/weights/progress.py": "met by the tests of load_weights and of checkpoints",
    "disco_client/inspecting.py": "met by conformance/test_diagnosis",
    "disco_client/transport/inspecting.py": "one call, met by test_trace",
    "disco_client/transport/watching.py": "met by the controller's test_watching",
    "disco_server/cli/looking.py": "met by test_trace and test_doctor_sessions",
    "disco_server/runtime/function_names.py": "met by test_executor",
    "disco_server/runtime/fitting.py": "met by test_executor",
    "disco_server/runtime/outlet.py": "a protocol, met by every executor's tests",
    "disco_server/runtime/offered.py": "imports, met by every session",
    "disco_server/embedded/rank_child.py": "one child process, met by test_children",
    "disco_server/embedded/rank_thread.py": "one worker thread, met by test_threaded",
    "disco_server/worker/node_arrays.py": "met by the tests of the doors for arrays",
    "disco_server/worker/node_session.py": "one record",
    "disco_server/controller/tally.py": "counts, met by test_metrics",
    "disco_client/telemetry/base.py": "a span that does nothing, met by every session",
    **dict.fromkeys(
        ("disco_server/controller/spans.py", "disco_server/worker/spans.py"),
        "met by cluster/test_spans",
    ),
    "disco_server/worker/metrics.py": "met by controller/test_metrics",
    "disco_server/embedded/shared_arrays.py": "met by the copies of test_process",
}


def sources(*places: str) -> Iterator[Path]:
    """The Python files in some folders, generated ones left out."""
    for place in places:
        for file in sorted((ROOT / place).rglob("*.py")):
            if GENERATED not in file.parents:
                yield file


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def mirror(module: Path) -> Path:
    """Where the tests of a module belong."""
    inside = module.relative_to(ROOT)
    return ROOT / "tests" / inside.parent / f"test_{inside.name}"


def modules() -> list[Path]:
    return [file for file in sources(*PACKAGES) if not file.name.startswith("__")]


def test_no_file_is_too_long():
    """A file that outgrows the limit is two files."""
    lengths = {name(file): len(file.read_text().splitlines()) for file in sources(*PLACES)}
    long = [f"{file} has {lines} lines" for file, lines in lengths.items() if lines > MAX_LINES]
    assert not long, f"split what exceeds {MAX_LINES} lines:\n" + "\n".join(long)


def test_every_test_says_what_it_shows():
    """Each test function has a docstring that states the behaviour."""
    silent = [
        f"{name(file)}:{node.lineno} {node.name}"
        for file in sources("tests")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not silent, "give a docstring to each of:\n" + "\n".join(silent)


def test_every_module_has_its_test_file():
    """The tests of a/b.py are in tests/a/test_b.py."""
    missing = [
        f"{name(module)} wants {name(mirror(module))}"
        for module in modules()
        if not mirror(module).exists() and name(module) not in UNMIRRORED
    ]
    assert not missing, (
        "write these test files, or say in UNMIRRORED of tests/house/test_layout.py "
        "why there is none:\n" + "\n".join(missing)
    )


def test_the_list_of_exceptions_is_honest():
    """No entry outlives its module or its excuse."""
    known = {name(module) for module in modules()}
    gone = [entry for entry in UNMIRRORED if entry not in known]
    tested = [entry for entry in UNMIRRORED if mirror(ROOT / entry).exists()]
    assert not gone, f"remove from UNMIRRORED, no such module: {gone}"
    assert not tested, f"remove from UNMIRRORED, has a test now: {tested}"
