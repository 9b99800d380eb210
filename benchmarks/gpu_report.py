"""Tests and measures Disco on this machine's GPUs, and writes one report: what `make gpu` runs.

It needs the standard library alone and uses no GPU itself: each part is a program of its own, with
a share of the time. One that is still running then is interrupted, and the report has what it
had. Time that a part leaves over goes to those after it.

Exit code 0; 1 where a part failed or was interrupted; 2 where there is no GPU, of which no report
is written, or the arguments are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from disco_bench.gpu_pages import GpuMachine, PartOutcome, render

__all__ = ["main"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_REPORTS: Final = _ROOT / "docs" / "gpu-reports"
_SECONDS: Final = 540.0
_GRACE_S: Final = 12.0
"""How long a part that was interrupted has to write what it had, and to end what it started."""
_LOOK_S: Final = 60.0
_LAST_LINES: Final = 15
_NONE: Final = 2

_ASKED: Final = "index,name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"

# A stand-in for cupy says that it is one.
_LOOK: Final = """
import json, cupy
runtime = cupy.cuda.runtime
names = [runtime.getDeviceProperties(n)["name"].decode() for n in range(runtime.getDeviceCount())]
print(json.dumps({"gpus": names, "standin": bool(getattr(cupy, "STANDIN", False))}))
"""


@dataclass(frozen=True)
class _ReportPart:
    """A part of the report.

    Attributes:
        name: What the report calls it.
        share: Of the time, as a number that is compared with those of the other parts.
        arguments: The interpreter's; FILE stands for where it writes what it found.
        file: The end of that file's name; empty where its output is what it found.
    """

    name: str
    share: float
    arguments: tuple[str, ...]
    file: str = ""

    @classmethod
    def of_tests(cls, name: str, share: float, folder: str) -> _ReportPart:
        """A part that runs the tests for GPUs of a folder."""
        return cls(name, share, ("-m", "pytest", "--suite=gpu", folder, "--junitxml=FILE"), "xml")


_PARTS: Final = (
    _ReportPart("doctor", 5, ("-m", "disco_server.cli.main", "doctor", "--gpu", "--json")),
    _ReportPart.of_tests("basics", 15, "tests/gpu"),
    _ReportPart("figures", 25, ("benchmarks/gpu.py", "--json", "FILE"), "json"),
    _ReportPart.of_tests("examples", 15, "tests/examples"),
    _ReportPart.of_tests("conformance", 40, "tests/conformance"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    end = time.monotonic() + options.seconds
    try:
        found = _look()
    except LookupError as error:
        print(f"gpu: {error}; `disco doctor --gpu` says more", file=sys.stderr)
        return _NONE
    if found.standin and options.output is None:
        print(
            "gpu: cupy is a stand-in here, of which no report is kept; --output takes one",
            file=sys.stderr,
        )
        return _NONE
    chosen = [part for part in _PARTS if not options.only or part.name in options.only]
    outcomes: list[PartOutcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(chosen):
            left = end - time.monotonic()
            limit = left * part.share / sum(each.share for each in chosen[number:])
            print(f"gpu: {part.name}, {limit:.0f} s at most ...", file=sys.stderr, flush=True)
            outcomes.append(_run(part, limit, Path(folder), quick=options.quick))
            print(f"gpu: {part.name} {outcomes[-1].ending}", file=sys.stderr, flush=True)
    target = options.output or _REPORTS
    target.mkdir(parents=True, exist_ok=True)
    file = target / found.file_name
    file.write_text(render(found, outcomes, _ROOT), encoding="utf-8")
    print(file)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu_report.py", description="Tests and measures Disco on GPUs."
    )
    names = [part.name for part in _PARTS]
    parser.add_argument("--only", action="append", choices=names, help="a part of it; repeatable")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="how long all of it may take (%(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="write the report there (docs/gpu-reports)"
    )
    parser.add_argument("--quick", action="store_true", help="figures only show that all works")
    return parser.parse_args(arguments)


def _look() -> GpuMachine:
    """Finds the GPUs.

    Raises:
        LookupError: There is none that cupy can use; the message says why.
    """
    command = [sys.executable, "-c", _LOOK]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LOOK_S
        )
    except subprocess.TimeoutExpired:
        msg = f"no GPU that cupy can use: it did not answer within {_LOOK_S:.0f} s"
        raise LookupError(msg) from None
    if asked.returncode:
        said = asked.stderr.strip().splitlines() or ["cupy says nothing"]
        msg = f"no GPU that cupy can use: {said[-1]}"
        raise LookupError(msg)
    known: dict[str, Any] = json.loads(asked.stdout)
    return GpuMachine(
        names=known["gpus"],
        standin=known["standin"],
        when=datetime.now(UTC),
        commit=_say("git", "describe", "--always", "--dirty", "--abbrev=12"),
        topology=_say("nvidia-smi", "topo", "-m"),
        driver=_say("nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv"),
    )


def _say(*command: str) -> str:
    """What a program says; empty where it is not there or fails."""
    try:
        return subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=30
        ).stdout.rstrip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _run(part: _ReportPart, limit: float, folder: Path, *, quick: bool) -> PartOutcome:
    """Runs a part for so many seconds at most."""
    log, file = folder / f"{part.name}.log", folder / f"{part.name}.{part.file}"
    shown = [*part.arguments, *(["--quick"] if quick and part.file == "json" else [])]
    arguments = [each.replace("FILE", str(file)) for each in shown]
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=_ROOT,
            env=_environ(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL if part.name == "doctor" else subprocess.STDOUT,
            start_new_session=True,
        )
        ended = _await(process, limit)
    text = log.read_text(errors="replace")
    data = text if not part.file else file.read_text() if file.exists() else ""
    return PartOutcome(
        name=part.name,
        command=" ".join(shown),
        kind=part.file,
        seconds=time.monotonic() - started,
        limit=limit,
        code=process.returncode,
        interrupted=ended,
        data=data,
        collected=_collected(text),
        last="\n".join(text.splitlines()[-_LAST_LINES:]),
    )


def _await(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Waits for a program; whether it had to be interrupted. Nothing that it started goes on."""
    try:
        process.wait(max(limit - _GRACE_S, 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        return True
    else:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environ() -> dict[str, str]:
    """Where Disco need not be installed, it is found here."""
    path = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _collected(text: str) -> int:
    """How many tests pytest was about to run; 0 where it did not say."""
    found = re.search(r"collected (\d+) items?(?:.* (\d+) selected)?", text)
    return int(found[2] or found[1]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
