"""Which part of a cluster a page gets: never more than a screen of each list."""

from __future__ import annotations

import json

import pytest

from disco_client.wire.overview import GpuView, LoadView, NodeView, Overview, RankView, SessionView
from disco_server.controller.page_views import ROWS, Selection, select

NODES = tuple(
    NodeView(
        f"node-{n}", "ready", 4, 1, ("cpu",) * 4, "1", 5.0, load=LoadView(0.5, 0.25, 8, 1, 0, 0)
    )
    for n in range(1000)
)


def session(number, **more):
    given = {"state": "running", "num_workers": 1000, "attached": True, "age_s": 1.0} | more
    ranks = tuple(
        RankView(w, "node-0", 1, "cpu", "running", memory_bytes=2, commands_per_s=3.0)
        for w in range(1000 if number == 1 else 1)
    )
    return SessionView(number, f"s{number}", f"owner-{number % 7}", ranks=ranks, **given)


SESSIONS = (
    *(session(number) for number in range(1, 1001)),
    *(session(number, state="queued", waits_for="why") for number in range(2001, 2101)),
    *(
        session(number, state="failed", ended_s=number - 3000.0, end_reason="rank_lost")
        for number in range(3200, 3000, -1)
    ),
)
VIEW = Overview("1", 1.0, NODES, SESSIONS)


def shown(**wanted):
    return select(VIEW, Selection(**wanted))


def test_lists_have_a_screen_of_rows_and_say_how_many_there_are():
    """Whatever the cluster has, an answer is some tens of kilobytes."""
    found = shown(session=f"{1:016x}")
    for name, many in (("nodes", 1000), ("sessions", 1000), ("waiting", 100), ("over", 200)):
        assert len(found[name]["rows"]) == ROWS
        assert found[name]["found"] == many
    assert len(found["session"]["ranks"]["rows"]) == ROWS
    assert found["session"]["ranks"]["found"] == 1000
    assert all("ranks" not in row for row in found["sessions"]["rows"])
    assert len(json.dumps(found)) < 100_000


def test_totals_are_those_of_everything():
    """Not of what fits on the screen."""
    totals = shown()["totals"]
    assert (totals["nodes"], totals["slots"], totals["used"]) == (1000, 4000, 1000)
    assert (totals["sessions"], totals["waiting"], totals["cpu"]) == (1000, 100, 0.5)
    assert totals["gpu"] is None
    gpu = LoadView(0.5, 0.5, 8, 1, 0, 0, (GpuView(0.25, 0.5, 1), GpuView(0.75, 0.5, 1)))
    node = NodeView("g", "away", 1, 0, ("cuda:0",), "1", 5.0, load=gpu)
    totals = select(Overview("1", 1.0, (node,)), Selection())["totals"]
    assert (totals["gpu"], totals["away"]) == (0.5, 1)


def test_a_session_has_the_sums_over_its_ranks():
    """Those that are not shown count as well."""
    row = shown()["sessions"]["rows"][0]
    assert (row["memory_bytes"], row["commands_per_s"]) == (2000, 3.0)


def test_one_may_turn_pages_and_look_for_names():
    """Behind the last page comes nothing, so the last one is shown."""
    rows = shown(nodes_from=50)["nodes"]["rows"]
    assert [row["name"] for row in rows][:2] == ["node-50", "node-51"]
    assert shown(nodes_from=999_999)["nodes"]["from"] == 975
    found = shown(nodes_find="NODE-99", sessions_find="owner-3", over_find="rank_l")
    assert found["nodes"]["found"] == 11
    assert {row["owner"] for row in found["sessions"]["rows"]} == {"owner-3"}
    assert found["over"]["found"] == 200
    assert shown(nodes_find="none")["nodes"] == {"found": 0, "from": 0, "rows": []}


def test_what_ended_last_comes_first_and_what_waits_says_why():
    """Each session is in one of the lists."""
    found = shown()
    ages = [row["ended_s"] for row in found["over"]["rows"]]
    assert ages == sorted(ages)
    assert [row["name"] for row in found["waiting"]["rows"]][:2] == ["s2001", "s2002"]
    assert found["waiting"]["rows"][0]["waits_for"] == "why"
    assert all(row["state"] == "running" for row in found["sessions"]["rows"])


@pytest.mark.parametrize("text", ["-1", "x", "1e3", "٣", "9999999999"])
def test_a_page_that_is_no_number_is_refused(text):
    """With what was expected."""
    with pytest.raises(ValueError, match="expected a number from 0"):
        Selection.read({"nodes_from": text})
