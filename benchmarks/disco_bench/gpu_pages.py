"""The report of a machine with GPUs, as a page: what was run there, and what came of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from disco_bench.table import Limit, describe_figure

__all__ = ["GpuMachine", "PartOutcome", "render"]

_MESSAGE: Final = 300
"""How much of what a failed test says."""

_STANDIN: Final = """**No GPU was used.** cupy is the stand-in of `tests/standin`, which computes
with numpy on the host: this page shows that the report works, and says nothing about any GPU.
"""


class GpuMachine(NamedTuple):
    """Where it was run.

    Attributes:
        names: Of the GPUs.
        standin: Whether they are those of the stand-in for cupy, and no GPUs.
        when: The time of the beginning, in UTC.
        commit: Of the sources; empty where that is not known.
        topology: How the GPUs are connected, as the driver's tool says it; empty where it does not.
        driver: What that says of each of them; likewise.
    """

    names: list[str]
    standin: bool
    when: datetime
    commit: str
    topology: str
    driver: str

    @property
    def title(self) -> str:
        """How many of what."""
        count = len(self.names)
        kinds = " and ".join(dict.fromkeys(self.names))
        return f"{count} pretended GPUs of a STAND-IN" if self.standin else f"{count} x {kinds}"

    @property
    def file_name(self) -> str:
        """By date and GPUs, so that each machine's newest report of a day is one file."""
        words = f"stand-in {len(self.names)}" if self.standin else self.title
        return f"{self.when:%Y-%m-%d}-{re.sub('[^a-z0-9]+', '-', words.lower())}.md"


@dataclass(frozen=True)
class PartOutcome:
    """What a part of the report has come to.

    Attributes:
        name: What it is called.
        command: Its arguments, without the interpreter.
        kind: What is in its data: ``xml`` of tests, ``json`` of figures, otherwise doctor's.
        seconds: How long it ran.
        limit: How long it might have.
        code: Its exit code.
        interrupted: Whether it was still running then.
        data: What it found; empty where it left nothing.
        collected: How many tests it was about to run; 0 where it did not say.
        last: The last lines that it printed.
    """

    name: str
    command: str
    kind: str
    seconds: float
    limit: float
    code: int
    interrupted: bool
    data: str
    collected: int
    last: str

    @property
    def passed(self) -> bool:
        """Whether it came to its end without a failure."""
        return self.code == 0 and not self.interrupted

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.interrupted:
            return f"interrupted after {self.seconds:.0f} of {self.limit:.0f} s, with what it had"
        return "passed" if self.passed else f"FAILED, exit code {self.code}"


def render(machine: GpuMachine, outcomes: Sequence[PartOutcome], root: Path) -> str:
    """Writes the page.

    Args:
        machine: Where it was run.
        outcomes: Of the parts, in their order.
        root: The sources' folder, which the page does not name.
    """
    lines = [f"# Disco on {machine.title}", ""]
    if machine.standin:
        lines += [_STANDIN]
    commit = f" of commit {machine.commit}" if machine.commit else ""
    lines += [f"Made by `make gpu`{commit}, {machine.when:%Y-%m-%d %H:%M} UTC.", ""]
    lines += _table(("part", "command", "ended", "seconds"), map(_part_row, outcomes))
    lines += ["## GPUs", "", *_block(machine.driver or "nvidia-smi is not here or fails.")]
    lines += _block(machine.topology) if machine.topology else []
    for outcome in outcomes:
        note = ", ON THE STAND-IN" if machine.standin else ""
        lines += [f"## {outcome.name.capitalize()}{note}", "", *_found(outcome)]
        if not outcome.passed and outcome.kind:
            lines += ["Its last words:", "", *_block(outcome.last)]
    text = "\n".join(lines).rstrip() + "\n"
    return text.replace(f"{root}/", "").replace(sys.executable, "python")


