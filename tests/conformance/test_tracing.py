"""A trace of a block, for sessions of every kind."""

from __future__ import annotations

import json

import numpy as np
import pytest
from traces import check_chrome_trace, rows, spans

import disco_client as di


@pytest.fixture
def traced(session, tmp_path):
    """A block with a copy each way, a collective and an answer, and its trace."""
    array = session.empty((3, 2), "float32")
    session.allreduce(array, array)
    session.sync_all()
    path = tmp_path / "out.json"
    with session.trace(path):
        host = np.ones((300, 400), "float32")
        copy = session.copy_to_worker_0(host)
        session.allreduce(array, array)
        assert np.array_equal(copy.numpy(), host)
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text()[:-3])
    return json.loads(path.read_text())


def test_a_trace_has_what_every_rank_and_the_program_did(session, traced):
    """Between the beginning and the end of the block, and nothing is missing."""
    check_chrome_trace(traced)
    assert traced["otherData"]["missing"] == []
    found = rows(traced)
    assert len(found) == session.num_workers + 1
    assert "commands issued" in found.pop("client")
    assert all({"commands", "collectives"} <= each for each in found.values())
    for worker in range(session.num_workers):
        (reduced,) = spans(traced, "collective", worker)
        assert reduced["name"] == "allreduce(sum)"
        assert (reduced["args"]["bytes"], reduced["args"]["dtype"]) == (24, "float32")
        assert reduced["args"]["workers"] == list(range(session.num_workers))
    assert [e["args"]["direction"] for e in spans(traced, "copy", 0)][:2] == [
        "host to rank",
        "rank to host",
    ]


def test_commands_of_a_trace_lead_to_the_lines_that_issued_them(traced):
    """With arrows to the ranks, and the wait for the answer."""
    lines = [line for e in spans(traced, "issue") for line in e["args"]["issued_at"]]
    assert any(line.startswith(f"{__file__}:") for line in lines)
    assert [event for event in traced["traceEvents"] if event["ph"] == "s"]
    waits = {event["name"] for event in spans(traced, "wait", -1)}
    assert "wait for debug_get_from_remote" in waits


def test_more_commands_than_a_rank_keeps_are_all_there(session, tools, tmp_path):
    """Their records are fetched meanwhile; what was not would be said."""
    path, count = tmp_path / "long.json", 17_000
    echo = session.get_global_func("conformance.echo")
    session.sync_all()
    with session.trace(path):
        for _ in range(count):
            _result = echo(3)
    trace = json.loads(path.read_text())
    for worker in range(session.num_workers):
        seqs = [event["args"]["command"] for event in spans(trace, "command", worker)]
        assert seqs == sorted(set(seqs))
        said = [t for t in trace["otherData"]["missing"] if t.startswith(f"rank {worker}: ")]
        assert len(seqs) >= count or said


def test_a_block_that_fails_leaves_its_trace(session, tools, tmp_path):
    """The error of the block is what is raised, and the session goes on."""
    path = tmp_path / "failed.json"
    result = tools.call("fail_on", [0], "told to fail")
    with pytest.raises(di.RemoteException, match="told to fail"), session.trace(path):
        tools.fetch(tools.call("echo", result))
    found = spans(json.loads(path.read_text()), "command", 0)
    assert len([event for event in found if "skipped" in event["args"]]) == 1
    session.sync_all()


def test_a_trace_that_cannot_be_is_refused(session, tmp_path):
    """While another one is open, and where no file can be; both before anything is traced."""
    refused = pytest.raises(di.ConfigError, match=r"traced already, into .*a\.json")
    with session.trace(tmp_path / "a.json") as trace, refused:
        session.trace(tmp_path / "b.json").__enter__()
    with pytest.raises(di.ConfigError, match="cannot be entered again"):
        trace.__enter__()
    with pytest.raises(FileNotFoundError):
        session.trace(tmp_path / "nowhere" / "c.json").__enter__()
    assert not (tmp_path / "b.json").exists()


def test_a_session_that_ends_inside_leaves_what_was_fetched(open_session, tmp_path):
    """And the file says that the end is missing, where it is."""
    path = tmp_path / "ended.json"
    session = open_session()
    with session.trace(path):
        array = session.empty((2,), "float32")
        session.allreduce(array, array)
        session.sync_all()
        session.shutdown()
    trace = json.loads(path.read_text())
    check_chrome_trace(trace)
    assert spans(trace, "command", 0) or trace["otherData"]["missing"]
    assert spans(trace, "collective", 0) or trace["otherData"]["missing"]
    with pytest.raises(di.SessionClosed):
        session.trace(path).__enter__()
