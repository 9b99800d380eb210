"""Rows of the table: what is measured, what it must reach, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

__all__ = [
    "Limit",
    "LimitOutcome",
    "Measured",
    "Report",
    "Spec",
    "Status",
    "Unavailable",
    "describe_figure",
    "judge",
]

_SLACK = 1e-9
"""Of a comparison, as a share: a figure that equals its limit holds it."""

Unit = Literal["s", "B/s", "1/s", "B", "core", "count"]
_SCALES: dict[Unit, Sequence[tuple[float, str]]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s")),
    "1/s": ((1e3, "k/s"), (1.0, "/s")),
    "B": ((1 << 20, "MiB"), (1 << 10, "KiB")),
    "core": ((1e-2, "%"),),
    "count": ((1.0, ""),),
}


class Unavailable(Exception):
    """A yardstick or an optional part is not there; the row says so and is no failure."""


class Status(Enum):
    """The outcome of a row."""

    MEASURED = "measured"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


class LimitOutcome(Enum):
    """How a figure compares with its limit."""

    AIM = "aim reached"
    MUST = "must holds"
    MISSED = "must missed"
    NONE = "no limit"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a row must reach, and what it aims at.

    Attributes:
        of: What is compared: Disco's ``figure`` itself, its ``ratio`` to the
            yardstick, or its ``excess`` over the yardstick.
        must: The limit, in the row's unit, of a ratio without unit.
        aim: The better one, likewise; None where there is none.
        least: Whether the compared value must be at least the limit; otherwise
            it must be at most that.
    """

    of: Literal["figure", "ratio", "excess"]
    must: float
    aim: float | None = None
    least: bool = False

    def holds(self, value: float, bound: float) -> bool:
        """Whether a value is on the right side of a bound."""
        slack = _SLACK * abs(bound)
        return value >= bound - slack if self.least else value <= bound + slack

    def describe(self, bound: float | None, unit: Unit) -> str:
        """Says one of the two bounds as the table shows it."""
        if bound is None:
            return ""
        sign = "≥" if self.least else "≤"
        if self.of == "ratio":
            return f"{sign} {bound:.3g} x"
        plus = "+" if self.of == "excess" else ""
        return f"{sign} {plus}{describe_figure(bound, unit)}"


