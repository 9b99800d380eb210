"""When sessions are warned and ended: by their length, and because a client does nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_server.core.cluster import AskIfQuiet, Cluster, StartSession, TellEnded, TellExpiring
from disco_server.core.nodes import Node
from disco_server.core.quotas import Quota, SessionLimits
from disco_server.core.session_state import Activity, End, EndReason, SessionState, SessionTable


def cluster_with(**quota):
    made = Cluster(1000.0, 5000.0, limits=SessionLimits(quota=Quota(**quota), warning_s=10.0))
    made.node_joined(Node("a", ("cpu",) * 4, 1, "0.1", "host", 0.0))
    return made


def start(cluster, number=1, workers=1, now=0.0):
    """A session that runs, and that the cluster has looked at."""
    asked = SessionTable(
        *(number, f"s{number}", "me@here:1", workers, 1, "", b"key", 0.0, 1e6),
        principal="token:ann",
    )
    effects = cluster.requested(asked)
    if effects == [StartSession(asked)]:
        ranks = [(worker, "a", 100 + worker, "cpu") for worker in range(workers)]
        cluster.ready_on_node(number, "a", ranks)
        cluster.tick(now)
    return asked


def test_a_session_is_warned_and_then_ended_at_its_length():
    """Once each, with the limit; also while its client is away."""
    cluster = cluster_with(session_limit_s=100.0)
    asked = start(cluster)
    assert cluster.tick(89.0) == []
    assert cluster.tick(91.0) == [TellExpiring(asked, EndReason.EXPIRED, 9.0, 100.0)]
    cluster.client_left(1, 92.0)
    assert asked.state is SessionState.DETACHED
    assert cluster.tick(93.0) == []
    cluster.client_back(1, "")
    assert cluster.tick(94.0) == [TellExpiring(asked, EndReason.EXPIRED, 6.0, 100.0)]
    told = cluster.tick(100.0)[0]
    assert isinstance(told, TellEnded)
    assert (told.end.reason, told.end.limit_s) == (EndReason.EXPIRED, 100.0)
    assert "has held its slots for 100 s" in told.end.message
    assert "--session-limit" in told.end.message


def test_the_time_before_the_controller_was_started_again_counts():
    """As its node knows it."""
    cluster = cluster_with(session_limit_s=100.0)
    asked = start(cluster)
    asked.activity = Activity(before_s=95.0)
    assert cluster.tick(1.0) == [TellExpiring(asked, EndReason.EXPIRED, 5.0, 100.0)] or (
        asked.activity.ends_by is EndReason.EXPIRED
    )


def test_a_client_that_does_nothing_is_warned_when_its_nodes_are_quiet():
    """They are asked once, shortly before; any message of the client takes the warning back."""
    cluster = cluster_with(idle_limit_s=60.0)
    asked = start(cluster)
    assert cluster.tick(49.0) == []
    assert cluster.tick(51.0) == [AskIfQuiet(asked)]
    assert cluster.tick(52.0) == []
    cluster.nodes_said(1, 52.5, 52.0)
    assert cluster.tick(53.0) == [TellExpiring(asked, EndReason.IDLE, 7.5, 60.0)]
    asked.activity.acted = True
    assert cluster.tick(54.0) == [TellExpiring(asked, None, 0.0, 0.0)]
    assert cluster.tick(103.0) == []
    assert cluster.tick(105.0) == [AskIfQuiet(asked)]
    cluster.nodes_said(1, 105.0, 100.0)
    assert [type(each) for each in cluster.tick(106.0)] == [TellExpiring]
    told = cluster.tick(114.0)[0]
    assert (told.end.reason, told.end.limit_s) == (EndReason.IDLE, 60.0)
    assert "did nothing for 60 s" in told.end.message


@pytest.mark.parametrize(("seconds", "asked_again"), [(0.0, 101.0), (20.0, 81.0), (None, 51.5)])
def test_while_a_command_runs_or_nobody_knows_nobody_is_idle(seconds, asked_again):
    """The time counts from when the last command ended; who gets no answer asks again."""
    cluster = cluster_with(idle_limit_s=60.0)
    asked = start(cluster)
    assert cluster.tick(51.0) == [AskIfQuiet(asked)]
    cluster.nodes_said(1, 51.0, seconds)
    assert cluster.tick(asked_again - 0.4) == ([] if seconds is not None else [AskIfQuiet(asked)])
    if seconds is not None:
        assert cluster.tick(asked_again + 0.1) == [AskIfQuiet(asked)]
    assert asked.state is SessionState.RUNNING


def test_a_client_that_is_away_is_not_idle():
    """The session's lease says how long it may be; when it is back, it has just come."""
    cluster = cluster_with(idle_limit_s=60.0)
    asked = start(cluster)
    cluster.client_left(1, 1.0)
    assert cluster.tick(200.0) == []
    cluster.client_back(1, "")
    assert cluster.tick(201.0) == []
    assert cluster.tick(250.0) == []
    assert cluster.tick(252.0) == [AskIfQuiet(asked)]


