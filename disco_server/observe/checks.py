"""Checks of a machine, made in a child process.

Libraries of drivers, GPUs and MPI can crash, hang or change the process that loads
them. So they are checked in a child process, which announces each check before it
begins: if it ends or gets stuck, that check is broken, and the caller is not. The
child's half is `tell`, the caller's is `ask`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import IO, Any, cast

from disco_client.clock import monotonic
from disco_server.observe.lifetime import PARENT_VARIABLE, die_with_parent_in

__all__ = ["Check", "CheckResult", "State", "ask", "first_line", "tell"]


_ANSWERS_VARIABLE = "DISCO_ANSWERS_FD"
_LOOK_S = 0.01
"""How often to look whether a child has ended; it takes tenths of a second to begin."""

_KILLED_S = 2.0
"""How long to wait for a killed child; one that is stuck in a driver may never end."""


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: Of the check.
        state: What it showed.
        detail: What was found, in a few words without a full stop.
        hint: What to do about it; empty where there is nothing to do.
        facts: The same for programs: values that JSON has.
    """

    name: str
    state: State
    detail: str
    hint: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """Its fields, as JSON."""
        return {**asdict(self), "state": self.state.value}


Check = tuple[str, Callable[[], CheckResult]]
"""The name of a check, and the function that makes it."""


def first_line(error: BaseException) -> str:
    """The kind of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# --- the child ---------------------------------------------------------------


def tell(checks: Iterable[Check]) -> None:
    """Runs checks in this process, which `ask` started, and reports the outcome of each.

    Output of libraries cannot be mistaken for an answer: answers have a file of their own.
    """
    die_with_parent_in(os.environ)
    with os.fdopen(int(os.environ.pop(_ANSWERS_VARIABLE)), "w", buffering=1) as answers:
        for name, check in checks:
            print(json.dumps({"looking": name}), file=answers)
            try:
                found = check()
            except (Exception, SystemExit) as error:  # noqa: BLE001  (libraries even exit)
                found = CheckResult(name, State.BROKEN, first_line(error))
            print(json.dumps(found.as_json()), file=answers)


# --- the caller --------------------------------------------------------------


def ask(
    module: str,
    arguments: Iterable[str] = (),
    *,
    checks: Mapping[str, str],
    timeout: float,
    environ: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Runs a module in a child process and returns a result for each check.

    Args:
        module: One that calls `tell`.
        arguments: Its command line.
        checks: The names of its checks in their order, each with a hint for the case
            that the child does not survive it.
        timeout: Seconds until the child counts as stuck.
        environ: The child's environment; by default this process's.
    """
    inherited = os.environ if environ is None else environ
    # Files, because a grandchild may hold a pipe open, and reading would wait for it.
    with (
        tempfile.TemporaryFile() as answers,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        own = {PARENT_VARIABLE: str(os.getpid()), _ANSWERS_VARIABLE: str(answers.fileno())}
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=(answers.fileno(),),
            env={**inherited, **own},
            start_new_session=True,
        )
        try:
            status = _await(child, timeout)
        finally:
            _end(child)
        late = f"did not come back within {timeout:g} s"
        ended = late if status is None else _describe(status)
        # A library may buffer what it prints until it exits, and complains at once.
        said = _last_line(errors) or _last_line(output)
        return list(_results(list(_answers(answers)), checks, f"{ended}{said}"))


def _await(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Waits for a child's status as `Popen.wait` does, whose clock programs can move."""
    until = monotonic() + seconds
    while (status := child.poll()) is None and monotonic() < until:
        time.sleep(_LOOK_S)
    return status


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    _await(child, _KILLED_S)


def _describe(status: int) -> str:
    if status >= 0:
        return f"ended the process with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    return f"ended the process with {name}"


def _last_line(stream: IO[bytes]) -> str:
    stream.seek(0)
    lines = stream.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f" ({said[-1]})" if said else ""


def _answers(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    stream.seek(0)
    for line in stream.read().decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the last one may be cut
            answer: object = json.loads(line)
            if isinstance(answer, dict):
                yield cast("dict[str, Any]", answer)


def _results(
    answers: list[dict[str, Any]], checks: Mapping[str, str], ended: str
) -> Iterator[CheckResult]:
    found = {each["name"]: each for each in answers if "name" in each}
    begun = {each["looking"] for each in answers if "looking" in each}
    guilty = ""
    for name, hint in checks.items():
        if name in found:
            fields = found[name]
            state = State(fields["state"])
            yield CheckResult(name, state, fields["detail"], fields["hint"], fields["facts"])
        elif guilty:
            detail = f"not looked at, because of {guilty}"
            yield CheckResult(name, State.NOT_APPLICABLE, detail)
        else:
            guilty = name
            what = f"looking at {name}" if name in begun else f"getting ready to look at {name}"
            yield CheckResult(name, State.BROKEN, f"{what} {ended}", hint)
