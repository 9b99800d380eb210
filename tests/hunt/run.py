"""Repeats a suite of hypothesis with fresh seeds: ``make hunt SUITE=scalars MINUTES=20``.

Each round is a pytest of its own, with a seed of its own and more examples than the suite has
in CI, so that one that hangs or crashes is a finding as well. A finding is printed with its
shrunk example, its seed and the command that repeats it. Ctrl-C ends the hunt with its summary.
Exit code 0 without findings; 1 with some; 2 where there is nothing to run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUPPORT = HERE.parent / "support"
BUILD = ROOT / "build" / "hunt"
sys.path.insert(0, str(SUPPORT))

from hunting import VARIABLE  # noqa: E402  (found by the path above)

PATIENCE_S = 900
"""How long one test of a round may take before it counts as one that hangs."""

END_S = 60.0
"""How long a round may take to end after Ctrl-C."""

LONGEST = 4000
"""How many characters of a finding are printed; the log has all of it."""

CLEAN, FOUND, NOTHING_TO_RUN = 0, 1, 2
_RAN = (0, 1)
_NOT_RUN = (4, 5)
"""Exit codes of pytest: for tests that passed or failed, and for a wrong call or no test."""


class NothingToRun(Exception):
    """No tests go by that name, or pytest cannot run them."""


def suites():
    """The suites of this folder, by name."""
    found = {file.stem.removeprefix("test_"): file for file in sorted(HERE.glob("test_*.py"))}
    return {name: file.relative_to(ROOT) for name, file in found.items() if name != "run"}


def tests_of(name):
    """What pytest is to run for the name of a suite, or for the path of some tests."""
    known = suites()
    if name in known:
        return str(known[name])
    if name and (ROOT / name.partition("::")[0]).exists():
        return name
    said = f"there is no suite {name!r}" if name else "expected a suite"
    names = "".join(f"    {suite:12} {file}\n" for suite, file in known.items())
    msg = f"{said}; the suites are\n{names}and any path of tests of hypothesis"
    raise NothingToRun(msg)


def end(process):
    """Ends a round that was interrupted, and what it has started."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Hunt:
    """Rounds of one suite.

    Attributes:
        rounds: How many have ended.
        examples: How many they have tried.
        findings: The seed that found it first, for each by its test and the beginning of its error.
    """

    def __init__(self, name, seed=None):
        self.name, self.tests, self.seed = name, tests_of(name), seed
        self.rounds, self.examples, self.findings = 0, 0, {}
        self.folder = BUILD / re.sub(r"\W+", "-", self.tests.removesuffix(".py"))
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, minutes):
        """Runs rounds until the time is over, at least one, and the last one to its end."""
        started = time.monotonic()
        until = started + (0 if self.seed is not None else minutes * 60)
        heading = ("round", "seed", "examples", "in all", "findings", "s")
        with contextlib.suppress(KeyboardInterrupt):
            print(f"hunting with {self.tests}\n")
            print("{:>5} {:>11} {:>10} {:>10} {:>9} {:>6}".format(*heading), flush=True)
            while not self.rounds or time.monotonic() < until:
                self.round(secrets.randbits(32) if self.seed is None else self.seed)
        took = (time.monotonic() - started) / 60
        print(f"\nrounds: {self.rounds}, examples: {self.examples:,}", end=", ")
        print(f"findings: {len(self.findings)}, minutes: {took:.1f}")
        for (test, error), seed in self.findings.items():
            print(f"  {test}\n    {error}, seed {seed}")

    def round(self, seed):
        """Runs the tests once."""
        started = time.monotonic()
        record, log = self.folder / "record", self.folder / f"{seed}.log"
        record.unlink(missing_ok=True)
        code = self._pytest(seed, record, log)
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        tests = [json.loads(line) for line in lines]
        tried = sum(test["examples"] for test in tests)
        found = [(test["test"], text) for test in tests for text in test["failures"]]
        tail = log.read_text(encoding="utf-8", errors="replace")[-LONGEST:]
        if code in _NOT_RUN or (code == 0 and not tried):
            msg = f"{self.tests} has tried no example:\n{tail}"
            raise NothingToRun(msg)
        if code not in (None, *_RAN) or (code and not found):
            found.append((self.tests, f"the round ended with {code}\n{tail}"))
        new = self._take(seed, found)
        self.rounds, self.examples = self.rounds + 1, self.examples + tried
        print(
            f"{self.rounds:>5} {seed:>11} {tried:>10,} {self.examples:>10,} "
            f"{len(self.findings):>9} {time.monotonic() - started:>6.0f}",
            flush=True,
        )
        for test, text in new:
            self._print(seed, test, text, log)
        if not found:
            log.unlink()
        if code is None:
            raise KeyboardInterrupt

    def _pytest(self, seed, record, log):
        """Runs pytest and returns its exit code, or None where Ctrl-C has ended it."""
        options = ("-q", "-p", "hunting", "-p", "no:cacheprovider")
        hypothesis = ("--hypothesis-profile=hunt", f"--hypothesis-seed={seed}")
        command = (*options, *hypothesis, f"--timeout={PATIENCE_S}", self.tests)
        path = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
        # The order of sets is a part of what a seed decides.
        decided = {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed % 2**32)}
        with log.open("wb") as out:
            # In a session of its own: Ctrl-C comes to this process alone, which ends the round.
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *command],
                cwd=ROOT,
                env={**os.environ, **decided, VARIABLE: str(record)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                return process.wait()
            except KeyboardInterrupt:
                end(process)
                return None

    def _take(self, seed, found):
        """Keeps what a round has found, and returns what no round has found before it."""
        new = []
        for test, text in found:
            # Numbers differ between two examples of one fault.
            key = (test, re.sub(r"\d+", "#", text.partition("\n")[0])[:160])
            if key not in self.findings:
                self.findings[key] = seed
                new.append((test, text))
        return new

    def _print(self, seed, test, text, log):
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... see the log"
        print(f"\n  {test}")
        print("".join(f"    {line}\n" for line in shown.splitlines()))
        print(f"  seed: {seed}\n  log: {log.relative_to(ROOT)}")
        print(f"  again: make hunt SUITE={self.name} SEED={seed}\n", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", nargs="?", default="", help="a name, or a path of tests")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, help="run one round, with this seed")
    given = parser.parse_args(arguments)
    try:
        hunt = Hunt(given.suite, given.seed)
        hunt.run(given.minutes)
    except NothingToRun as error:
        print(f"hunt: {error}", file=sys.stderr)
        return NOTHING_TO_RUN
    return FOUND if hunt.findings else CLEAN


if __name__ == "__main__":
    sys.exit(main())
