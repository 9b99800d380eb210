"""Calls on chosen workers, on every kind of session."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client as di
from disco_client.distributed import DeviceMesh

pytestmark = pytest.mark.layouts((4, 2))


@pytest.mark.parametrize(
    ("how", "chosen"),
    [
        ({"worker": 2}, [2]),
        ({"workers": [2, 0]}, [0, 2]),
        ({"workers": range(4)}, [0, 1, 2, 3]),
        ({"workers": DeviceMesh((2, 2), range(4), ("dp", "tp"))["tp"]}, [0, 1]),
        ({"workers": DeviceMesh((2, 2), range(4), ("dp", "tp"))["dp"]}, [0, 2]),
    ],
    ids=["worker", "workers", "all", "axis", "other-axis"],
)
def test_only_these_execute_it(session, tools, how, chosen):
    """The others hold None, and keep what the call overwrites, also where that is poisoned."""
    func = session.get_global_func("conformance.participants").on(**how)
    for _ in range(3):
        got = tools.fetch(func())
        assert got == [chosen if worker in chosen else None for worker in range(4)]
    scale = session.get_global_func("conformance.scale_into").on(**how)
    out, large = session.broadcast(np.zeros(40_000)), np.ones(40_000)
    scale(large, out, rate=3.0)
    assert [out.numpy(worker)[-1] for worker in range(4)] == [
        3.0 if worker in chosen else 0.0 for worker in range(4)
    ]
    tools.call("fail_on", [3], "told to fail")
    with pytest.raises(di.RemoteException):
        session.sync_all()


@pytest.mark.parametrize(
    ("args", "how", "error"),
    [
        ((), {}, TypeError),
        (([0],), {"worker": 1}, TypeError),
        ((1,), {}, TypeError),
        (("1",), {}, TypeError),
        (([0.0],), {}, TypeError),
        (([],), {}, di.ConfigError),
        (([0, 0],), {}, di.ConfigError),
        (([0, 4],), {}, di.ConfigError),
        ((DeviceMesh((2,), [3, 4]),), {}, di.ConfigError),
        ((), {"worker": -1}, di.ConfigError),
    ],
)
def test_what_names_no_workers_is_refused_at_once(session, args, how, error):
    """Nothing is issued."""
    func = session.get_global_func("conformance.echo")
    session.sync_all()  # with it, registers are freed that tests before have left
    before = session.statistics()["issued"]
    with pytest.raises(error):
        func.on(*args, **how)
    with pytest.raises(TypeError):
        session.call_packed(func.on(worker=0), 1)
    assert session.statistics()["issued"] == before


@pytest.mark.parametrize("chosen", [[0, 2], [3]])
def test_a_collective_of_all_is_aborted_and_names_the_others(session, tools, chosen):
    """At once, because no worker waits for one that does not come; the session goes on."""
    source = session.broadcast(np.ones(3))
    others = [worker for worker in range(4) if worker not in chosen]
    for _ in range(2):
        out = session.get_global_func("conformance.fail_before_allreduce").on(chosen)(source, -1)
        with pytest.raises(di.CollectiveAborted) as raised:
            session.sync_all()
        assert f"needs workers {others[0]}" in str(raised.value)
        assert sorted(each.worker for each in raised.value.failures) == chosen
        assert out.debug_get_from_remote(others[0]) is None
        with pytest.raises(di.CollectiveAborted):
            out.debug_get_from_remote(chosen[0])
        session.allreduce(source, source, in_group=False)
        assert source.numpy(1)[0] in (4.0, 16.0)


def test_it_may_be_the_first_collective_of_a_session(open_session):
    """The library starts on all workers, whatever they execute."""
    session = open_session(4)
    session.get_global_func("runtime.disco.barrier").on([0, 2])()
    with pytest.raises(di.CollectiveAborted, match="needs workers 1 and 3"):
        session.sync_all()
    session.get_global_func("runtime.disco.barrier")()
    session.sync_all()


def test_collectives_of_these_workers_run(session, tools):
    """In a team of them, in their group, and between two of them."""
    team = tools.call("runtime.disco._make_teams", [[0, 2], [1, 3]])
    part = tools.place([np.full(2, float(worker)) for worker in range(4)])
    gather = session.get_global_func("conformance.gather_in_team")
    got = tools.fetch(gather.on([0, 2])(team, part))
    assert got[1] is got[3] is None
    assert got[0].tolist() == got[2].tolist() == [0.0, 0.0, 2.0, 2.0]
    session.get_global_func("runtime.disco.allreduce").on([2, 3])(part, 0, True, part)
    assert [part.numpy(worker)[0] for worker in range(4)] == [0.0, 1.0, 5.0, 5.0]
    sent = session.get_global_func("conformance.pass_on").on([0, 3])(part, 3, 0)
    assert sent.numpy(0)[0] == 5.0


def test_after_the_error_a_team_of_these_workers_goes_on(session, tools):
    """In the same call too: what was left out is no failure of a worker."""
    team = tools.call("runtime.disco._make_teams", [[0, 2], [1, 3]])
    twice = session.get_global_func("conformance.barrier_twice").on([0, 2])
    assert tools.fetch(twice(team)) == [["LeftOutError"], None, ["LeftOutError"], None]
    session.sync_all()


def test_a_program_may_hold_such_calls(session, tools):
    """Before and after collectives of all; one that needs others ends the run."""
    func = session.get_global_func("conformance.fail_before_allreduce")
    ones = session.broadcast(np.ones(3))
    with session.capture() as program:
        mine = session.get_global_func("conformance.participants").on([1, 3])()
        total = session.empty((3,), "float64")
        session.allreduce(ones, total, in_group=False)
        program.output(mine, total)
    for _ in range(2):
        mine, total = program()
        assert tools.fetch(mine) == [None, [1, 3], None, [1, 3]]
        assert total.numpy(2).tolist() == [4.0] * 3
    with session.capture() as program:
        func.on([1, 3])(ones, -1)
        total = session.empty((3,), "float64")
        session.allreduce(ones, total, in_group=False)
        program.output(total)
    total = program()
    with pytest.raises(di.CollectiveAborted, match="needs workers 0 and 2"):
        session.sync_all()
    session.allreduce(ones, ones, in_group=False)
    assert ones.numpy(0).tolist() == [4.0] * 3
