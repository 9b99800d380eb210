"""What the dashboard shows of a rank's programs and tensors."""

from __future__ import annotations

import pytest

from disco_client.pb import controller_pb2 as pb
from disco_client.wire.reports import Inspection, NodeSilence, RankReport, RankState
from disco_server.controller.page_holdings import PARTS, programs, tensors

ASKED = pb.HoldingsRequest()


def found(held=None, **facts):
    return Inspection(1, "s", 1, (RankReport(0, "here", 1, holdings=held, **facts),))


def steps_of(count, **columns):
    held = pb.Holdings()
    held.steps.CopyFrom(
        pb.ProgramSteps(
            name="p",
            names=["even", "odd"],
            what=[step % 2 for step in range(count)],
            recorded=range(1, count + 1),
            reads=[min(step, 1) for step in range(count)],
            sources=range(1, count),
            timed=2,
            total_ns=[2_000] * count,
            last_ns=[1_500] * count,
        )
    )
    held.steps.MergeFrom(pb.ProgramSteps(**columns))
    return held


def graph(held, first=0, count=40):
    return programs(found(held), ASKED, first, count)["graph"]


def test_a_window_of_a_long_program_is_shown_with_where_all_its_time_goes():
    """However long it is, the answer is bounded."""
    told = graph(steps_of(5000), 4990)
    assert (told["steps"], told["from"], len(told["rows"])) == (5000, 4990, 10)
    assert [row["step"] for row in told["rows"]][:2] == [4991, 4992]
    assert told["rows"][0]["reads"] == [4990]
    assert told["rows"][0]["mean_s"] == pytest.approx(1e-6)
    assert told["rows"][0]["last_s"] == pytest.approx(1.5e-6)
    assert told["rows"][0]["share"] == pytest.approx(1 / 5000)
    assert len(told["parts"]) == PARTS
    assert sum(part[1] for part in told["parts"]) == pytest.approx(told["run_s"])
    assert [(each["name"], each["count"]) for each in told["functions"]] == [
        ("even", 2500),
        ("odd", 2500),
    ]
    assert graph(steps_of(3), 70)["from"] == 2  # beyond its end: the last one


def test_a_program_whose_steps_were_not_timed_has_no_times():
    """Rather than zeros."""
    held = steps_of(4)
    held.steps.timed = 0
    held.steps.ClearField("total_ns")
    held.steps.total_ns.extend([0] * 4)
    told = graph(held)
    assert told["run_s"] is None
    assert {(row["mean_s"], row["last_s"], row["share"]) for row in told["rows"]} == {(None,) * 3}


def test_very_many_functions_are_put_together():
    """Those that took least."""
    names = [f"f{n}" for n in range(100)]
    held = pb.Holdings()
    held.steps.CopyFrom(
        pb.ProgramSteps(
            names=names,
            what=range(100),
            recorded=range(1, 101),
            reads=[0] * 100,
            timed=1,
            total_ns=range(100),
            last_ns=range(100),
        )
    )
    told = graph(held)
    assert [each["name"] for each in told["functions"]][:2] == ["f99", "f98"]
    assert told["functions"][-1] == {
        "name": "others",
        "seconds": pytest.approx(sum(range(76)) / 1e9),
        "count": 76,
    }
    assert told["rows"][0]["function"] == 24
    assert told["rows"][0]["name"] == "f0"


@pytest.mark.parametrize("columns", [{"what": [7]}, {"reads": [1]}, {"last_ns": [1]}])
def test_what_no_rank_says_is_not_drawn(columns):
    """A rank's own code may write to its socket."""
    assert graph(steps_of(2, **columns)) is None


def test_why_there_is_nothing_is_said():
    """The node or the rank does not answer, or is gone."""
    silent = Inspection(1, "s", 1, (), (NodeSilence("green", (0,), 3.0),))
    ended = found(state=RankState.ENDED)
    for look in (lambda x: programs(x, ASKED, 0, 9), lambda x: tensors(x, ASKED, "", 0)):
        assert look(silent)["note"] == "node green did not answer"
        assert look(ended)["note"] == "the process is ended"
        assert "between two batches" in look(found())["note"]


def tensor(**whole):
    held = pb.Holdings(num_tensors=1)
    known = {"shape": [8, 6], "dtype": "float32", "placement": "S[0]", "mesh": [4]}
    known |= {"workers": range(4)} | whole
    held.tensors.add(name="w", whole=pb.WholeTensor(**known))
    return held


def layout(held, first=0):
    return tensors(found(held), ASKED, "w", first)["layout"]


def test_a_layout_says_which_worker_holds_which_part():
    """As a picture and in rows, with bytes."""
    told = layout(tensor())
    assert told["svg"].startswith("<svg")
    assert told["workers"]["rows"][1] == {
        "worker": 1,
        "part": "[2:4, 0:6]",
        "shape": [2, 6],
        "bytes": 48,
    }
    assert layout(tensor(), 3)["workers"]["rows"][0]["worker"] == 3


def test_a_layout_on_very_many_workers_has_rows_alone():
    """A page of them."""
    told = layout(tensor(mesh=[1024], workers=range(1024)))
    assert told["svg"] == ""
    assert (told["workers"]["found"], len(told["workers"]["rows"])) == (1024, 25)


@pytest.mark.parametrize(
    "whole",
    [{"placement": "S["}, {"dtype": "none"}, {"mesh": [3]}, {"workers": [0, 0, 1, 2]}],
)
def test_what_is_no_layout_is_said_to_be_none(whole):
    """A program may note what it likes."""
    told = layout(tensor(**whole))
    assert "cannot be drawn" in told["title"]
    assert (told["svg"], told["workers"]) == ("", None)
