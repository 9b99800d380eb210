"""Draws a trace as a picture for docs/timeline.md; `make pictures` writes it.

The trace is a real one, of the program on that page; Perfetto shows the same rows.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRACE = HERE / "training.trace.json"
TITLE = "A trace of four ranks on two nodes: three steps of matmul, allreduce and tanh"

WIDTH, LEFT, ROW, BAR, HEAD, TOP = 960, 190, 17, 13, 24, 58
LETTER = 6.2
MOST_TICKS = 10
TINTS = {
    "issue": "#8d99ae",
    "command": "#6fa8dc",
    "collective": "#45b58a",
    "wait": "#e6a13c",
    "copy": "#b58ad6",
}
NAMES = {
    "issue": "leaves the program",
    "command": "command",
    "collective": "collective",
    "wait": "wait",
    "copy": "copy",
}


def read(trace: dict[str, Any]) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """The names of processes and of their rows."""
    names = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in names if e["name"] == "thread_name"}
    return processes, rows


def draw(trace: dict[str, Any]) -> str:
    """All rows of a trace, below an axis of milliseconds."""
    processes, rows = read(trace)
    timed = [event for event in trace["traceEvents"] if "ts" in event]
    end = max(event["ts"] + event.get("dur", 0) for event in timed)
    scale = (WIDTH - LEFT - 12) / end
    tops: dict[tuple[int, int], int] = {}
    drawn: list[str] = []
    y = TOP
    for pid in sorted(processes):
        drawn.append(text(8, y + 16, processes[pid], strong=True))
        drawn.append(f'<path d="M8 {y + 3.5}H{WIDTH - 8}" stroke="#ddd"/>')
        y += HEAD
        for row in sorted(row for row in rows if row[0] == pid):
            tops[row] = y
            drawn.append(text(20, y + 11, rows[row]))
            y += ROW
        y += 4
    axis = [tick(at, scale, y) for at in ticks(end)]
    bars = [bar(event, tops, scale) for event in timed if event["ph"] == "X"]
    body = "".join([*axis, *drawn, *bars, *arrows(timed, tops, scale)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" role="img" '
        f'width="{WIDTH}" height="{y + 8}" font-family="sans-serif" font-size="11">'
        f'<title>{escape(TITLE)}</title><rect width="100%" height="100%" fill="#fff"/>'
        f"{text(8, 18, TITLE, strong=True)}{legend()}{body}</svg>\n"
    )


def text(x: float, y: float, words: str, *, strong: bool = False) -> str:
    """A line of text."""
    weight = ' font-weight="bold"' if strong else ""
    return f'<text x="{x:g}" y="{y:g}" fill="#222"{weight}>{escape(words)}</text>'


def legend() -> str:
    """What the tints stand for."""
    found: list[str] = []
    x = LEFT
    for category, words in NAMES.items():
        found.append(
            f'<rect x="{x}" y="29" width="10" height="10" fill="{TINTS[category]}"/>'
            + text(x + 14, 38, words)
        )
        x += 40 + round(LETTER * len(words))
    return "".join(found)


def ticks(end: float) -> list[float]:
    """Round times along the axis, in microseconds: some eight of them."""
    step = 10 ** (len(str(int(end / 8))) - 1)
    while end / step > MOST_TICKS:
        step *= 2
    return [step * number for number in range(int(end * 0.96 / step) + 1)]


def tick(at: float, scale: float, bottom: int) -> str:
    """One of them, with a line through all rows."""
    x = LEFT + at * scale
    line = f'<path d="M{x:.1f} {TOP - 4}V{bottom}" stroke="#eee"/>'
    return line + text(x + 2, TOP - 5, f"{at / 1000:g} ms")


def bar(event: dict[str, Any], tops: dict[tuple[int, int], int], scale: float) -> str:
    """One event, with its name where there is room."""
    x, y = LEFT + event["ts"] * scale, tops[event["pid"], event["tid"]]
    width = max(event["dur"] * scale, 1.0)
    name = event["name"].removeprefix("runtime.disco.")
    shown = text(x + 3, y + 10, name) if width > LETTER * len(name) + 4 else ""
    tint = TINTS[event["cat"]]
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR}" fill="{tint}" '
        f'stroke="#fff" stroke-width=".7"/>{shown}'
    )


def arrows(
    timed: list[dict[str, Any]], tops: dict[tuple[int, int], int], scale: float
) -> list[str]:
    """From where commands left the program to where ranks began them."""
    found: dict[str, list[str]] = {}
    for event in timed:
        if event["ph"] in "sf":
            x, y = LEFT + event["ts"] * scale, tops[event["pid"], event["tid"]]
            found.setdefault(event["id"], []).append(f"{x:.1f} {y + BAR / 2:g}")
    return [
        f'<path d="M{"L".join(points)}" fill="none" stroke="#c33" stroke-opacity=".35"/>'
        for points in found.values()
    ]


def timeline() -> str:
    """The picture of the trace that lies beside this."""
    return draw(json.loads(TRACE.read_text("utf-8")))
