"""Resources x waits: what a session waits for comes right, or an error names what there is none of.

Each example is a program of its own (``fault_tools.exhausting``), which goes through the waits
of a session's life, from opening to leaving it. Before one of them it runs out of something, or
its clock or its standard error are not what they were; after the same or a later one, all is as
before, or it ends without that. Whatever is the case, it ends by itself and leaves nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from disco_client.transport.admin import close_session, list_cluster
from disco_client.transport.channel import ReloadingChannel
from fault_tools.clock import Clock, NoClock
from fault_tools.exhausting import KINDS, RESOURCES, WAITS, Case
from fault_tools.namespaces import NoNamespaces, in_own_mounts
from fault_tools.processes import marked

pytestmark = pytest.mark.timeout(1800)

EXAMPLES = 30
"""They take a second or three each."""

PATIENCE_S = 60.0
"""A program that takes longer hangs."""

LEFT_S = 30.0
"""How long what a program has left may take to end; a session of a cluster has a lease."""

LEASES = ("--session-lease", "10")
MARK = "EXHAUSTING"
FUNCTIONS = Path(__file__).parents[1] / "worker_modules"
SUPPORT = Path(__file__).parents[1] / "support"
FIRST_USER, USERS = 100_000, 1_000
"""Limits of threads are those of a user, so each program that lacks them has one of its own, also
beside those of another test process, which has as many others."""

NAMES = {
    "descriptors": r"open files|descriptor",
    "threads": r"thread|process|Resource temporarily unavailable",
    "memory": r"[Mm]emory|allocate",
    "shared memory": r"shared memory|/dev/shm|No space left|no space left",
    "disk": r"[Nn]o space left|disk",
}
"""What an error says of a resource; of the others, none may be noticed."""

FINDINGS = {what: type(what.title().replace(" ", ""), (AssertionError,), {}) for what in RESOURCES}
"""A class for each resource, because hypothesis shows one finding of each class."""

MAY_RAISE = {"DiscoError", "OSError", "MemoryError"}
ENDS = {0, 120}
"""Exit codes; the second is Python's own where standard error took nothing at last."""


