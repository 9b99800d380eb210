"""Why a session makes no progress, in words; a pure function of what is known of its ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from disco_client.text import many
from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    CollectiveReport,
    CommandReport,
    NodeSilence,
    RankReport,
    RankState,
)

__all__ = ["duration", "judge", "moved_since", "name_ranks", "stands", "step_in"]


_OWN = "runtime."
"""The prefix of the names of functions that every worker has built in."""

_STEP = re.compile(r'File "<program (.*)>", line (\d+)')

_FIRST_STEP_LINE = 3

_MINUTE, _PRECISE = 120, 10

_SHOWN = 2
"""How many things of one kind are described in full; the rest are counted."""

_RANGES = 8
"""How many ranges of ranks are listed."""

_LONG_NAME = 60


def duration(seconds: float) -> str:
    """A duration in a readable unit: "0.25 s", "41 s", "12 min"."""
    if seconds >= _MINUTE:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= _PRECISE else f"{seconds:.2g} s"


def name_ranks(workers: Iterable[int]) -> str:
    """Lists ranks: "rank 2", "ranks 0, 1 and 3", "ranks 0-7"; of many the first, and how many."""
    ordered = sorted(workers)
    rows: list[list[int]] = []
    for worker in ordered:
        if rows and rows[-1][-1] == worker - 1:
            rows[-1].append(worker)
        else:
            rows.append([worker])
    parts: list[str] = []
    for row in rows:
        short = len(row) > 2  # noqa: PLR2004  (two are not shorter with a dash)
        parts += [f"{row[0]}-{row[-1]}"] if short else [str(worker) for worker in row]
    if len(ordered) == 1:
        return f"rank {parts[0]}"
    if len(rows) > _RANGES:
        shown = rows[:_RANGES]
        parts = [f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in shown]
        return f"ranks {', '.join(parts)} and {many(len(ordered) - sum(map(len, shown)), 'other')}"
    return f"ranks {', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else f"ranks {parts[0]}"


def step_in(report: RankReport) -> str:
    """Where in a captured program the rank is, by its stack: "step 3", or empty."""
    found = _STEP.search(report.stack)
    current = report.current
    if found is None or current is None or current.action != Action.RUN_PROGRAM:
        return ""
    number = int(found[2]) - _FIRST_STEP_LINE + 1
    # One that runs other programs has more lines than recorded steps.
    return f"step {number}" if found[1] == current.name else f"line {number} of its steps"


def moved_since(before: Iterable[RankReport], now: Iterable[RankReport]) -> set[int]:
    """The ranks that have finished or begun something since an earlier inspection."""
    known = {report.worker: _position(report) for report in before}
    return {r.worker for r in now if r.worker in known and known[r.worker] != _position(r)}


def _position(report: RankReport) -> tuple[object, ...]:
    """A key that changes when a rank makes progress."""
    current, finished = report.current, report.finished
    return (
        current and current.seq,
        finished and finished.seq,
        report.collectives,
        report.collective and (report.collective.key, report.collective.met),
    )


def stands(before: Iterable[RankReport], now: Sequence[RankReport]) -> bool:
    """Whether a busy rank has made no progress since an earlier inspection."""
    moved = moved_since(before, now)
    return any(r.current is not None and r.worker not in moved for r in now)


def judge(
    ranks: Sequence[RankReport],
    silent: Sequence[NodeSilence] = (),
    issued: int | None = None,
    before: Sequence[RankReport] = (),
) -> str:
    """Says what the session waits for, in at most a screenful, however many ranks it has.

    Reports of ranks are taken one after another, so one may be older than those of its
    peers. A rank in a collective is not considered to wait for a rank that has entered it
    before, or that has made progress since an earlier inspection.

    Args:
        ranks: What is known of each rank.
        silent: The nodes of which nothing is known.
        issued: The newest command that the client has issued, where that is known.
        before: What was known of the ranks some tenths of a second before.

    Returns:
        One or more sentences, the gravest first, without a full stop at the end.
    """
    return "; ".join(_Court(ranks, silent, issued, before).sentences())


class _Court:
    def __init__(
        self,
        ranks: Sequence[RankReport],
        silent: Sequence[NodeSilence],
        issued: int | None,
        before: Sequence[RankReport],
    ) -> None:
        self._ranks = {report.worker: report for report in ranks}
        self._silent = silent
        self._issued = issued
        self._moved = moved_since(before, ranks)
        self._told: set[int] = set()

    def sentences(self) -> list[str]:
        found = self._silences()
        found += self._processes()
        found += self._waits()
        met = [group for group in self._collectives(met=True) if not self._moved.issuperset(group)]
        met.sort(key=self._longest, reverse=True)
        found += [self._moving(workers) for workers in met[:_SHOWN]]
        found += _others(met[_SHOWN:], "in {} where all have come", ("collective", "collectives"))
        found += self._busy()
        return found + (self._progress() or ([] if found else self._idle()))

    def _silences(self) -> list[str]:
        """Nodes of which nothing is known; those that have been silent longest first."""
        ordered = sorted(self._silent, key=lambda each: -each.seconds)
        found = [_silence(each) for each in ordered[:_SHOWN]]
        if more := ordered[_SHOWN:]:
            ranks = name_ranks(worker for each in more for worker in each.workers)
            nodes = "node does" if len(more) == 1 else "nodes do"
            found.append(f"{len(more)} more {nodes} not answer, so nothing is known of {ranks}")
        return found

    def _processes(self) -> list[str]:
        """What the system says of the processes of ranks."""
        gone = [w for w, r in self._ranks.items() if r.state is RankState.ENDED]
        if gone and len(gone) == len(self._ranks) and not self._silent:
            self._told.update(gone)
            return ["every rank has ended: the session is over"]
        groups: dict[str, list[RankReport]] = {}
        for report in self._ranks.values():
            if why := _why_process(report):
                groups.setdefault(why, []).append(report)
                self._told.add(report.worker)
        found: list[str] = []
        for why, reports in groups.items():
            stopped = reports[0].state is RankState.STOPPED
            if len(reports) > _SHOWN:
                ranks = name_ranks(report.worker for report in reports)
                how = "; kill -CONT lets them go on" * stopped
                found.append(f"{ranks}: each one's process {why}{how}")
                continue
            for report in reports:
                how = f"; kill -CONT {report.pid} lets it go on" * stopped
                found.append(f"rank {report.worker}'s process {report.pid} {why}{how}")
        return found

    def _collectives(self, *, met: bool) -> list[list[int]]:
        """The ranks that are in collectives, grouped by collective."""
        found: dict[tuple[object, ...], list[int]] = {}
        for worker, report in self._ranks.items():
            if report.collective is not None and report.collective.met is met:
                found.setdefault(report.collective.key, []).append(worker)
        return list(found.values())

    def _collective(self, worker: int) -> CollectiveReport:
        collective = self._ranks[worker].collective
        assert collective is not None  # noqa: S101  (these were chosen for having one)
        return collective

    def _longest(self, workers: Iterable[int]) -> float:
        return max(self._collective(worker).seconds for worker in workers)

    def _moving(self, workers: list[int]) -> str:
        """Ranks are in a collective that all of its members have entered."""
        self._told.update(workers)
        what = _which(self._collective(workers[0]))
        return (
            f"{name_ranks(workers)} {_have(workers)} been in {what} "
            f"for {duration(self._longest(workers))}, where all have come and data moves"
        )

    def _waits(self) -> list[str]:
        """Collectives in which ranks wait: those of the oldest commands first."""
        waits = [
            # If they entered since the earlier inspection, their peers have had no time to.
            workers
            for workers in self._collectives(met=False)
            if not self._moved.issuperset(workers)
        ]
        waits.sort(key=lambda w: (self._collective(w[0]).seq, -self._longest(w)))
        found = [self._wait(workers) for workers in waits[:_SHOWN]]
        for workers in waits[_SHOWN:]:
            self._told.update((*workers, *self._collective(workers[0]).members))
        return found + _others(waits[_SHOWN:], "waiting in {}", ("collective", "collectives"))

    def _wait(self, workers: list[int]) -> str:
        """Ranks wait in a collective: which ranks have not entered it, and why."""
        collective = self._collective(workers[0])
        what, since = _which(collective), duration(self._longest(workers))
        self._told.update(workers)
        absent = [m for m in collective.members if not self._has_entered(m, collective)]
        coming = [member for member in absent if member in self._moved]
        missing = [member for member in absent if member not in self._moved]
        if not absent:
            left = [m for m in collective.members if not self._is_in(m, collective)]
            if left:
                return (
                    f"{name_ranks(workers)} {_have(workers)} been in {what} for {since}, which "
                    f"{name_ranks(left)} {_have(left)} left"
                )
            return f"{name_ranks(workers)} have all entered {what}, the first {since} ago"
        self._told.update(absent)
        texts: list[str] = []
        if missing:
            passed = all(self._has_passed(member, collective) for member in missing)
            never = "never" if passed else f"{_have(missing)} not"
            reasons = self._reasons(missing, collective)
            texts.append(f"{name_ranks(missing)} {never} entered {what}: {reasons}")
        if coming:
            to = "there" if missing else f"to {what}"
            be = "is" if len(coming) == 1 else "are"
            texts.append(f"{name_ranks(coming)} {be} on the way {to}")
        wait = "waits" if len(workers) == 1 else "wait"
        return "; ".join([*texts, f"{name_ranks(workers)} {wait} there since {since}"])

    def _is_in(self, worker: int, collective: CollectiveReport) -> bool:
        current = self._ranks[worker].collective
        return current is not None and current.key == collective.key

    def _has_entered(self, worker: int, collective: CollectiveReport) -> bool:
        """Whether a rank is in a collective, or was; it may be further than its peers' reports."""
        report = self._ranks.get(worker)
        if report is None:
            return False
        current = report.collective
        if current is not None and current.members == collective.members:
            return (current.seq, current.nth) >= (collective.seq, collective.nth)
        place = collective.seq, collective.nth
        return any(
            (each.seq, each.nth) > place
            or ((each.seq, each.nth) == place and each.name == collective.name)
            for each in report.entered
            if each.members == collective.members
        )

    def _has_passed(self, worker: int, collective: CollectiveReport) -> bool:
        """Whether a rank is past the command of a collective, or will execute nothing more."""
        report = self._ranks.get(worker)
        if report is None:
            return False
        done, current = report.finished, report.current
        return (
            report.state is RankState.ENDED
            or (done is not None and done.seq >= collective.seq)
            or (current is not None and current.seq > collective.seq)
        )

    def _reasons(self, absent: list[int], collective: CollectiveReport) -> str:
        """Why ranks did not enter: grouped by reason, the longest first."""
        groups: dict[str, tuple[list[int], list[float]]] = {}
        for worker in absent:
            report = self._ranks.get(worker)
            if report is None:
                why, seconds = "nothing is known of {}", 0.0
            elif _why_process(report):
                why, seconds = "{}'s process " + _why_process(report), math.inf
            else:
                why, seconds = _where(report, collective)
            workers, times = groups.setdefault(why, ([], []))
            workers.append(worker)
            times.append(seconds)
        ordered = sorted(groups.items(), key=lambda group: -max(group[1][1]))
        shown = ordered[:_SHOWN]
        texts = [_reason(why, *group, alone=len(absent) == 1) for why, group in shown]
        more = [group[0] for _, group in ordered[_SHOWN:]]
        return ", ".join(texts + _others(more, "elsewhere, in {}", ("place", "places")))

    def _busy(self) -> list[str]:
        """Ranks that are in no collective and that no others wait for; the longest first."""
        groups: dict[tuple[int, str], list[int]] = {}
        for worker, report in self._ranks.items():
            if worker in self._told or worker in self._moved or report.current is None:
                continue
            groups.setdefault((report.current.seq, _activity(report)), []).append(worker)

        def longest(workers: list[int]) -> float:
            return max(_running(self._ranks[worker]).seconds for worker in workers)

        ordered = sorted(groups.items(), key=lambda group: -longest(group[1]))
        found = [
            f"{name_ranks(workers)} {_have(workers)} been in {activity} for "
            f"{duration(longest(workers))}"
            for (_, activity), workers in ordered[:_SHOWN]
        ]
        more = [workers for _, workers in ordered[_SHOWN:]]
        idle = [w for w, r in self._ranks.items() if r.current is None and w not in self._told]
        found += _others(more, "in {}", ("other command", "other commands"))
        if found and not self._told and not self._silent and not self._moved and idle:
            verb = "the others are" if len(idle) > 1 else f"{name_ranks(idle)} is"
            found.append(f"{verb} idle")
        return found

    def _progress(self) -> list[str]:
        """How far the ranks are, where some of them finish commands."""
        behind = self._behind()
        done = self._issued is not None and behind >= self._issued
        idle = all(report.current is None for report in self._ranks.values())
        if not self._moved or done or (idle and self._issued is None):
            return []
        of = f" of #{self._issued}" if self._issued is not None else ""
        return [f"slow, still progressing: #{behind}{of}"]

    def _behind(self) -> int:
        """The newest command that all ranks have executed."""
        last = [r.finished.seq for r in self._ranks.values() if r.finished is not None]
        return min(last) if last and len(last) == len(self._ranks) else 0

    def _idle(self) -> list[str]:
        if not self._ranks:
            return []
        behind = self._behind()
        if self._issued is not None and behind < self._issued:
            which = f"commands #{behind + 1} to #{self._issued} have not reached all of them"
            why = "they are on their way, or the connection is stuck"
            return [f"all ranks are idle, but {which}: {why}"]
        return ["all ranks are idle: nothing is under way"]