def test_the_nearer_of_two_ends_is_told():
    """An owner may have both limits, and a short one warns at half of it."""
    cluster = cluster_with(idle_limit_s=8.0, session_limit_s=20.0)
    asked = start(cluster)
    assert cluster.tick(4.5) == [AskIfQuiet(asked)]
    cluster.nodes_said(1, 4.5, 4.5)
    assert cluster.tick(5.0) == [TellExpiring(asked, EndReason.IDLE, 3.0, 8.0)]
    asked.activity.acted = True
    assert cluster.tick(7.0) == [TellExpiring(asked, None, 0.0, 0.0)]
    assert cluster.tick(10.0) == [TellExpiring(asked, EndReason.EXPIRED, 10.0, 20.0)]


def test_limits_that_are_lifted_end_nobody():
    """The file of quotas may change at any time; who was warned is told."""
    cluster = cluster_with(session_limit_s=100.0)
    asked = start(cluster)
    cluster.tick(95.0)
    cluster.limit(replace(cluster.limits, owners={"ann": Quota()}))
    assert cluster.tick(96.0) == [TellExpiring(asked, None, 0.0, 0.0)]
    cluster.limit(replace(cluster.limits, quota=Quota(), owners={}))
    assert cluster.tick(200.0) == []
    cluster.limit(replace(cluster.limits, quota=Quota(session_limit_s=150.0)))
    assert isinstance(cluster.tick(201.0)[0], TellEnded)


def test_a_session_waits_for_its_owner_s_slots_and_is_told_so_when_it_gives_up():
    """The error has the quota, what is used, and by which sessions."""
    cluster = cluster_with(slots=2)
    holds, waits = start(cluster, 1, 2), start(cluster, 2, 1)
    waits.deadline = 5.0
    assert waits.state is SessionState.QUEUED
    told = cluster.tick(6.0)[0]
    assert told.end.reason is EndReason.QUOTA
    assert (told.end.quota.name, told.end.quota.limit, told.end.quota.used) == ("slots", 2, 2)
    assert told.end.quota.sessions == ("s1",)
    assert "may hold 2 slots at a time, and holds 2 ('s1' holds 2)" in told.end.message
    last = start(cluster, 3, 2)
    cluster.end(holds.session, End(EndReason.CLOSED, ""))
    assert StartSession(last) in cluster.gone_on_node(1, "a")


def test_a_quota_that_is_lowered_refuses_who_may_never_begin_and_ends_nobody():
    """Those that run go on; those that wait and have too many workers are told."""
    cluster = cluster_with(slots=4)
    runs, waits = start(cluster, 1, 4), start(cluster, 2, 4)
    effects = cluster.limit(replace(cluster.limits, quota=Quota(slots=2)))
    assert effects[0].end.quota.name == "slots"
    assert waits.state is SessionState.GONE
    assert runs.state is SessionState.RUNNING
