"""Spans of a whole cluster: one trace from a program to its ranks, and what fails in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from own_ports import own_port

from collecting import Collector
from disco_client import connect, errors
from disco_client.version import __version__
from disco_server.cli.local import LocalCluster

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
PROGRAM = """
import sys
import numpy as np
import disco_client

with disco_client.connect(sys.argv[1], num_workers=4, name="traced") as session:
    big = session.copy_to_worker_0(np.ones(2 << 20))
    assert big.debug_get_from_remote(0).sum() == 2 << 20
    small = session.empty((4,), "float32")
    session.broadcast_from_worker0(small, small)
    session.sync_all()
"""
LOSES_A_RANK = """
import sys
import disco_client

with disco_client.connect(sys.argv[1], num_workers=2, name="unlucky") as session:
    session.import_python_module("disco_test_functions")
    try:
        session.call_packed(session.get_global_func("tests.kill_on"), 1)
        session.sync_all()
    except disco_client.WorkerLost as lost:
        print(lost)
"""
FINDS_NO_ROOM = """
import sys
import disco_client

with disco_client.connect(sys.argv[1], num_workers=4):
    try:
        disco_client.connect(sys.argv[1], num_workers=1, name="crowded", timeout=2.0)
    except disco_client.NoSlots:
        print("no room")
"""
RECOVERS = """
import sys
import disco_client

with disco_client.connect(sys.argv[1], num_workers=2, name="stubborn", recover="replay") as session:
    session.import_python_module("disco_test_functions")
    session.call_packed(session.get_global_func("tests.kill_once_on"), 1, sys.argv[2])
    session.sync_all()
    assert len(session.recoveries) == 1
"""

IS_THE_CONTROLLER = """
import sys
import disco_client

with disco_client.SocketSession(2, 1, 1, "127.0.0.1", int(sys.argv[1]), name="own") as session:
    session.sync_all()
"""


@pytest.fixture(scope="module")
def collector():
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def variables(collector):
    """Spans leave soon, so that nothing waits for them; sessions are closed by their programs."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.http, "OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture(scope="module")
def traced(variables):
    """Two real worker daemons with two slots each, and their controller."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        made = LocalCluster(2, 2, import_path=[str(WORKER_MODULES)])
    with made:
        yield made


@pytest.fixture
def run(traced, variables):
    """Runs a program in a process of its own, and returns what it prints."""

    def run_one(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, traced.address, *arguments],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_one


def by_id(spans):
    return {span.id: span for span in spans}


def test_one_program_is_one_trace_down_to_its_ranks(run, collector):
    """Client, controller and both daemons are in it, each span below the one that caused it."""
    run(PROGRAM)
    (session,) = collector.named("disco.session", "traced")
    starts = collector.named("disco.rank.start", "traced", 4)
    ranks = collector.named("disco.rank", "traced", 4)
    opened = collector.named("disco.ccl.open", "traced", 4)
    collector.named("disco.session.end", "traced")
    spans = collector.spans(session.trace)
    (connect,) = [span for span in spans if span.name == "disco.connect"]
    (start,) = [span for span in spans if span.name == "disco.session.start"]

    assert all(span.error is None for span in spans)
    assert (session.parent, connect.parent, start.parent) == ("", session.id, connect.id)
    assert {span.parent for span in (*starts, *ranks, *opened)} == {start.id}
    below = {span.name: by_id(spans)[span.parent].name for span in spans if span.parent}
    assert below["disco.session.place"] == "disco.session.start"
    assert below["disco.session.end"] == "disco.session.start"
    assert below["disco.upload"] == below["disco.download"] == "disco.session"
    assert {span.service for span in spans} == {"disco-client", "disco-controller", "disco-worker"}


def test_spans_say_who_where_and_how_much(run, collector):
    """Ranks with node, process and device, arrays with their bytes, daemons with their release."""
    run(PROGRAM.replace('"traced"', '"told"'))
    (session,) = collector.named("disco.session", "told")
    starts = collector.named("disco.rank.start", "told", 4)
    (place,) = collector.named("disco.session.place", "told")
    (end,) = collector.named("disco.session.end", "told")
    copies = [s for s in collector.spans(session.trace) if s.name == "disco.upload"]

    assert sorted(span.facts["disco.rank"] for span in starts) == [0, 1, 2, 3]
    assert {span.facts["disco.node"] for span in starts} == {"node-0", "node-1"}
    assert {span.resource["disco.node"] for span in starts} == {"node-0", "node-1"}
    assert {span.resource["service.version"] for span in starts} == {__version__}
    assert all(span.facts["process.pid"] > 0 for span in starts)
    assert {span.facts["disco.device"] for span in starts} == {"cpu"}
    assert sorted(place.facts["disco.nodes"]) == ["node-0", "node-1"]
    assert session.facts["disco.nodes"] == ["node-0", "node-1"]
    assert end.facts["disco.end.reason"] == "closed"
    assert [span.facts["disco.bytes"] for span in copies] == [16 << 20]


def test_a_rank_that_dies_is_an_error_with_its_words(run, collector):
    """In the daemon's span, which names the command, in the controller's and in the client's."""
    assert "SIGKILL" in run(LOSES_A_RANK)
    (session,) = collector.named("disco.session", "unlucky")
    died, other = sorted(
        collector.named("disco.rank", "unlucky", 2), key=lambda span: span.error is None
    )
    (end,) = collector.named("disco.session.end", "unlucky")

    assert f"died of SIGKILL (signal {int(signal.SIGKILL)}" in str(died.error)
    assert (died.facts["disco.rank"], other.facts["disco.rank"]) == (1, 0)
    assert died.facts["disco.seq"] > 0
    assert other.error is None
    assert "worker 1" in str(end.error)
    assert (end.facts["disco.end.reason"], end.facts["disco.rank"]) == ("rank_lost", 1)
    assert "worker 1" in str(session.error)
    assert died.trace == end.trace == session.trace


