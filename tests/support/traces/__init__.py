"""What every file in Chrome's trace format keeps to, and how tests find their way in one."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

__all__ = ["check_chrome_trace", "rows", "spans"]

_METADATA = {
    "process_name": {"name": str},
    "process_labels": {"labels": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}
_SLACK_US = 0.002
"""Times are nanoseconds, cut into parts."""


def check_chrome_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Fails where a trace breaks the rules of the format; returns its events.

    Complete events have a time and a length, events of one row lie inside each other or
    apart, arrows begin once and end once inside an event, and every row has a name.
    """
    json.dumps(trace, allow_nan=False)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    named: set[tuple[int, int]] = set()
    complete: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        row = event["pid"], event["tid"]
        if event["ph"] == "M":
            kinds = _METADATA[event["name"]]
            assert {key: type(value) for key, value in event["args"].items()} == kinds
            if event["name"] == "thread_name":
                assert row not in named
                named.add(row)
            continue
        assert event["cat"]
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["args"], dict)
            complete[row].append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] in ("s", "f")
            assert event["ph"] == "s" or event["bp"] == "e"
            arrows[event["id"]].append(event)
    assert set(complete) <= named
    for found in complete.values():
        _check_nesting(found)
    for pair in arrows.values():
        assert [each["ph"] for each in pair] == ["s", "f"]
        assert len({(each["name"], each["cat"]) for each in pair}) == 1
        for each in pair:
            at, row = each["ts"], complete[each["pid"], each["tid"]]
            assert any(a - _SLACK_US <= at <= b + _SLACK_US for a, b in row)
    return events


def _check_nesting(found: list[tuple[float, float]]) -> None:
    open_: list[float] = []
    for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
        while open_ and open_[-1] <= start + _SLACK_US:
            open_.pop()
        assert not open_ or end <= open_[-1] + _SLACK_US
        open_.append(end)


def rows(trace: dict[str, Any]) -> dict[str, set[str]]:
    """The names of a trace's processes, each with those of its rows."""
    processes: dict[int, str] = {}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
    for event in trace["traceEvents"]:
        if event["name"] == "thread_name":
            found[processes[event["pid"]]].add(event["args"]["name"])
    return dict(found)


def spans(trace: dict[str, Any], category: str, worker: int | None = None) -> list[dict[str, Any]]:
    """The complete events of a category, of one rank or of all processes."""
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X"
        and event["cat"] == category
        and (worker is None or event["pid"] == worker + 1)
    ]
