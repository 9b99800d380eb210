"""``disco stack``: where the ranks of a session are in their code."""

from __future__ import annotations

import json

from disco_client import connect


def test_equal_stacks_are_shown_once_and_others_by_rank(disco, cluster, eventually):
    """Idle ranks are alike; one that is busy shows what it does."""
    with connect(cluster.address, num_workers=3, name="asked") as session:
        session.sync_all()

        def alike():  # a rank that has answered may be on its way to where it waits
            return disco("stack", "asked").output.startswith("ranks 0-2:\n")

        eventually(alike, what="three equal stacks")
        assert "rank/port.py" in disco("stack", "asked").output
        session.import_python_module("disco_test_functions")
        sleep = session.get_global_func("tests.sleep").on(worker=1)
        sleep(5.0)

        def shown():
            return json.loads(disco("stack", "asked", "--json").stdout)["ranks"]

        eventually(lambda: "sleep" in shown()[1]["stack"], what="the busy rank's stack")
        assert [rank["worker"] for rank in shown()] == [0, 1, 2]
        one = disco("stack", session.session_id, "1").output
        assert one.startswith("rank 1:\n")
        assert "sleep" in one
        assert disco("stack", "asked", "--rank", "1").output.startswith("rank 1:\n")


def test_ranks_and_sessions_that_there_are_not(disco, cluster):
    """Are said with what there is."""
    with connect(cluster.address, num_workers=2, name="small"):
        refused = disco("stack", "small", "2")
        assert (refused.exit_code, "from 0 to 1, got 2" in refused.stderr) == (2, True)
        twice = disco("stack", "small", "1", "--rank", "0")
        assert (twice.exit_code, "got 1 and --rank 0" in twice.stderr) == (2, True)
    assert disco("stack", "nope").exit_code == 5
