"""An overview of a cluster: what follows from it, and that it travels whole."""

from __future__ import annotations

import json
from dataclasses import replace

from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    CollectiveReport,
    CommandReport,
    EncodedOverview,
    NodeView,
    Overview,
    RankView,
    SessionView,
    decode_overview,
    encode_overview,
)

BUSY = RankView(
    *(0, "a", 11, "cpu", "running", 7),
    CommandReport(8, Action.CALL_PACKED, "step", 1.5),
    CollectiveReport(3, 8, 0, "allreduce(sum)", "float32", (4,), 16, (0, 1), 0.5, met=False),
    *(1 << 20, 3, 48, 100.0, 4800.0),
)
IDLE = replace(BUSY, worker=1, node="b", current=None, collective=None, commands_per_s=90.0)
SILENT = RankView(2, "c", 13, "cpu")
MINE = SessionView(
    *(0xABC, "mine", "me@here:1", "running", 3, True, 2.5),
    issued=9,
    executed=7,
    ranks=(BUSY, IDLE, SILENT),
)
OTHERS = SessionView(1, "others", "x", "detached", 1, False, 9.0, 30.0, yours=False)
OVER = SessionView(
    *(2, "over", "x", "failed", 1, False, 9.0),
    ended_s=30.5,
    end_reason="rank_lost",
    end_message="worker 0 exited",
)
VIEW = Overview(
    "1.2",
    5.0,
    (
        NodeView("a", "ready", 2, 1, ("cpu", "cpu"), "1.2", 60.0, 0.001),
        NodeView("c", "away", 1, 1, ("cpu",), "1.2", 60.0),
    ),
    (MINE, OTHERS, OVER),
)


def test_it_travels_whole():
    """What a controller encodes a client decodes, with what is not known left out."""
    raw = encode_overview(VIEW).SerializeToString()
    assert decode_overview(EncodedOverview.FromString(raw)) == VIEW


def test_a_session_sums_up_its_ranks():
    """As fast as the slowest rank; bytes and memory are those of all."""
    assert (MINE.queued, MINE.nodes) == (2, ("a", "b", "c"))
    assert MINE.commands_per_s == 90.0
    assert MINE.collective_bytes_per_s == 9600.0
    assert MINE.memory_bytes == 2 << 20
    assert (OTHERS.commands_per_s, OTHERS.collective_bytes_per_s) == (None, None)


def test_programs_get_the_same_as_json():
    """Ids as people see them, commands and collectives in words."""
    view = json.loads(json.dumps(VIEW.as_dict()))
    assert [session["session"] for session in view["sessions"]] == [
        f"{number:016x}" for number in (0xABC, 1, 2)
    ]
    assert view["sessions"][0]["queued"] == 2
    first, second, third = view["sessions"][0]["ranks"]
    assert first["current"] == {"seq": 8, "what": "step", "seconds": 1.5}
    assert first["collective"]["what"] == "allreduce(sum) #3 float32[4]"
    assert first["collective"]["members"] == [0, 1]
    assert (second["current"], second["collective"]) == (None, None)
    assert (third["state"], third["commands_per_s"]) == ("unknown", None)
    assert [node["latency_s"] for node in view["nodes"]] == [0.001, None]