@dataclass(frozen=True, slots=True)
class Spec:
    """One row before it is measured.

    Attributes:
        key: Its name in the JSON, unique: the section, a dot, and what it is.
        what: What the table calls it.
        unit: The unit of its figures: s, B/s, 1/s, B, core (CPU time as a share of one) or count.
        yardstick: What the figure is held against; empty for nothing.
        limit: What it must reach; None where it is shown for information.
    """

    key: str
    what: str
    unit: Unit
    yardstick: str = ""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement found, in the unit of its row.

    Attributes:
        figure: Disco's.
        yardstick: The yardstick's, measured in the same run unless the row says not.
        ratio: The first to the second; None computes it. Given where rounds were
            paired, because the median of their ratios is steadier than the ratio
            of the medians.
        note: What a reader must know about it.
        spread: The quartiles of the ratios where rounds were paired, otherwise of
            Disco's figures: half of the rounds lay between the two.
    """

    figure: float
    yardstick: float | None = None
    ratio: float | None = None
    note: str = ""
    spread: tuple[float, float] | None = None

    @property
    def quotient(self) -> float | None:
        """The ratio, computed where it was not given."""
        if self.ratio is not None or not self.yardstick:
            return self.ratio
        return self.figure / self.yardstick

    def value(self, of: str) -> float | None:
        """What a limit compares; None where there is no yardstick for it."""
        if of == "figure":
            return self.figure
        if of == "ratio":
            return self.quotient
        return None if self.yardstick is None else self.figure - self.yardstick


def judge(limit: Limit | None, measured: Measured | None) -> LimitOutcome:
    """Compares a measurement with a limit."""
    if limit is None:
        return LimitOutcome.NONE if measured is not None else LimitOutcome.UNKNOWN
    value = None if measured is None else measured.value(limit.of)
    if value is None:
        return LimitOutcome.UNKNOWN
    if limit.aim is not None and limit.holds(value, limit.aim):
        return LimitOutcome.AIM
    return LimitOutcome.MUST if limit.holds(value, limit.must) else LimitOutcome.MISSED


def describe_figure(value: float, unit: Unit) -> str:
    """Writes a figure with three digits in the unit that fits its size."""
    scales = _SCALES[unit]
    factor, name = next(((f, n) for f, n in scales if abs(value) >= f), scales[-1])
    return f"{value / factor:.3g} {name}".rstrip()


class Report:
    """The rows of one run, in the order in which they were announced.

    Attributes:
        on_row: Called with the key of each row whose outcome is known now.
    """

    def __init__(self) -> None:
        self.on_row: Callable[[str], object] = lambda _key: None
        self._specs: dict[str, Spec] = {}
        self._measured: dict[str, Measured] = {}
        self._reasons: dict[str, tuple[Status, str]] = {}

    def announce(self, specs: Sequence[Spec]) -> None:
        """Adds rows that are about to be measured.

        Raises:
            ValueError: A key is taken.
        """
        for spec in specs:
            if spec.key in self._specs:
                msg = f"expected a new key, {spec.key!r} is taken"
                raise ValueError(msg)
            self._specs[spec.key] = spec

    def record(self, key: str, measured: Measured) -> None:
        """Notes what a row's measurement found.

        Raises:
            KeyError: No such row was announced.
        """
        self._measured[self._specs[key].key] = measured
        self.on_row(key)

    def excuse(self, key: str, reason: str, status: Status = Status.UNAVAILABLE) -> None:
        """Notes why a row has no figure.

        Raises:
            KeyError: No such row was announced.
        """
        self._reasons[self._specs[key].key] = (status, reason)
        self.on_row(key)

    def excuse_rest(self, specs: Sequence[Spec], error: Exception) -> None:
        """Gives the rows that were not measured an error as their reason."""
        status = Status.UNAVAILABLE if isinstance(error, Unavailable) else Status.FAILED
        kind = "" if isinstance(error, Unavailable) else f"{type(error).__name__}: "
        for spec in specs:
            if self.status(spec.key) is Status.FAILED and spec.key not in self._reasons:
                self.excuse(spec.key, f"{kind}{error}", status)

    def status(self, key: str) -> Status:
        """The outcome of a row; one that was never measured has failed."""
        if key in self._measured:
            return Status.MEASURED
        return self._reasons.get(key, (Status.FAILED, ""))[0]

    def outcome(self, key: str) -> LimitOutcome:
        """How a row compares with its limit."""
        return judge(self._specs[key].limit, self._measured.get(key))

    @property
    def specs(self) -> list[Spec]:
        """All rows."""
        return list(self._specs.values())

    def measured(self, key: str) -> Measured | None:
        """What a row's measurement found, if it did."""
        return self._measured.get(key)

    def reason(self, key: str) -> str:
        """Why a row has no figure; empty where it has one."""
        return "" if key in self._measured else self._reasons.get(key, (None, "not reached"))[1]

    def keys(self, status: Status) -> list[str]:
        """The rows with this outcome."""
        return [key for key in self._specs if self.status(key) is status]

    def missed(self) -> list[str]:
        """The rows whose figure misses what it must reach."""
        return [key for key in self._specs if self.outcome(key) is LimitOutcome.MISSED]

    def to_json(self) -> list[dict[str, Any]]:
        """All rows as plain data; figures in the unit that each row names."""
        return [self._row(spec) for spec in self.specs]

    def _row(self, spec: Spec) -> dict[str, Any]:
        measured = self._measured.get(spec.key)
        limit = spec.limit
        return {
            "key": spec.key,
            "what": spec.what,
            "unit": spec.unit,
            "status": self.status(spec.key).value,
            "disco": measured and measured.figure,
            "yardstick": {"name": spec.yardstick, "figure": measured and measured.yardstick},
            "ratio": measured and measured.quotient,
            "spread": measured and measured.spread,
            "limit": limit
            and {
                "of": limit.of,
                "must": limit.must,
                "aim": limit.aim,
                "at": "least" if limit.least else "most",
            },
            "verdict": self.outcome(spec.key).value,
            "note": measured.note if measured else self.reason(spec.key),
        }
