"""Teams of a session's workers, as functions on the workers use them."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di

pytestmark = pytest.mark.layouts((4, 1), (4, 2))

AXES = {"rows": [[0, 1], [2, 3]], "columns": [[0, 2], [1, 3]], "outside": [[3, 0]]}


def made(tools, lines):
    return tools.call("runtime.disco._make_teams", lines)


def members_of(lines, worker):
    return next((line for line in lines if worker in line), None)


@pytest.mark.parametrize("lines", AXES.values(), ids=AXES)
def test_uneven_parts_come_together_in_each_line(tools, lines):
    """A team stays in its register and serves many commands; outside there is None."""
    team = made(tools, lines)
    parts = [np.full(1 + 2 * worker, worker, "float32") for worker in tools.workers]
    source = tools.place(parts)
    got = tools.call("gather_in_team", team, source)
    for again in (got, tools.call("gather_in_team", made(tools, lines), source)):
        for worker, whole in enumerate(tools.fetch(again)):
            line = members_of(lines, worker)
            want = None if line is None else np.concatenate([parts[each] for each in line])
            assert whole is None if line is None else np.array_equal(whole, want)
    kinds = tools.results("kind", team)
    assert kinds == [
        "ProcessGroup" if members_of(lines, worker) else "NoneType" for worker in range(4)
    ]


def test_bytes_are_counted(tools):
    """Those that came from others, of all teams of a worker together."""
    before = tools.results("runtime.disco._received_bytes")
    source = tools.place([np.full(worker, worker, "float32") for worker in tools.workers])
    for lines in (AXES["rows"], AXES["outside"]):
        tools.call("gather_in_team", made(tools, lines), source)
    after = tools.results("runtime.disco._received_bytes")
    # Each function first exchanges counts of 8 bytes.
    want = [4 * (1 + 3) + 16, 0 + 8, 4 * 3 + 8, 4 * 2 + 16]
    assert [new - old for new, old in zip(after, before, strict=True)] == want


@pytest.mark.parametrize("failing", [0, 3])
def test_a_worker_that_fails_before_ends_its_teams_collective(session, tools, failing):
    """The error is the cause; then the team, the other teams and all workers go on."""
    team = made(tools, AXES["columns"])
    source = tools.place([np.ones(2, "float32")] * 4)
    tools.call("gather_in_team", team, source, failing)
    with pytest.raises(di.RemoteException, match="told to fail") as raised:
        session.sync_all()
    assert raised.value.worker == failing
    again = tools.fetch(tools.call("gather_in_team", team, source))
    assert [whole.tolist() for whole in again] == [[1.0] * 4] * 4
    session.allreduce(source, source)
    session.sync_all()


def test_wrong_lines_are_refused(session, tools):
    """With what is wrong about them; nobody waits."""
    for lines in ([[0, 1], [1, 2]], [[0, 4]], [["a"]], 3):
        made(tools, lines)
        with pytest.raises(di.BadArgument):
            session.sync_all()