def _found(outcome: PartOutcome) -> list[str]:
    """What a part found."""
    if not outcome.data:
        return ["It left nothing.", ""]
    try:
        return _PAGES[outcome.kind](outcome)
    except (ET.ParseError, ValueError):  # ended while it wrote that
        return ["What it left cannot be read.", ""]


def _part_row(outcome: PartOutcome) -> tuple[str, ...]:
    command = f"`python {outcome.command}`"
    return outcome.name, command, outcome.ending, f"{outcome.seconds:.0f}"


def _table(head: Sequence[str], rows: Iterator[Sequence[object]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    lines = [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in cells]
    return [*(f"| {line} |" for line in lines), ""]


def _block(text: str) -> list[str]:
    return ["```text", text, "```", ""]


def _doctor(outcome: PartOutcome) -> list[str]:
    """Versions and the state of what is needed; the machine's names and addresses stay there."""
    checks = json.loads(outcome.data)["checks"]
    rows = (
        (check["section"], check["name"], check["state"], check["detail"])
        for check in checks
        if check["section"] != "network"
    )
    return _table(("section", "check", "state", "found"), rows)


def _figures(outcome: PartOutcome) -> list[str]:
    content = json.loads(outcome.data)
    lines = [f"cupy {content['gpus']['cupy']}, load before {content['load_before']:.1f}."]
    if content["quick"]:
        lines += ["Measured with --quick: the figures only show that everything works."]
    rows = (_figure_row(row, judged=not content["quick"]) for row in content["rows"])
    head = ("what", "Disco", "beside", "ratio", "must", "outcome", "note")
    return [*lines, "", *_table(head, rows)]


def _figure_row(row: dict[str, Any], *, judged: bool) -> tuple[str, ...]:
    what, unit, limit, beside = row["what"], row["unit"], row["limit"], row["yardstick"]["name"]
    must = ""
    if limit and judged:
        bound = Limit(limit["of"], limit["must"], least=limit["at"] == "least")
        must = bound.describe(bound.must, unit)
    if row["status"] != "measured":
        return what, "-", beside, "", must, row["status"], row["note"]
    if row["yardstick"]["figure"] is not None:
        beside = f"{beside}: {describe_figure(row['yardstick']['figure'], unit)}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
    return (
        what,
        describe_figure(row["disco"], unit),
        beside,
        ratio,
        must,
        row["verdict"] if judged else "",
        row["note"],
    )


def _tests(outcome: PartOutcome) -> list[str]:
    """How many tests ended how; those that did not pass by their names."""
    (suite,) = ET.fromstring(outcome.data).iter("testsuite")  # noqa: S314  (pytest's)
    failed = [case for case in suite if _said(case, "failure") or _said(case, "error")]
    skipped = [case for case in suite if _said(case, "skipped")]
    # A test in the middle of which pytest was interrupted is among the cases, but not counted.
    ended = int(suite.get("tests", 0))
    passed = ended - len(failed) - len(skipped)
    counts = f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped"
    missing = outcome.collected - ended
    lines = [counts + (f", {missing} not run to their end." if missing > 0 else "."), ""]
    for case in failed:
        said = " ".join((_said(case, "failure") or _said(case, "error")).split())
        lines += [f"- FAILED `{_name(case)}`: {said[:_MESSAGE]}"]
    reasons: dict[str, dict[str, int]] = {}
    for case in skipped:
        names = reasons.setdefault(_said(case, "skipped"), {})
        name = _name(case).partition("[")[0]
        names[name] = names.get(name, 0) + 1
    for reason, names in reasons.items():
        many = (f"`{name}`" + (f" x {count}" if count > 1 else "") for name, count in names.items())
        lines += [f"- skipped, {reason}: {', '.join(many)}"]
    return [*lines, ""] if failed or skipped else lines


def _said(case: ET.Element, kind: str) -> str:
    """What a test says of its failure or why it was skipped; empty where it was not."""
    found = case.find(kind)
    return "" if found is None else found.get("message") or "without a word"


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


_PAGES: Final = {"": _doctor, "json": _figures, "xml": _tests}