def test_a_wait_for_slots_that_ends_in_vain_is_an_error(run, collector):
    """The controller's span says how long it was queued, and the client's why it failed."""
    assert run(FINDS_NO_ROOM) == "no room\n"
    (place,) = collector.named("disco.session.place", "crowded")
    assert "slots" in str(place.error)
    assert place.ended_ns - place.began_ns > 0.4e9
    collector.wait_for(lambda s: s.trace == place.trace and s.name == "disco.session")
    failed = {span.name for span in collector.spans(place.trace) if span.error is not None}
    assert failed >= {"disco.session", "disco.connect", "disco.session.start"}


def test_a_recovery_is_in_the_trace_with_the_session_that_it_opens(run, collector, tmp_path):
    """The session's span does not fail: what was lost stands in that of the recovery."""
    run(RECOVERS, str(tmp_path / "once"))
    starts = collector.named("disco.session.start", "stubborn", 2)
    (session,) = collector.named("disco.session", "stubborn")
    (recover,) = [s for s in collector.spans(session.trace) if s.name == "disco.recover"]
    assert (session.error, recover.error, recover.parent) == (None, None, session.id)
    assert "worker 1" in recover.facts["disco.lost"]
    assert recover.id in {span.parent for span in starts}


def test_ranks_get_nothing_of_it(traced):
    """Their environment has no variable of OpenTelemetry, though all others of the daemon."""
    (daemon, *_) = [psutil.Process(pid).environ() for pid in traced.pids[1:]]
    with connect(traced.address, num_workers=4) as session:
        for rank in session.workers:
            passed = psutil.Process(rank.pid).environ()
            assert passed["PATH"] == daemon["PATH"]
            assert not [name for name in passed if name.startswith("OTEL_")]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in daemon


def test_a_program_that_is_the_controller_is_one_trace_with_other_nodes(
    daemons, collector, variables
):
    """A SocketSession's own process has the client's and the controller's spans."""
    port = own_port()
    program = subprocess.Popen(
        [sys.executable, "-c", IS_THE_CONTROLLER, str(port)],
        env={**os.environ, **variables},
        stderr=subprocess.DEVNULL,
    )
    try:
        daemons.worker(f"127.0.0.1:{port}", "--slots", "1", "--name", "other", **variables)
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
    (session,) = collector.named("disco.session", "own")
    starts = collector.named("disco.rank.start", "own", 2)
    services = {span.facts["disco.node"]: span.service for span in starts}
    assert services == {"node-0": "disco-client", "other": "disco-worker"}
    assert {span.trace for span in starts} == {session.trace}
    assert session.parent == ""


def lose_rank_1(daemons, **variables):
    """What daemons log in JSON of a session whose rank 1 prints, and is killed by a command."""
    controller = daemons.controller("--log-format", "json", **variables)
    worker = daemons.worker(
        controller.address, "--slots", "2", "--name", "n1", "--log-format", "json", **variables
    )
    with connect(controller.address, num_workers=2, name="logged", logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")("a line")
        session.sync_all()
        killed = session.statistics()["issued"] + 2  # the lookup comes before the call
        session.get_global_func("tests.kill_on")(1)
        with pytest.raises(errors.WorkerLost):
            session.sync_all()
    return killed, controller, worker


def entries_of(daemon):
    lines = daemon.stderr.split("\n")[:-1]  # not one that is being written
    return [json.loads(line) for line in lines]


def find(daemon, text, eventually):
    """Waits for an entry of a daemon's log whose message has a text."""
    found = []

    def there():
        found[:] = [entry for entry in entries_of(daemon) if text in entry["message"]]
        return found

    eventually(there, what=f"an entry with {text!r}")
    return found[-1]


def test_json_logs_name_session_rank_and_command(daemons, eventually):
    """Of what ranks print and how they die, in both daemons; no ids where nobody traces."""
    killed, controller, worker = lose_rank_1(daemons)
    said = find(worker, "[worker 1 n1] a line", eventually)
    died = find(worker, "ended with status -9", eventually)
    runs = find(worker, "ranks [0, 1] run on n1", eventually)
    ended = find(controller, "session ends (rank_lost)", eventually)
    facts = [
        {name: entry.get(name) for name in ("session", "rank", "seq", "node")}
        for entry in (said, died, runs, ended)
    ]
    assert facts == [
        {"session": "logged", "rank": 1, "seq": None, "node": "n1"},
        {"session": "logged", "rank": 1, "seq": killed, "node": "n1"},
        {"session": "logged", "rank": None, "seq": None, "node": "n1"},
        {"session": "logged", "rank": 1, "seq": None, "node": "n1"},
    ]
    entries = entries_of(controller) + entries_of(worker)
    assert not [entry for entry in entries if "trace_id" in entry]


def test_json_logs_lead_to_the_spans(daemons, collector, variables, eventually):
    """A line about a rank has the ids of its span, the line about the end those of the end."""
    _, controller, worker = lose_rank_1(daemons, **variables)
    died = find(worker, "ended with status -9", eventually)
    ended = find(controller, "session ends (rank_lost)", eventually)
    ranks = collector.named("disco.rank", "logged", 2)
    (rank,) = [span for span in ranks if span.error is not None]
    (end,) = collector.named("disco.session.end", "logged")
    assert (died["trace_id"], died["span_id"]) == (rank.trace, rank.id)
    assert (ended["trace_id"], ended["span_id"]) == (end.trace, end.id)
