"""Figures of two installations of Disco, run by run, and which of their rows are worse.

Noise is what two runs of one version differ by. A row is worse, or better, where the two
versions differ by more than that; otherwise nothing can be said of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from disco_bench.table import Unit

__all__ = ["LEAST_RUNS", "ComparedRow", "Comparison", "RowOutcome", "difference", "noise_of"]

_MORE_IS_BETTER = ("1/s", "B/s")
LEAST_RUNS = 2
"""So many runs of one version say what it differs by from itself."""


class RowOutcome(Enum):
    """How this version's row compares with the other one's."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "within noise"
    FAILED = "FAILED"
    UNKNOWN = "not compared"


def noise_of(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The most that two runs of one version differ by, whichever of the two versions it is."""
    return max(max(figures) - min(figures) for figures in (ours, theirs))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """By how much the median of some runs is above that of others."""
    return statistics.median(ours) - statistics.median(theirs)


@dataclass(slots=True)
class ComparedRow:
    """One row of both versions.

    Attributes:
        key: Its name.
        what: What the table calls it.
        unit: The unit of its figures.
        ours: This version's figures, run by run.
        theirs: The other version's.
        note: Why the row, or a run of it, has no figure; empty where all have.
        failed: Whether a run of this version failed.
    """

    key: str
    what: str
    unit: Unit
    ours: list[float] = field(default_factory=list[float])
    theirs: list[float] = field(default_factory=list[float])
    note: str = ""
    failed: bool = False

    @property
    def compared(self) -> bool:
        """Whether both versions have runs enough to know what one differs by from itself."""
        return min(len(self.ours), len(self.theirs)) >= LEAST_RUNS

    @property
    def ratio(self) -> float | None:
        """This version's median to the other's; None where that is zero."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return ours / theirs if theirs else None

    @property
    def noise(self) -> float | None:
        """The noise in the row's unit; None before two runs of each."""
        return noise_of(self.ours, self.theirs) if self.compared else None

    @property
    def outcome(self) -> RowOutcome:
        """Whether the row is worse than in the other version."""
        if self.failed:
            return RowOutcome.FAILED
        if self.noise is None:
            return RowOutcome.UNKNOWN
        apart = difference(self.ours, self.theirs)
        if abs(apart) <= self.noise:
            return RowOutcome.SAME
        more_is_better = self.unit in _MORE_IS_BETTER
        return RowOutcome.BETTER if (apart > 0) is more_is_better else RowOutcome.WORSE


class Comparison:
    """All rows of two versions, in the order in which they were met."""

    def __init__(self) -> None:
        self._rows: dict[str, ComparedRow] = {}

    @property
    def rows(self) -> list[ComparedRow]:
        """All rows."""
        return list(self._rows.values())

    def keys(self, *outcomes: RowOutcome) -> list[str]:
        """The rows with one of some outcomes."""
        return [row.key for row in self.rows if row.outcome in outcomes]

    def noises(self) -> list[float]:
        """The noise of the rows that are compared, as shares of this version's figures, sorted."""
        pairs = ((row.noise, row.ours) for row in self.rows if row.compared)
        found = ((noise, statistics.median(ours)) for noise, ours in pairs if noise is not None)
        return sorted(noise / figure for noise, figure in found if figure)

    def suspects(self) -> set[str]:
        """The sections in which a row looks worse."""
        return {key.partition(".")[0] for key in self.keys(RowOutcome.WORSE)}

    def add(
        self, ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], why: str = ""
    ) -> None:
        """Adds a run of each version, of the same section.

        Args:
            ours: This version's rows as ``run.py --json`` writes them.
            theirs: The other version's.
            why: Why the other version has none; empty where it has some.
        """
        others = {row["key"]: row for row in theirs}
        for row in ours:
            self._add(row, others.pop(row["key"], None), why or "the other version has no such row")
        for row in others.values() if ours else ():
            self._row(row).note = "this version has no such row"

    def fail(self, section: str, why: str) -> None:
        """Notes that this version could not run a section."""
        row = self._row({"key": section, "what": f"section {section}", "unit": "count"})
        row.failed, row.note = True, why

    def _add(self, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None, why: str) -> None:
        row = self._row(ours)
        if ours["status"] == "failed":
            row.failed, row.note = True, str(ours["note"])
        elif ours["status"] != "measured":
            row.note = str(ours["note"])
        elif theirs is None:
            row.note = why
        elif (ours["what"], ours["unit"]) != (theirs["what"], theirs["unit"]):
            row.note = f"the other version measures {theirs['what']!r} in {theirs['unit']}"
        elif theirs["status"] != "measured":
            row.note = f"the other version: {theirs['note']}"
        else:
            row.ours.append(float(ours["disco"]))
            row.theirs.append(float(theirs["disco"]))

    def _row(self, row: Mapping[str, Any]) -> ComparedRow:
        key = str(row["key"])
        return self._rows.setdefault(
            key, ComparedRow(key, str(row["what"]), cast("Unit", row["unit"]))
        )

    def to_json(self) -> list[dict[str, Any]]:
        """All rows as plain data; figures in the unit that each row names."""
        return [
            {
                "key": row.key,
                "what": row.what,
                "unit": row.unit,
                "this": row.ours,
                "other": row.theirs,
                "ratio": row.ratio,
                "noise": row.noise,
                "verdict": row.outcome.value,
                "note": row.note,
            }
            for row in self.rows
        ]
