"""The soak: it runs through, and it would see what it looks for."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak
from disco_soak import cluster, giving_up, program
from disco_soak.giving_up import InterruptWindow, not_ended
from disco_soak.habits import Habits, unread_standard_error
from disco_soak.leaks import Holdings
from disco_soak.program import SoakProgram, WrongResult

import disco_server
from disco_client import Interrupted, ProcessSession, RemoteException, ThreadedSession

# The timer of the signal that pytest-timeout uses otherwise is that of programs in the soak.
pytestmark = pytest.mark.timeout(120, method="thread")

HABITS = (
    "handler raises",
    "asynchronous exception",
    "handler uses the session",
    "finalizer uses the session",
    "standard error unread",
)
GIVING_UP = ("interrupts", "cancels", "limits")


def test_a_short_run_loses_nothing(monkeypatch, tmp_path, capsys):
    """All kinds of sessions take their turns, faults happen, and the figures say so."""
    monkeypatch.setattr(soak, "_WARM_S", 1.0)
    monkeypatch.setattr(soak, "_SETTLE_S", 2.0)
    monkeypatch.setattr(soak, "_STEPS_A_FAULT", 2)
    monkeypatch.setattr(cluster, "_STALL_S", 2.0)
    monkeypatch.setattr(cluster, "_BRIEF_STALL_S", 1.0)
    figures = tmp_path / "figures.json"
    code = soak.main(["--minutes", "0.2", "--seed", "5", "--turn", "5", "--json", str(figures)])
    said = json.loads(figures.read_text())
    assert code == 0, (said, capsys.readouterr().err)
    assert said["faults survived"]
    assert said["commands counted on each worker"] > 0
    assert "connect" in said["steps"]
    assert len(said["steps"]) >= 2
    assert said["large transfers during faults"] > 0
    for what in ("lost", "executed twice"):
        assert said[f"commands {what}"] == 0
    assert "commands lost" in capsys.readouterr().out


def test_a_lost_command_and_one_that_came_twice_are_counted():
    """On each worker, whatever comes after them."""
    with ThreadedSession(2) as session:
        running = SoakProgram(session, 1)
        note = session.get_global_func("soak.note")
        for number in (1, 2, 2, 4):
            note(running.issued + number)
        running.issued += 4
        assert running.check() == (2, 2)
        running.issued += 1  # the last one never came
        assert running.check() == (4, 2)


def test_each_step_is_compared_with_numpy():
    """A result that differs ends the program."""
    with ThreadedSession(2) as session:
        running = SoakProgram(session, 1)
        for step in running._steps:
            step()
        running.transfer()
        assert running.check() == (0, 0)

    for wrong in (np.ones(2), np.zeros(2, "f4"), np.zeros(3)):
        with pytest.raises(WrongResult, match="as numpy has it"):
            program.same(wrong, np.zeros(2))


@pytest.mark.parametrize("kind", [ThreadedSession, ProcessSession])
def test_a_program_that_is_interrupted_goes_on(kind):
    """It follows each of its habits, and nothing is lost or executed twice."""
    stream = sys.stderr
    with unread_standard_error(), kind(2) as session:
        running = SoakProgram(session, 2)
        habits = Habits(running, 2, unread=True)
        for name in HABITS:
            habits.follow(name)
        assert running.beside.total() >= 40
        assert running.check() == (0, 0)
        for log in running.beside:
            running.beside[log] += 1  # which never came
        assert running.check() == (2 * len(running.beside), 0)
    assert sys.stderr is stream


def test_what_an_interruption_does_not_explain_is_seen():
    """More than the last number of a burst is missing, or something else has failed."""
    with ThreadedSession(2) as session:
        running = SoakProgram(session, 1)
        habits = Habits(running, 1, unread=False)
        running.doing = "_burst"
        running.issued += 1
        habits._settle()
        assert running.check() == (0, 0)
        running.issued += 2
        habits._settle()
        assert running.check() == (4, 0)
        running.issued -= 3
        with pytest.raises(WrongResult, match="noted"):
            habits._settle()
        running.issued += 1
        session.get_global_func("soak.fail_on")(1)
        with pytest.raises(RemoteException, match="told to fail"):
            habits._settle()
        running.doing = "_failure"
        session.get_global_func("soak.fail_on")(1)
        habits._settle()


@pytest.mark.parametrize("kind", [ThreadedSession, ProcessSession])
def test_a_program_that_gives_commands_up_goes_on(kind):
    """Nothing else is missing, wrong or told of, and nothing of it is left on the workers."""
    with kind(3) as session:
        running = SoakProgram(session, 3)
        habits = Habits(running, 3, unread=False)
        for name in GIVING_UP:
            habits.follow(name)
        counts = habits.giving_up.counts
        for what in ("interrupts", "results missing", "limits passed", "limits beyond reach"):
            assert counts[what] > 0
        assert sum(count for way, count in counts.items() if "cancel" in way) > 0
        assert running.check() == (0, 0)
        assert running.left_behind() == 0
        for given_up in running.given_up.values():
            given_up.clear()
        assert running.check()[0] > 0


def test_what_was_issued_before_the_interrupts_may_be_given_up_with_it():
    """A program that waits for nothing is far ahead of its workers."""
    with ProcessSession(2, logs=False) as session:
        running = SoakProgram(session, 1)
        giving = Habits(running, 1, unread=False).giving_up
        session.get_global_func("soak.sum_late")(1, 0, 0.5)
        for _ in range(20):
            running.note_last()
        late = running.issued
        giving.interrupted(1)
        assert late in running.given_up[""]
        giving.interrupted(3)
        assert running.check()[0] == 0


def test_an_interrupt_ends_at_one_number_on_all_workers():
    """Where it begins may differ; a second end, or one at another time, has no cause."""
    windows = [InterruptWindow(4, 9), InterruptWindow(8, 20)]
    assert not_ended([[], [(3, 7)], [(7, 7)]], windows) == []
    assert not_ended([[(3, 7), (9, 12)], [(2, 12)]], windows) == []
    assert not_ended([[(3, 7)], [(3, 6)]], windows) == [7]
    assert not_ended([[(1, 3)]], windows) == [3]
    assert not_ended([[(30, 31)]], windows) == [31]
    assert not_ended([[(3, 3)]], []) == [3]


def test_what_giving_up_does_not_explain_is_seen(monkeypatch):
    """A result that is missing on one worker alone, or of a command that was not given up."""
    monkeypatch.setattr(giving_up, "_GRACE_S", 0.1)
    with ThreadedSession(2) as session:
        running = SoakProgram(session, 1)
        giving = Habits(running, 1, unread=False).giving_up
        requests = giving._begin()
        (kept,) = requests.noted_within(0)
        giving._settle([kept])
        (missing,) = requests.noted_within(60)
        missing.ref.cancel()
        with pytest.raises(Interrupted):
            giving._settle([missing])
        missing.kept = False
        assert giving._settle([missing]) == 1
        assert running.check() == (0, 0)
        outcomes = iter([[None, Interrupted]] * 1000)
        with monkeypatch.context() as patched:
            patched.setattr(giving, "_outcomes", lambda *_: next(outcomes))
            with pytest.raises(WrongResult, match="workers differ"):
                giving._settle([missing])
        kept.right += 1
        with pytest.raises(WrongResult, match="expected 2, got 1"):
            giving._settle([kept])


def test_a_register_that_stays_is_seen():
    """Something is in it on each worker, and nothing in the program refers to it."""

    @disco_server.register_func("test.fill_a_register")
    def fill_a_register():
        registers = disco_server.current_worker().registers
        registers.reserve(300)
        registers.write(300, 1)

    with ThreadedSession(2) as session:
        running = SoakProgram(session, 1)
        assert running.left_behind() == 0
        session.get_global_func("test.fill_a_register")()
        assert running.left_behind() == 2


def test_what_leaks_is_seen(tmp_path):
    """Descriptors, threads, processes and memory that grow beyond what varies."""
    here = [psutil.Process()]
    before = Holdings.of(here)
    assert not any(before.leaks(Holdings.of(here)).values())
    files = [(tmp_path / str(number)).open("w") for number in range(20)]
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "input()"], os.environ)
    held = np.ones(20 << 20)  # 160 MiB
    over = threading.Event()
    for _ in range(20):
        threading.Thread(target=over.wait, daemon=True).start()
    try:
        leaks = before.leaks(Holdings.of(here))
    finally:
        over.set()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for file in files:
            file.close()
    assert held.size
    assert leaks["descriptors"] >= 20
    assert leaks["threads"] >= 20
    assert leaks["processes"] >= 1
    assert leaks["memory"] >= 100
