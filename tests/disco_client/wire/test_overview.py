"""An overview of a cluster: what follows from it, and that it travels whole."""

from __future__ import annotations

import json
from dataclasses import replace

from disco_client.pb import controller_pb2
from disco_client.wire.codec import Action
from disco_client.wire.overview import NodeView, Overview, RankView, SessionView, decode_overview
from disco_client.wire.reports import CollectiveReport, CommandReport

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


def message():
    """The same as a controller says it: of a rank whose node did not answer, the place alone."""
    pb = controller_pb2
    busy = pb.RankReport(
        worker=0,
        pid=11,
        state="running",
        current=pb.CommandReport(seq=8, action=Action.CALL_PACKED, name="step", seconds=1.5),
        finished=pb.CommandReport(seq=7, action=Action.CALL_PACKED, name="load", seconds=3.5),
        collective=pb.CollectiveReport(
            number=3,
            seq=8,
            name="allreduce(sum)",
            dtype="float32",
            shape=(4,),
            nbytes=16,
            members=(0, 1),
            seconds=0.5,
        ),
        memory_bytes=1 << 20,
        collectives=3,
        collective_bytes=48,
    )
    idle = pb.RankReport()
    idle.CopyFrom(busy)
    idle.worker = 1
    idle.ClearField("current")
    idle.ClearField("collective")
    places = [
        pb.RankInfo(worker=worker, node=node, pid=pid, device="cpu")
        for worker, node, pid in ((0, "a", 11), (1, "b", 11), (2, "c", 13))
    ]
    mine = pb.SessionInfo(
        session=0xABC, name="mine", owner="me@here:1", state="running", ranks=places
    )
    mine.num_workers, mine.attached, mine.age_s = 3, True, 2.5
    others = pb.SessionInfo(session=1, name="others", owner="x", state="detached", num_workers=1)
    others.age_s, others.lease_left_s = 9.0, 30.0
    over = pb.SessionInfo(session=2, name="over", owner="x", state="failed", num_workers=1)
    over.age_s, over.ended_s = 9.0, 30.5
    over.end_reason, over.end_message = "rank_lost", "worker 0 exited"
    here = pb.NodeInfo(name="a", state="ready", slots=2, free_slots=1, devices=("cpu", "cpu"))
    here.version, here.age_s = "1.2", 60.0
    away = pb.NodeInfo(name="c", state="away", slots=1, devices=("cpu",))
    away.version, away.age_s = "1.2", 60.0
    ranks = (
        pb.RankOverview(report=busy, commands_per_s=100.0, collective_bytes_per_s=4800.0),
        pb.RankOverview(report=idle, commands_per_s=90.0, collective_bytes_per_s=4800.0),
    )
    return pb.OverviewResult(
        version="1.2",
        taken_s=5.0,
        nodes=(pb.NodeOverview(info=here, latency_s=0.001), pb.NodeOverview(info=away)),
        sessions=(
            pb.SessionOverview(info=mine, yours=True, issued=9, executed=7, ranks=ranks),
            pb.SessionOverview(info=others),
            pb.SessionOverview(info=over, yours=True),
        ),
    )


def test_what_a_controller_says_is_read_whole():
    """With what is not known left out."""
    assert decode_overview(message()) == VIEW


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
