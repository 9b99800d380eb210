"""Measures two installations of Disco in alternation, each run in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from disco_bench.child import BENCHMARKS
from disco_bench.comparison import Comparison

__all__ = ["Alternation", "Installation", "NoInstallation", "SectionRun"]

_PROGRAM = Path("benchmarks", "run.py")
_RUN_S = 3600.0
"""After this long a run counts as one that hangs."""

_END_S = 10.0
_LAST_WORDS = 600
_UNKNOWN_SECTION = 2
"""Exit code of a program that knows no such section."""

_VERSION = """
import compileall, os
import disco_client, disco_server
for each in (disco_client, disco_server):
    compileall.compile_dir(os.path.dirname(each.__file__), quiet=2)
print(disco_client.__version__)
print(disco_client.__file__)
"""
"""Also compiles it: where Python writes no bytecode, changed files cost time and memory."""


class NoInstallation(Exception):
    """A path leads to no installation of Disco that can be measured."""


class SectionRun(NamedTuple):
    """One run of a section.

    Attributes:
        rows: Its rows as data; empty where it could not be run.
        why: Why it could not, else empty.
        unknown: Whether that is because the version has no such section.
    """

    rows: Sequence[dict[str, Any]]
    why: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Installation:
    """A Disco that can be measured.

    Attributes:
        python: Its interpreter.
        program: What measures it.
        sources: The checkout whose sources it runs; None for what the interpreter has installed.
        version: What it calls itself.
    """

    python: Path
    program: Path
    sources: Path | None
    version: str

    @classmethod
    def this(cls) -> Installation:
        """The one that this program belongs to."""
        return cls._checked(Path(sys.executable), BENCHMARKS / "run.py", BENCHMARKS.parent)

    @classmethod
    def at(cls, path: Path) -> Installation:
        """The one that a path leads to.

        Args:
            path: A checkout, which is measured by its own program, with the interpreter
                of its ``.venv`` where it has one; or an interpreter or its environment, whose
                installation is measured by this program.

        Raises:
            NoInstallation: It is neither.
        """
        path = path.absolute()  # not resolved: a link to an interpreter is an environment
        if (path / _PROGRAM).is_file():
            own = path / ".venv" / "bin" / "python"
            python = own if own.exists() else Path(sys.executable)
            return cls._checked(python, path / _PROGRAM, path)
        python = path / "bin" / "python" if path.is_dir() else path
        if not python.is_file():
            msg = f"expected a checkout with {_PROGRAM}, or a Python that has Disco, got {path}"
            raise NoInstallation(msg)
        return cls._checked(python, BENCHMARKS / "run.py", None)

    @classmethod
    def _checked(cls, python: Path, program: Path, sources: Path | None) -> Installation:
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = subprocess.run(
                    [str(python), "-c", _VERSION],
                    cwd=folder,
                    env=_environ(sources),
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except OSError as error:
                msg = f"{python} cannot be run: {error}"
                raise NoInstallation(msg) from None
        if done.returncode:
            msg = f"{python} cannot import Disco:\n{done.stderr[-_LAST_WORDS:].strip()}"
            raise NoInstallation(msg)
        version, where = done.stdout.splitlines()
        return cls(python, program, sources, f"{version} of {Path(where).parents[1]}")

    def run(self, section: str, *, quick: bool) -> SectionRun:
        """Measures a section once, in processes that end with it."""
        with tempfile.TemporaryDirectory(prefix="disco-bench-") as folder:
            file = Path(folder, "figures.json")
            command = [str(self.python), str(self.program), "--only", section, "--json", str(file)]
            command += ["--quick"] if quick else []
            code, said = _finish(command, Path(folder), _environ(self.sources))
            if file.exists():
                return SectionRun(json.loads(file.read_text(encoding="utf-8"))["rows"])
        if code == _UNKNOWN_SECTION:
            return SectionRun((), f"has no section {section}", unknown=True)
        return SectionRun((), f"ended with {code}: {said}")


def _environ(sources: Path | None) -> dict[str, str]:
    """An environment in which Python finds these sources, or what is installed, and no others."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environ if sources is None else {**environ, "PYTHONPATH": str(sources)}


def _finish(command: Sequence[str], folder: Path, environ: dict[str, str]) -> tuple[object, str]:
    """Runs a command to its end; its exit code and what it said last."""
    log = folder / "log"
    with log.open("wb") as out:
        # Of its own group, so that nothing it has started is left; and no folder of
        # sources is where it runs, as Python looks there for modules first.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code: object = process.wait(_RUN_S)
        except subprocess.TimeoutExpired:
            code = f"no figure within {_RUN_S:.0f} s"
        finally:
            _end(process)
    said = log.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip()
    return code, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command, if it runs, and what it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # so that it ends its cluster
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Alternation:
    """Runs of the same sections by two installations.

    A round measures each section by both, one right after the other, and rounds change
    who is first. All sections have a round before any has the next one, so that the runs
    of one version lie far apart, and what they differ by is what the machine does in that time.

    Args:
        this: The installation in question.
        other: What it is compared with.
        quick: Whether runs are short.
        minutes: After so many no run is begun; None for no limit.

    Attributes:
        comparison: What they have found.
        left_out: How many rounds of each section there was no time for.
    """

    def __init__(
        self,
        this: Installation,
        other: Installation,
        *,
        quick: bool = False,
        minutes: float | None = None,
    ) -> None:
        self._this, self._other, self._quick = this, other, quick
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        self._took: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        self._alone: set[str] = set()
        self.comparison = Comparison()
        self.left_out: Counter[str] = Counter()

    def measure(self, sections: Sequence[str], rounds: int) -> None:
        """Measures sections, and those in which a row looks worse as often again."""
        for _ in range(rounds):
            self._round(sections)
        for _ in range(rounds):
            suspects = self.comparison.suspects()
            self._round([section for section in sections if section in suspects])

    def _round(self, sections: Sequence[str]) -> None:
        for section in sections:
            if section in self._alone:
                continue
            if self._has_time(section):
                self._measure(section)
            else:
                self.left_out[section] += 1

    def _has_time(self, section: str) -> bool:
        """Whether a section would end in time, if it takes as long as before."""
        left = None if self._until is None else self._until - time.monotonic()
        return left is None or left > self._took.get(section, 0.0)

    def _measure(self, section: str) -> None:
        turn = self._turns[section] = self._turns.get(section, 0) + 1
        print(f"measuring {section}, run {turn} of each ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        if turn % 2:
            ours, theirs = self._run(self._this, section), self._run(self._other, section)
        else:
            theirs, ours = self._run(self._other, section), self._run(self._this, section)
        self._took[section] = time.monotonic() - started
        if theirs.unknown:
            self._alone.add(section)
        self.comparison.add(ours.rows, theirs.rows, theirs.why and f"the other {theirs.why}")
        if ours.why:
            self.comparison.fail(section, ours.why)

    def _run(self, installation: Installation, section: str) -> SectionRun:
        return installation.run(section, quick=self._quick)
