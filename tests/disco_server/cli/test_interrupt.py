"""``disco interrupt``: the program of a session ends what its workers execute."""

from __future__ import annotations

import json

import pytest
from interrupting import await_start
from reentry import in_thread

from disco_client import Interrupted, WorkerLost, connect
from disco_client.core import core_of

LONG = 600.0


@pytest.mark.parametrize("recover", [None, "replay"])
def test_what_a_session_executes_ends_and_its_program_is_told(disco, cluster, recover):
    """It goes on with the next command, also where it would recover from losses."""
    with connect(
        cluster.address, num_workers=2, name="endless", logs=False, recover=recover
    ) as session:
        sleep = session.get_global_func("time.sleep")
        ref = sleep(LONG)
        await_start(session, "time.sleep")
        shown = disco("interrupt", "endless")
        assert shown.output == f"session 'endless' ({session.session_id}) is interrupted\n"
        with pytest.raises(Interrupted, match="this command was interrupted"):
            ref.get()
        assert sleep(0).get_all() == [None, None]
        shown = json.loads(disco("interrupt", session.session_id[:6], "--json").stdout)
        assert shown["interrupted"] == {
            "session": session.session_id,
            "name": "endless",
            "late": [],
        }
        session.sync_all()


def test_the_program_answers_whenever_it_is_asked(disco, cluster):
    """Also in the moment after a command, in which its sending thread looks for another one."""
    with connect(cluster.address, num_workers=1, name="busy", logs=False) as session:
        sleep = session.get_global_func("time.sleep")
        for _ in range(40):
            sleep(0).get()
            assert disco("interrupt", "busy").exit_code == 0
        session.sync_all()


def test_a_program_that_ends_before_it_answers_is_interrupted(disco, cluster):
    """As one does that does not catch what its wait raises."""
    session = connect(cluster.address, num_workers=1, name="ends", logs=False)
    core_of(session).inbox.on_interrupt_asked = lambda _asked: in_thread(session.shutdown)
    shown = disco("interrupt", "ends")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.output == f"session 'ends' ({session.session_id}) is interrupted\n"


def test_it_needs_the_program(disco, cluster):
    """Without it nobody knows what was issued; `disco stop` ends the session."""
    session = connect(cluster.address, num_workers=1, name="left", logs=False)
    session.detach()
    shown = disco("interrupt", "left")
    assert shown.exit_code == 1
    assert "has no program connected" in shown.stderr
    assert "disco stop" in shown.stderr
    disco("stop", "left")
    shown = disco("interrupt", "nobody")
    assert shown.exit_code == 5
    assert disco("interrupt").exit_code == 2


def test_who_is_inside_a_library_is_named_and_ended_by_force(disco, cluster):
    """The program learns of the lost worker, which ends a session that does not recover."""
    session = connect(cluster.address, num_workers=1, name="deep", logs=False)
    session.import_python_module("disco_interrupt_functions")
    session.get_global_func("interrupt.outside")(1 << 30)
    await_start(session, "interrupt.outside")
    shown = disco("interrupt", "deep", "--grace", "0.1")
    assert shown.exit_code == 1
    assert "worker 0 did not react within 0.1 s" in shown.stderr
    shown = disco("interrupt", "deep", "--grace", "0.1", "--force")
    assert shown.exit_code == 1
    assert "did not react to an interrupt (force=True)" in shown.stderr
    with pytest.raises(WorkerLost):
        session.sync_all()


def test_a_program_that_does_not_react_is_said(disco, cluster):
    """As one that is too old to be asked."""
    with connect(cluster.address, num_workers=1, name="old", logs=False) as session:
        session._core.inbox.on_interrupt_asked = lambda _asked: None
        shown = disco("interrupt", "old", "--grace", "0")
        assert shown.exit_code == 1
        assert "has not interrupted it within 5 s" in shown.stderr
        session.sync_all()
