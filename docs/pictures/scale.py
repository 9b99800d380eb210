"""Draws the picture of docs/scale.md; `make pictures` writes it.

Its figures are those of ``make scale ARGS='--json docs/pictures/scale.json'``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from disco_client.distributed.pictures.svg import Drawing, below, document, lines_of_text

HERE = Path(__file__).parent
LEFT, PLOT, HIGH, LABELS = 56, 420, 280, 276
BEYOND = 4
"""How many times the largest size that was measured the lines go on, by their last exponent."""

TINTS = ("#2f6fab", "#c05a1c", "#3a8f5d", "#8a4fa3", "#a3323c", "#57606a")
NODES = {
    "start": "start of a session",
    "fence": "PMI fence",
    "sync_all": "sync of all workers",
    "sync_one": "sync of one worker",
    "end": "end of a session",
    "overview": "overview",
}
SESSIONS = {
    "start": "start of one more session",
    "end": "end of one of them",
    "sync": "sync of one of them",
}

Figures = Mapping[str, Mapping[str, float]]


def words(x: float, y: float, text: str, ink: str = "currentColor", anchor: str = "middle") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'
    )


def apart(places: Sequence[float], gap: float = 15.0) -> list[float]:
    """Moves labels away from each other; they keep their order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    return moved


def power_of(sizes: Sequence[int], line: Sequence[float]) -> float:
    """The exponent between the last two sizes."""
    return math.log(line[-1] / line[-2]) / math.log(sizes[-1] / sizes[-2])


def chart(across: str, figures: Figures, names: Mapping[str, str]) -> Drawing:
    """Milliseconds of the controller over a size, both on logarithmic axes."""
    sizes = sorted(map(int, figures))
    lines = {key: [figures[str(size)][key] for size in sizes] for key in names}
    powers = {key: power_of(sizes, line) for key, line in lines.items()}
    ends = {key: line[-1] * math.pow(BEYOND, powers[key]) for key, line in lines.items()}
    every = [value for line in lines.values() for value in line] + list(ends.values())
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x_of(size: float) -> float:
        return LEFT + PLOT * math.log(size / sizes[0]) / math.log(sizes[-1] * BEYOND / sizes[0])

    def y_of(value: float) -> float:
        return HIGH - (HIGH - 14) * (math.log10(value) - low) / (high - low)

    drawn = [f'<path d="M{LEFT} 8V{HIGH}H{LEFT + PLOT}" fill="none" stroke="#57606a"/>']
    for power in range(low, high + 1):
        y = y_of(10**power)
        drawn.append(f'<path d="M{LEFT} {y:.1f}h{PLOT}" stroke="#57606a" stroke-opacity="0.2"/>')
        drawn.append(words(LEFT - 6, y + 4, f"{10.0**power:g} ms", anchor="end"))
    drawn += [words(x_of(size), HIGH + 16, f"{size:,}") for size in (*sizes, sizes[-1] * BEYOND)]
    drawn.append(words(LEFT + PLOT / 2, HIGH + 34, across))
    labels = apart([y_of(end) for end in ends.values()])
    for number, (key, line) in enumerate(lines.items()):
        tint = TINTS[number]
        points = [(x_of(size), y_of(value)) for size, value in zip(sizes, line, strict=True)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{tint}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{tint}"/>' for x, y in points]
        (x, y), last = points[-1], (x_of(sizes[-1] * BEYOND), y_of(ends[key]))
        drawn.append(
            f'<path d="M{x:.1f} {y:.1f}L{last[0]:.1f} {last[1]:.1f}" fill="none" '
            f'stroke="{tint}" stroke-width="2" stroke-dasharray="5 5"/>'
        )
        text = f"{names[key]} (exponent {powers[key]:.1f})".replace("-0.0", "0.0")
        drawn.append(words(LEFT + PLOT + 8, labels[number] + 4, text, tint, "start"))
    return Drawing(tuple(drawn), LEFT + PLOT + LABELS, HIGH + 40)


def pictures() -> dict[str, str]:
    """The picture by the name of its file."""
    tables = json.loads((HERE / "scale.json").read_text(encoding="utf-8"))["tables"]
    wide = LEFT + PLOT + LABELS
    return {
        "scale.svg": document(
            "Processor time of the controller, in milliseconds; dashed is extrapolated",
            below(
                lines_of_text(["A session on all nodes, one slot each"], wide, strong=True),
                chart("nodes", tables["nodes of 1"], NODES),
                lines_of_text(["Sessions of one worker beside each other"], wide, strong=True),
                chart("sessions", tables["sessions"], SESSIONS),
                gap=16,
            ),
        )
    }
