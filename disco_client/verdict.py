"""Why a session does not go on, in words; a pure function of what is known of its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from disco_client.wire.codec import Action
from disco_client.wire.inspection import (
    CollectiveReport,
    CommandReport,
    NodeSilence,
    RankReport,
    RankState,
)

__all__ = ["duration", "judge", "name_ranks", "step_in"]

_OWN = "runtime."
"""How the names of the functions begin that every worker offers by itself."""

_STEP = re.compile(r'File "<program (.*)>", line (\d+)')
_FIRST_STEP_LINE = 3
_MINUTE, _PRECISE = 120, 10


def duration(seconds: float) -> str:
    """A time as people say it: "0.25 s", "41 s", "12 min"."""
    if seconds >= _MINUTE:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= _PRECISE else f"{seconds:.2g} s"


def name_ranks(workers: Iterable[int]) -> str:
    """Lists ranks: "rank 2", "ranks 0, 1 and 3"; long rows are shortened: "ranks 0-7"."""
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


def judge(
    ranks: Sequence[RankReport], silent: Sequence[NodeSilence] = (), issued: int | None = None
) -> str:
    """Says what the session waits for.

    Args:
        ranks: What is known of each rank.
        silent: The nodes of which nothing is known.
        issued: The newest command that the client has issued, where that is known.

    Returns:
        One or more sentences, the gravest first, without a full stop at the end.
    """
    return "; ".join(_Court(ranks, silent, issued).sentences())


class _Court:
    def __init__(
        self, ranks: Sequence[RankReport], silent: Sequence[NodeSilence], issued: int | None
    ) -> None:
        self._ranks = {report.worker: report for report in ranks}
        self._silent = silent
        self._issued = issued
        self._told: set[int] = set()

    def sentences(self) -> list[str]:
        found = [_silence(each) for each in self._silent]
        found += self._processes()
        waits = self._collectives(met=False)
        found += [self._wait(workers) for workers in waits]
        for workers in self._collectives(met=True):
            collective = self._collective(workers[0])
            have = "has" if len(workers) == 1 else "have"
            found.append(
                f"{name_ranks(workers)} {have} been in {collective.text} of command "
                f"#{collective.seq} for {duration(self._longest(workers))}, where all have "
                "come and data moves"
            )
            self._told.update(workers)
        return found + self._rest(bool(found))

    def _processes(self) -> list[str]:
        """What the system says of the processes of ranks."""
        gone = [w for w, r in self._ranks.items() if r.state is RankState.ENDED]
        if gone and len(gone) == len(self._ranks) and not self._silent:
            self._told.update(gone)
            return ["every rank has ended: the session is over"]
        found: list[str] = []
        for worker, report in self._ranks.items():
            why = _why_process(report)
            if why:
                how = f"; kill -CONT {report.pid} lets it go on"
                how *= report.state is RankState.STOPPED
                found.append(f"rank {worker}'s process {report.pid} {why}{how}")
                self._told.add(worker)
        return found

    def _collectives(self, *, met: bool) -> list[list[int]]:
        """The ranks that are in collectives, those of one together; the oldest first."""
        found: dict[tuple[object, ...], list[int]] = {}
        for worker, report in self._ranks.items():
            if report.collective is not None and report.collective.met is met:
                found.setdefault(report.collective.key, []).append(worker)
        if met:  # one that has not noticed yet is among those who wait
            return list(found.values())
        return sorted(found.values(), key=lambda workers: self._collective(workers[0]).seq)

    def _collective(self, worker: int) -> CollectiveReport:
        collective = self._ranks[worker].collective
        assert collective is not None  # noqa: S101  (these were chosen for having one)
        return collective

    def _longest(self, workers: Iterable[int]) -> float:
        return max(self._collective(worker).seconds for worker in workers)

    def _wait(self, workers: list[int]) -> str:
        """Ranks wait in a collective: who has not come, and why."""
        collective = self._collective(workers[0])
        what = f"{collective.text} of command #{collective.seq}"
        there = {w for w, r in self._ranks.items() if self._is_there(r, collective)}
        absent = [member for member in collective.members if member not in there]
        since = duration(self._longest(workers))
        self._told.update(workers)
        if not absent:
            return f"{name_ranks(workers)} have all entered {what}, the first {since} ago"
        told = self._told.copy()
        self._told.update(absent)
        reasons = self._reasons(absent, collective, told)
        wait = "waits" if len(workers) == 1 else "wait"
        return (
            f"{name_ranks(absent)} never entered {what}: {reasons}; "
            f"{name_ranks(workers)} {wait} there since {since}"
        )

    def _is_there(self, report: RankReport, collective: CollectiveReport) -> bool:
        return report.collective is not None and report.collective.key == collective.key

    def _reasons(self, absent: list[int], collective: CollectiveReport, told: set[int]) -> str:
        """Why ranks did not come; those with the same reason are named together."""
        groups: dict[str, list[int]] = {}
        for worker in absent:
            report = self._ranks.get(worker)
            if report is None:
                why = "nothing is known of {}"
            elif worker in told and _why_process(report):
                why = "{}'s process " + _why_process(report)
            else:
                why = _where(report, collective)
            groups.setdefault(why, []).append(worker)
        alone = len(absent) == 1
        texts: list[str] = []
        for why, workers in groups.items():
            text = why.replace("{}'s", "its" if alone else f"{name_ranks(workers)}'s")
            text = text.replace("{}", "it" if alone else name_ranks(workers))
            if len(workers) > 1:
                text = text.replace(" has ", " have ", 1).replace(" is ", " are ", 1)
            texts.append(text)
        return ", ".join(texts)

    def _rest(self, found: bool) -> list[str]:
        """Ranks that are in no collective, and not what others wait for."""
        groups: dict[tuple[int, str], list[int]] = {}
        for worker, report in self._ranks.items():
            if worker not in self._told and report.current is not None:
                groups.setdefault((report.current.seq, _activity(report)), []).append(worker)
        sentences: list[str] = []
        for (_, activity), workers in groups.items():
            longest = max(_running(self._ranks[worker]).seconds for worker in workers)
            have = "has" if len(workers) == 1 else "have"
            sentences.append(
                f"{name_ranks(workers)} {have} been in {activity} for {duration(longest)}"
            )
        if found or not self._ranks:
            return sentences
        idle = [w for w, r in self._ranks.items() if r.current is None]
        if sentences:
            others = "the others are" if len(idle) > 1 else f"{name_ranks(idle)} is" if idle else ""
            return [*sentences, f"{others} idle"] if idle else sentences
        return [self._idle()]

    def _idle(self) -> str:
        last = [r.finished.seq for r in self._ranks.values() if r.finished is not None]
        behind = min(last) if len(last) == len(self._ranks) else 0
        if self._issued is not None and behind < self._issued:
            return (
                f"all ranks are idle, but commands #{behind + 1} to #{self._issued} have not "
                "reached all of them: they are on their way, or the connection is stuck"
            )
        return "all ranks are idle: nothing is under way"


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
    if current.action == Action.CALL_PACKED and current.name:
        if not current.name.startswith(_OWN):
            what = f"user function {what}"
    elif step := step_in(report):
        what = f"{step} of {what}"
    return f"{what} (command #{current.seq})"


def _where(report: RankReport, collective: CollectiveReport) -> str:
    """Why a rank has not entered a collective; ``{}`` stands for the rank."""
    if report.collective is not None:
        other = report.collective
        since = duration(other.seconds)
        return f"{{}} is in {other.text} of command #{other.seq} since {since}"
    if report.current is not None:
        return f"{{}} has been in {_activity(report)} for {duration(report.current.seconds)}"
    done = report.finished
    if done is not None and done.seq >= collective.seq:
        failed = " with a failure" if done.failed and done.seq == collective.seq else ""
        return f"{{}} is idle, past command #{done.seq}{failed}"
    after = f" after command #{done.seq}" if done is not None else ""
    return f"{{}} is idle{after}, what follows has not reached that"