def _silence(silence: NodeSilence) -> str:
    ranks = name_ranks(silence.workers)
    if not silence.seconds:
        return f"node {silence.node!r} is not connected, so nothing is known of {ranks}"
    return (
        f"no answer from node {silence.node!r}, heard of last {duration(silence.seconds)} ago, "
        f"so nothing is known of {ranks}"
    )


def _why_process(report: RankReport) -> str:
    if report.state is RankState.STOPPED:
        return "is stopped (by SIGSTOP, or a debugger)"
    if report.state is RankState.ENDED:
        return "has ended"
    if report.state is RankState.UNINTERRUPTIBLE and report.current is not None:
        return "waits inside the kernel, for a disk or a device"
    return ""


def _running(report: RankReport) -> CommandReport:
    assert report.current is not None  # noqa: S101  (these were chosen for having one)
    return report.current


def _activity(report: RankReport) -> str:
    """What a busy rank does, with the number of the command."""
    current = _running(report)
    what = current.what
    if len(what) > _LONG_NAME:
        what = f"{what[:_LONG_NAME]}..."
    if current.action == Action.CALL_PACKED and current.name:
        if not current.name.startswith(_OWN):
            what = f"user function {what}"
    elif step := step_in(report):
        what = f"{step} of {what}"
    return f"{what} (command #{current.seq})"


