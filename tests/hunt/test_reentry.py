"""Interruptions x programs x sessions: a thread may be entered between any two bytecodes.

A program does the steps that were drawn, again and again, on a session of threads, of processes
or of a cluster. Meanwhile it is interrupted: by exceptions of signal handlers or of other threads,
by handlers that use the session themselves, or by finalizers that do. Then each worker must have
executed what the program knows to have issued, once and in its order, with the right values.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st
from reentry import (
    Finalizing,
    Handling,
    Interruption,
    OutOfTime,
    Program,
    Raising,
    Stopped,
    in_thread,
    watched,
)

import disco_client as di
from disco_server.cli.local import LocalCluster

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
END_S = 10.0
"""How long a session that an example has broken may take to end."""

MOST_FINALIZED = 5_000
"""So many finalizers use the session: sending a command may collect garbage more than once, so
that an example in which each of them issues another one would not end."""

# The timer of the signal that pytest-timeout uses otherwise is the one of these tests.
pytestmark = pytest.mark.timeout(1800, method="thread")

# What an interruption meets is chance: a smaller example would seldom fail again.
search = settings(
    max_examples=settings.default.max_examples // 4,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)

RAISING = {
    "a timer": ("timer", signal.SIGALRM),
    "SIGUSR1": ("thread", signal.SIGUSR1),
    "SIGTERM": ("child", signal.SIGTERM),
    "SIGINT": ("thread", signal.SIGINT),
    "asynchronous": ("async", signal.SIGALRM),
}
RAISED = (Interruption, OutOfTime, Stopped, KeyboardInterrupt)
programs = st.lists(st.sampled_from(Program.STEPS), min_size=1, max_size=8)
programs_beside = st.lists(st.sampled_from(Program.BESIDE), min_size=1, max_size=8)
intervals = st.sampled_from((0.0003, 0.001, 0.002, 0.005))
counts = st.integers(5, 40)
seeds = st.integers(0, 1000)


# The sessions -----------------------------------------------------------------------------


class Sessions:
    """One session of each kind, opened when it is needed, and again where an example broke it."""

    def __init__(self, openers: dict[str, Callable[[], di.Session]]) -> None:
        self._openers = openers
        self._open: dict[str, di.Session] = {}

    def take(self, kind: str) -> di.Session:
        """The session, which the caller gives back if it is whole."""
        if kind not in self._open:
            session = self._openers[kind]()
            session.import_python_module("disco_reentry_functions")
            return session
        return self._open.pop(kind)

    def give_back(self, kind: str, session: di.Session) -> None:
        self._open[kind] = session

    def close(self) -> None:
        for session in self._open.values():
            session.shutdown()


@pytest.fixture(scope="module")
def by_grpc() -> Iterator[LocalCluster]:
    """A cluster where gRPC carries everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_FRAMES", "off")
        made = LocalCluster(2, 2, import_path=[str(WORKER_MODULES)])
    with made:
        yield made


@pytest.fixture(scope="module")
def sessions(cluster: LocalCluster, by_grpc: LocalCluster) -> Iterator[Sessions]:
    """Sessions of two workers: threads, processes, clusters by both carriers, one that recovers."""
    sys.path.insert(0, str(WORKER_MODULES))
    opened = Sessions(
        {
            "threads": lambda: di.ThreadedSession(2),
            "processes": lambda: di.ProcessSession(2),
            "cluster": lambda: di.connect(cluster.address, num_workers=2),
            "cluster by gRPC": lambda: di.connect(by_grpc.address, num_workers=2),
            "recovering": lambda: di.connect(cluster.address, num_workers=2, recover="replay"),
        }
    )
    yield opened
    opened.close()
    sys.path.remove(str(WORKER_MODULES))


kinds = st.sampled_from(("threads", "processes", "cluster", "cluster by gRPC", "recovering"))


def whole(sessions: Sessions, kind: str, run: Callable[[di.Session], object]) -> None:
    """Runs something on a session of a kind, which it must leave whole."""
    session = sessions.take(kind)
    event(kind)
    try:
        with watched():
            run(session)
            session.sync_all()
    except BaseException:
        # In a thread, because it may hang, too.
        ending = threading.Thread(target=session.shutdown, daemon=True)
        ending.start()
        ending.join(END_S)
        raise
    sessions.give_back(kind, session)


def all_steps(*programs: Program) -> None:
    """Does one step of each kind, which nothing disturbs, and compares what has happened."""
    for program in programs:
        for name in Program.STEPS:
            program.step((name,))
        program.check()


def repeat(program: Program, names: list[str], counter: Any, attribute: str, count: int) -> None:
    """Does some steps again and again, until so many interruptions have come."""
    while getattr(counter, attribute) < count:
        _new = [[] for _ in range(4)]  # some steps allocate nothing, and nothing is collected
        for name in names:
            program.step((name,))


# The tests --------------------------------------------------------------------------------


@search
@given(
    kind=kinds,
    how=st.tuples(st.sampled_from(sorted(RAISING)), st.sampled_from(RAISED)),
    in_main=st.booleans(),
    names=programs,
    interval=intervals,
    count=counts,
    seed=seeds,
)
def test_exceptions(
    sessions: Sessions,
    kind: str,
    how: tuple[str, type[BaseException]],
    in_main: bool,
    names: list[str],
    interval: float,
    count: int,
    seed: int,
) -> None:
    """Of handlers and of other threads, which the program catches before it goes on."""

    def run(session: di.Session) -> None:
        program = Program(session, seed)
        way, raised = how

        def work() -> None:
            with Raising(*RAISING[way], interval, seed, raised) as raising:
                while raising.caught < count:
                    for name in names:
                        raising.during(lambda name=name: program.step((name,)))
            all_steps(program)

        if in_main or way != "asynchronous":
            work()
        else:
            in_thread(work).join()
        all_steps(program)
        note(f"{program.done} calls have returned")

    whole(sessions, kind, run)


@search
@given(
    kind=kinds,
    way=st.sampled_from((("timer", signal.SIGALRM), ("thread", signal.SIGUSR1))),
    inner_names=programs,
    names=programs_beside,
    interval=intervals,
    count=counts,
    seed=seeds,
)
def test_handlers(
    sessions: Sessions,
    kind: str,
    way: tuple[str, int],
    inner_names: list[str],
    names: list[str],
    interval: float,
    count: int,
    seed: int,
) -> None:
    """That issue, and wait where they may."""

    def run(session: di.Session) -> None:
        program, inner = Program(session, seed), Program(session, seed + 1)
        with Handling(lambda: inner.try_inside(inner_names), *way, interval) as handling:
            repeat(program, names, handling, "came", count)
        note(f"{inner.served} served, {inner.refused} refused")
        all_steps(program, inner)

    whole(sessions, kind, run)


@search
@given(
    kind=kinds,
    inner_names=programs,
    names=programs_beside,
    often=st.sampled_from((5, 50, 500)),
    count=counts,
    seed=seeds,
)
def test_finalizers(
    sessions: Sessions,
    kind: str,
    inner_names: list[str],
    names: list[str],
    often: int,
    count: int,
    seed: int,
) -> None:
    """That issue, and wait where they may, in any thread."""

    def run(session: di.Session) -> None:
        program, inner = Program(session, seed), Program(session, seed + 1)

        def act() -> None:
            if finalizing.came <= MOST_FINALIZED:
                inner.try_inside(inner_names)

        finalizing = Finalizing(act, often, seed)
        with finalizing:
            repeat(program, names, finalizing, "came", count)
        note(f"{inner.served} served, {inner.refused} refused")
        all_steps(program, inner)

    whole(sessions, kind, run)