class Place:
    """Where the programs run: with small file systems of their own, beside a small cluster.

    Args:
        daemons: Starts the daemons of the cluster.
        folder: For files.

    Raises:
        NoClock, NoNamespaces: This machine lacks what that needs.
    """

    def __init__(self, daemons: Any, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._disk = folder / "disk"
        self._disk.mkdir()
        self._clock = Clock(folder)
        sizes = (("48m", "/dev/shm"), ("16m", self._disk))
        mounts = [f"mount -t tmpfs -o size={size} small {where}" for size, where in sizes]
        daemons.prefix = in_own_mounts(" && ".join(mounts))
        controller = daemons.controller(*LEASES)
        self._address = controller.address
        allowed = [f"--allow-{what}={self._disk}" for what in ("save", "read")]
        node = daemons.worker(self._address, "--slots", "2", *allowed)
        self._within: int = node.process.pid
        self.wrong_with = functools.cache(self._run)

    def _prefix(self, case: Case) -> list[str]:
        inside = ["nsenter", "-t", str(self._within), "--mount", "--"]
        if case.what != "threads":
            return inside
        user = [
            "setpriv",
            f"--reuid={FIRST_USER + os.getpid() * USERS + self._count % USERS}",
            "--clear-groups",
        ]
        # It reads what this user can, who may be the only one to see the interpreter.
        reads = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
        return [*inside, *user, *reads]

    def _run(self, case: Case) -> str:
        """Runs an example to its end; returns what is wrong with it."""
        self._count += 1
        folder = self._folder / str(self._count)
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        for each in (folder, temporary):
            each.chmod(0o777)
        report, printed = folder / "report", folder / "printed"
        told = replace(case, address=self._address, disk=str(self._disk), report=str(report))
        path = (str(FUNCTIONS), str(SUPPORT), os.environ.get("PYTHONPATH"))
        mark = {MARK: f"{os.getpid()}-{self._count}"}
        env = {
            **os.environ,
            **mark,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TMPDIR": str(temporary),
        }
        if case.what.startswith("clock"):
            self._clock.jump(0)
            env |= self._clock.env
        program = [sys.executable, "-m", "fault_tools.exhausting", json.dumps(asdict(told))]
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [*self._prefix(case), *program],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        wrong = _how_it_ended(process, report)
        lines = report.read_text().splitlines() if report.exists() else []
        wrong += judged(case, [json.loads(line) for line in lines])
        wrong += self._left_behind(mark, temporary)
        if wrong:
            wrong.append(printed.read_text(errors="replace")[-2000:])
        return "\n".join(wrong)

    def _left_behind(self, mark: dict[str, str], temporary: Path) -> list[str]:
        """What is left after a program; takes away what it was allowed to leave."""
        root = Path(f"/proc/{self._within}/root")
        memory = root / "dev/shm"
        for each in (memory / "filled", root / f"{self._disk}/filled".lstrip("/")):
            each.unlink(missing_ok=True)
        for saved in (root / str(self._disk).lstrip("/")).iterdir():
            shutil.rmtree(saved)
        ((name, value),) = mark.items()
        looks: dict[str, Callable[[], list[Any]]] = {
            "processes": lambda: marked(f"{name}={value}"),
            "sessions": self._sessions,
            "files in /dev/shm": lambda: [each.name for each in memory.iterdir()],
            "temporary files": lambda: list(temporary.iterdir()),
        }
        until, found = time.monotonic() + LEFT_S, {}
        while True:
            found = {what: there for what, look in looks.items() if (there := look())}
            if not found or time.monotonic() > until:
                break
            time.sleep(0.05)
        for process in found.get("processes", ()):
            with contextlib.suppress(psutil.Error):
                process.kill()
        for session in found.get("sessions", ()):
            with self._line() as line:
                close_session(line, session)
        return [f"{what} are left: {there}" for what, there in found.items()]

    def _line(self) -> contextlib.closing[ReloadingChannel]:
        return contextlib.closing(ReloadingChannel(self._address))

    def _sessions(self) -> list[str]:
        with self._line() as line:
            return [each.name for each in list_cluster(line).sessions]


def _how_it_ended(process: subprocess.Popen[bytes], report: Path) -> list[str]:
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return [f"it hangs:\n{Path(f'{report}.trace').read_text()}"]
    return [] if code in ENDS else [f"it ended with {code}"]


def judged(case: Case, told: list[dict[str, Any]]) -> list[str]:
    """What is wrong with what became of the waits of a program."""
    wrong, lost = [], False
    for each in told:
        wait, errors = each["wait"], each["errors"]
        if not errors:
            continue
        classes = set(errors[0][0])
        names = case.what in NAMES and any(
            "MemoryError" in kinds or re.search(NAMES[case.what], text) for kinds, text in errors
        )
        may = (each["short"] or wait == "drain") and MAY_RAISE & classes and (names or lost)
        if not may:
            wrong.append(f"{wait}: {errors[0][0][0]}: {errors[0][1]}")
        lost = lost or "SessionLost" in classes
    return wrong


@pytest.fixture(scope="module")
def place(shared_daemons: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Runs programs; what they need is made once."""
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("expected root and setpriv, to run programs as users of their own")
    folder = tmp_path_factory.mktemp("programs")
    for each in (folder, folder.parent, folder.parent.parent):
        each.chmod(0o755)  # users of their own go through it
    try:
        yield Place(shared_daemons, folder)
    except (NoNamespaces, NoClock) as error:
        pytest.skip(str(error))


@settings(max_examples=EXAMPLES)
@given(
    kind=st.sampled_from(KINDS),
    what=st.sampled_from(list(RESOURCES)),
    left=st.integers(0, 2),
    first=st.integers(0, len(WAITS) - 1),
    more=st.integers(0, 2),
    back=st.booleans(),
    again=st.booleans(),
)
def test_each_wait_comes_right_or_names_what_is_missing(
    place: Place,
    kind: str,
    what: str,
    left: int,
    first: int,
    more: int,
    back: bool,
    again: bool,
) -> None:
    """Afterwards the session goes on with right values, unless its loss was named; it ends."""
    last = min(first + more, len(WAITS) - 1)
    # An extension module that finds no memory when it is loaded is an ImportError of Python's.
    again = again or what == "memory"
    case = Case(kind, what, left, WAITS[first], WAITS[last], back, again)
    note(str(case))
    if wrong := place.wrong_with(case):
        raise FINDINGS[what](wrong)
