"""What a session does at a moment: each rank, its stack, and a verdict in words."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from disco_client.clock import monotonic
from disco_client.hang_analysis import duration, judge, name_ranks, stands, step_in
from disco_client.text import many
from disco_client.wire.reports import Inspection, NodeSilence, RankReport

if TYPE_CHECKING:
    from disco_client.command_log import CommandLog
    from disco_client.transport.base import Transport

__all__ = ["Diagnosis", "diagnose", "look_at"]


_COLUMNS = ("rank", "node", "pid", "process", "last finished", "now")

_MOST_ROWS, _MOST_STACKS = 32, 8

_EXECUTOR = "/disco_server/rank/executor.py"
"""Where a rank starts a command; the frames above are the same for all."""


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
        goes_on: Whether all busy ranks made progress during the inspection.

    Examples:
        >>> session.sync_all()
        >>> diagnosis = session.diagnose()
        >>> diagnosis.num_workers
        4
        >>> print(diagnosis.verdict)
        all ranks are idle: nothing is under way
    """

    session: str
    num_workers: int
    verdict: str
    ranks: tuple[RankReport, ...]
    silent: tuple[NodeSilence, ...] = ()
    issued: int | None = None
    goes_on: bool = False

    @classmethod
    def of(
        cls, found: Inspection, issued: int | None = None, before: Inspection | None = None
    ) -> Diagnosis:
        """Makes a diagnosis of an inspection.

        Args:
            found: By a transport.
            issued: The newest command that was issued, where that is known.
            before: What was found out some tenths of a second before.
        """
        earlier = before.ranks if before else ()
        verdict = judge(found.ranks, found.silent, issued, earlier)
        goes_on = not found.silent and not stands(earlier, found.ranks)
        size = found.num_workers
        return cls(found.name, size, verdict, found.ranks, found.silent, issued, goes_on)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; keys are added to it and never change."""
        return {
            "session": self.session,
            "num_workers": self.num_workers,
            "verdict": self.verdict,
            "goes_on": self.goes_on,
            "issued": self.issued,
            "ranks": [_as_dict(report) for report in self.ranks],
            "silent": [asdict(each) for each in self.silent],
        }

    def __str__(self) -> str:
        """A text: the verdict, a table of the ranks, and the stacks of those that are busy.

        Of many ranks and stacks some are shown, of each kind at least one if there is room.
        """
        shown = _choose(self.ranks)
        rows = [_COLUMNS, *map(_row, shown)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines = [self._title(), f"verdict: {self.verdict}", "", *table]
        if more := len(self.ranks) - len(shown):
            lines.append(f"and {many(more, 'other rank')}; --json and diagnose().ranks have all")
        stacks = list(self._stacks())
        for workers, text in stacks[:_MOST_STACKS]:
            lines += ["", f"stack of {name_ranks(workers)}:", text]
        if more := len(stacks) - _MOST_STACKS:
            lines += ["", f"and {many(more, 'other stack')}"] * (more > 0)
        return "\n".join(lines)

    def _title(self) -> str:
        issued = f", commands issued up to #{self.issued}" if self.issued is not None else ""
        return f"session {self.session!r}: {many(self.num_workers, 'worker')}{issued}"

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


def _choose(ranks: tuple[RankReport, ...]) -> list[RankReport]:
    """No more than fit a screen: ranks in rare states come first."""
    if len(ranks) <= _MOST_ROWS:
        return list(ranks)
    kinds: dict[object, list[RankReport]] = {}
    for report in ranks:
        collective = report.collective and report.collective.key
        current = report.current and (report.current.seq, report.current.what)
        kinds.setdefault((report.state, current, collective), []).append(report)
    rare = sorted(kinds.values(), key=len)
    turns = itertools.zip_longest(*rare)
    chosen = (report for turn in turns for report in turn if report is not None)
    return sorted(itertools.islice(chosen, _MOST_ROWS), key=lambda report: report.worker)


def _as_dict(report: RankReport) -> dict[str, Any]:
    plain = asdict(report)
    for key in ("entered", "flight"):
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
    """The stack from the command on."""
    lines = [line for line in stack.splitlines() if line.startswith(" ")]
    ours = [number for number, line in enumerate(lines) if _EXECUTOR in line]
    return "\n".join(lines[: ours[0]] if ours else lines)


# Inspecting a session.

_STANDS_S = 0.75
"""A rank without progress for this long is reported as standing still."""

_LOOK_S = 0.15


def diagnose(
    inspect: Callable[[bool], Inspection], issued: Callable[[], int | None] = lambda: None
) -> Diagnosis:
    """Finds out what a session does, by several inspections if something is running.

    Ranks are not inspected at the same moment, and one that has not entered a collective may
    do so at once, so a single inspection cannot tell a missing rank from a late one.

    Args:
        inspect: Inspects the ranks, with their stacks or without.
        issued: The newest command that the client has issued, where that is known.

    Raises:
        SessionError: The controller could not be asked.
    """
    first = found = inspect(False)
    until = monotonic() + _STANDS_S
    # The last inspection begins before the time is over, because it may wait for stacks.
    while stands(first.ranks, found.ranks) and monotonic() < until - _LOOK_S:
        time.sleep(_LOOK_S)
        found = inspect(False)
    return Diagnosis.of(inspect(True), issued(), first)


def look_at(transport: Transport, log: CommandLog) -> Diagnosis:
    """Finds out what the session of a log does; see :func:`diagnose`."""
    return diagnose(
        lambda stacks: transport.inspect(stacks=stacks, flights=False), lambda: log.last_seq
    )