def _where(report: RankReport, collective: CollectiveReport) -> tuple[str, float]:
    """Why a rank has not entered a collective, and for how long; ``{}`` stands for the rank."""
    if report.collective is not None:
        return f"{{}} is in {_which(report.collective)} since", report.collective.seconds
    if report.current is not None:
        return f"{{}} has been in {_activity(report)} for", report.current.seconds
    done = report.finished
    if done is not None and done.seq >= collective.seq:
        failed = " with a failure" if done.failed and done.seq == collective.seq else ""
        return f"{{}} is idle, past command #{done.seq}{failed}", 0.0
    after = f" after command #{done.seq}" if done is not None else ""
    return f"{{}} is idle{after}, what follows has not reached that", 0.0


def _reason(why: str, workers: list[int], times: list[float], *, alone: bool) -> str:
    """The text of :func:`_where` for all ranks for which it returned the same."""
    many, ranks = len(workers) > 1, name_ranks(workers)
    whose = "its" if alone else f"{ranks}: each one's" if many else f"{ranks}'s"
    text = why.replace("{}'s", whose, 1).replace("{}", "it" if alone else ranks, 1)
    if many and not why.startswith("{}'s"):
        text = text.replace(" has ", " have ", 1).replace(" is ", " are ", 1)
    longest = max(times)
    return f"{text} {duration(longest)}" if 0 < longest < math.inf else text


def _which(collective: CollectiveReport) -> str:
    return f"{collective.text} of command #{collective.seq}"


def _have(workers: Sequence[int]) -> str:
    return "has" if len(workers) == 1 else "have"


def _others(groups: Sequence[Sequence[int]], where: str, of: tuple[str, str]) -> list[str]:
    """A part of a sentence that counts what is not listed, if there is anything."""
    if not groups:
        return []
    count = sum(map(len, groups))
    ranks = "1 more rank is" if count == 1 else f"{count} more ranks are"
    return [f"{ranks} {where.format(f'{len(groups)} {of[len(groups) > 1]}')}"]
