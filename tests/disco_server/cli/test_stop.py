"""``disco stop``: sessions end, and their slots are free when it returns."""

from __future__ import annotations

import json

import pytest

from disco_client import connect, errors


def test_it_ends_a_session_and_waits_for_its_slots(disco, cluster, eventually):
    """The program hears of it; in the next moment the slots are free."""
    with connect(cluster.address, num_workers=4, name="first") as session:
        shown = disco("stop", "first")
        assert shown.output == f"session 'first' ({session.session_id}) is stopped\n"
        free = json.loads(disco("status", "--json").stdout)["nodes"]
        assert sum(node["free_slots"] for node in free) == 4
        with pytest.raises(errors.SessionLost, match="'first' was closed on request"):
            eventually(session.sync_all)


def test_several_are_ended_one_after_the_other(disco, cluster):
    """By name or id; the JSON has them all."""
    made = [connect(cluster.address, num_workers=1, name=f"s{i}") for i in range(2)]
    shown = disco("stop", "s0", made[1].session_id, "--json")
    expected = [{"session": s.session_id, "name": s.name} for s in made]
    assert json.loads(shown.stdout) == {"stopped": expected}
    for session in made:
        session.shutdown()


def test_what_there_is_not_is_exit_code_5(disco):
    """And no session at all is a usage error."""
    shown = disco("stop", "nope")
    assert (shown.exit_code, shown.stdout) == (5, "")
    assert "got 'nope'; there run: " in shown.stderr
    assert disco("stop").exit_code == 2
