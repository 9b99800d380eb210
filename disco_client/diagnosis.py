"""What a session does at a moment: each rank, its stack, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from disco_client.verdict import duration, judge, name_ranks, step_in
from disco_client.wire.inspection import Inspection, NodeSilence, RankReport

__all__ = ["Diagnosis"]

_COLUMNS = ("rank", "node", "pid", "process", "last finished", "now")
_EXECUTOR = "/disco_server/runtime/executor.py"
"""Where a rank begins what a command asks for; what called that is the same for all."""

_HELPER = "_watch.py"
"""Whose threads only look at the clock."""


@dataclass(frozen=True)
class Diagnosis:
    """What the ranks of a session do, and what the session waits for.

    ``str()`` of it is a text to read; notebooks show a table.

    Attributes:
        session: The session's name.
        num_workers: How many ranks it has.
        verdict: What it waits for, in words.
        ranks: What is known of each rank, in order; a report has the node, the pid,
            the state of the process, the command that runs and the last one that
            ended, the collective that the rank is in, and its Python stack.
        silent: The nodes that did not answer.
        issued: The newest command that the client has issued; None where the client
            was not asked.
    """

    session: str
    num_workers: int
    verdict: str
    ranks: tuple[RankReport, ...]
    silent: tuple[NodeSilence, ...] = ()
    issued: int | None = None

    @classmethod
    def of(cls, found: Inspection, issued: int | None = None) -> Diagnosis:
        """Judges what was found out.

        Args:
            found: By a transport.
            issued: The newest command that was issued, where that is known.
        """
        verdict = judge(found.ranks, found.silent, issued)
        return cls(found.name, found.num_workers, verdict, found.ranks, found.silent, issued)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; keys are added to it and never change."""
        return {
            "session": self.session,
            "num_workers": self.num_workers,
            "verdict": self.verdict,
            "issued": self.issued,
            "ranks": [_as_dict(report) for report in self.ranks],
            "silent": [asdict(each) for each in self.silent],
        }

    def __str__(self) -> str:
        """A text: the verdict, a table of the ranks, and the stacks of those that are busy."""
        rows = [_COLUMNS, *map(_row, self.ranks)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines = [self._title(), f"verdict: {self.verdict}", "", *table]
        for workers, text in self._stacks():
            lines += ["", f"stack of {name_ranks(workers)}:", text]
        return "\n".join(lines)

    def _title(self) -> str:
        issued = f", commands issued up to #{self.issued}" if self.issued is not None else ""
        return f"session {self.session!r}: {self.num_workers} workers{issued}"

    def _stacks(self) -> Iterable[tuple[list[int], str]]:
        """The stacks of busy ranks; equal ones once."""
        found: dict[str, list[int]] = {}
        for report in self.ranks:
            text = _shorten(report.stack) if report.current is not None else ""
            if text or report.note:
                note = f"  ({report.note})" if report.note else ""
                whole = "\n".join(filter(None, (text, note)))
                found.setdefault(whole, []).append(report.worker)
        return ((workers, text) for text, workers in found.items())

    def _repr_html_(self) -> str:
        import html

        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _row(report)) + "</tr>"
            for report in self.ranks
        )
        stacks = "".join(
            f"<details><summary>stack of {name_ranks(workers)}</summary>"
            f"<pre>{html.escape(text)}</pre></details>"
            for workers, text in self._stacks()
        )
        return (
            f"<p>{html.escape(self._title())}</p><p><b>{html.escape(self.verdict)}</b></p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{stacks}"
        )


def _as_dict(report: RankReport) -> dict[str, Any]:
    plain = asdict(report)
    for key in ("flight", "emptied", "clock_offset_ns", "clock_error_ns", "clock_at_ns"):
        del plain[key]
    for key, command in (("current", report.current), ("finished", report.finished)):
        if command is not None:
            plain[key]["what"] = command.what
    return plain


def _row(report: RankReport) -> tuple[str, ...]:
    done = report.finished
    finished = "-"
    if done is not None:
        failed = ", failed" if done.failed else ""
        finished = f"#{done.seq} {done.what}{failed}, {duration(done.seconds)} ago"
    return (
        str(report.worker),
        report.node,
        str(report.pid),
        report.state.value,
        finished,
        _now(report),
    )


def _now(report: RankReport) -> str:
    current, collective = report.current, report.collective
    if current is None:
        return "idle"
    step = step_in(report)
    text = f"#{current.seq} {current.what}{', ' * bool(step)}{step} for {duration(current.seconds)}"
    if collective is not None:
        does = "moves data" if collective.met else "waits"
        text += f"; {does} in {collective.text} for {duration(collective.seconds)}"
    return text


def _shorten(stack: str) -> str:
    """The stack from the command on, without the threads of our own that only watch."""
    threads = [part for part in stack.strip("\n").split("\n\n") if _HELPER not in part]
    shown: list[str] = []
    for thread in threads:
        lines = thread.splitlines()
        if len(threads) == 1:
            lines = [line for line in lines if line.startswith(" ")]  # no number of the thread
        ours = [number for number, line in enumerate(lines) if _EXECUTOR in line]
        shown.append("\n".join(lines[: ours[0]] if ours else lines))
    return "\n\n".join(shown)
