"""Runs random programs under random faults for some minutes, and counts what was lost.

Sessions of all kinds take turns. Through a cluster they run on while connections are
cut or slow, controller, daemons, ranks and the program itself stand still, and the
controller is killed and started again, ranks print without end and the program forks,
each time with a large array on its way; where a
worker or its daemon is killed the session must say so, and the next one begins. Every
second session recovers from that instead, and from daemons that stand still for longer
than their lease; these are counted apart.

In sessions of all kinds the program itself is at fault, too, in a cluster during other faults:
signal handlers and other threads raise in the middle of its steps, handlers and finalizers use
the session there, and ranks print while its standard error is a full pipe that nobody reads.
It interrupts the session, cancels commands and limits how long they take. What it has given up so
may have been executed or not, its result is right on all workers or missing on all, and
nothing else is missing.

Every result is compared with numpy's, and
every worker counts the commands that it was given. Exit code 0 when nothing was lost,
nothing executed twice, nothing wrong and nothing leaked.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from disco_soak.cluster import BREAKER, FATAL, Breakable
from disco_soak.habits import Habits, unread_standard_error
from disco_soak.leaks import Holdings, hold_little
from disco_soak.program import SoakProgram, WrongResult

from disco_client import ProcessSession, Session, SocketSession, ThreadedSession, errors
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory

__all__ = ["Soak", "main"]

_WARM_S = 5.0
_SETTLE_S = 6.0
"""So long after the last session what it held must be free again."""

_STEPS_A_FAULT = 12
_HABITS_A_TURN = 2
_HALF = 0.5
_LOST = (errors.WorkerLost, errors.NodeLost)


class Soak:
    """One run.

    Args:
        seconds: How long.
        seed: Decides programs and faults.
        turn: How many seconds a session on the cluster lives; the others a quarter of it.
        frames: Whether the cluster's controller takes frames.
        tls: Whether the cluster's connections are encrypted.
    """

    def __init__(
        self,
        seconds: float,
        seed: int,
        turn: float = 20.0,
        *,
        frames: bool = True,
        tls: bool = False,
    ) -> None:
        self._frames, self._tls = frames, tls
        self.carriers: Counter[str] = Counter()
        self._deadline = math.inf
        self._seconds, self._seed, self._turn_s = seconds, seed, turn
        self.faults: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        self.transfers = self.recovered = 0
        self.commands = self.lost = self.twice = self.wrong = self.untyped = 0
        self.given_up: Counter[str] = Counter()
        self.leaks: Counter[str] = Counter()
        self.growth: list[int] = []
        self.descriptors: list[dict[str, int]] = []
        self.threads: list[int] = []
        self._sessions: set[int] = set()

    def run(self) -> None:
        """Runs until the time is over."""
        kinds: dict[str, Callable[..., Session]] = {
            "ThreadedSession": partial(ThreadedSession, 3),
            "ProcessSession": partial(ProcessSession, 3),
            "SocketSession": partial(SocketSession, 1, 3, 1, "localhost", 0),
        }
        turn = 0
        with (
            Breakable(self._seed, frames=self._frames, tls=self._tls) as cluster,
            tqdm(total=round(self._seconds), unit="s", disable=None) as bar,
        ):
            for name, open_session in (("connect", cluster.connect), *kinds.items()):
                self._turn(name, open_session, turn, _WARM_S, None)  # what is loaded once
            watched = lambda: [psutil.Process(), *cluster.daemons]  # noqa: E731
            before = self._settled(watched)
            self._deadline = time.monotonic() + self._seconds
            while time.monotonic() < self._deadline:
                turn += 1
                recover = "replay" if turn % 2 else None
                opening = partial(cluster.connect, recover)
                self._turn("connect", opening, turn, self._turn_s, cluster, recovers=bool(recover))
                name = list(kinds)[turn % len(kinds)]
                self._turn(name, kinds[name], turn, self._turn_s / 4, None)
                left = max(0.0, self._deadline - time.monotonic())
                bar.n = round(self._seconds - left)
                bar.set_postfix_str(f"{self.faults.total()} faults, {self.commands} commands")
            after = self._settled(watched)
            self.leaks.update(before.leaks(after))
            self.growth = before.growth(after)
            self.descriptors = before.more_descriptors(after)
            self.threads = before.more_threads(after)
        left = [sweep_shared_memory(kvsname(session)) for session in self._sessions]
        self.leaks["shared memory"] = sum(map(len, left))

    def _settled(self, watched: Callable[[], Sequence[psutil.Process]]) -> Holdings:
        time.sleep(_SETTLE_S)
        return Holdings.of(watched())

    def _turn(
        self,
        kind: str,
        open_session: Callable[..., Session],
        turn: int,
        seconds: float,
        cluster: Breakable | None,
        *,
        recovers: bool = False,
    ) -> None:
        """One session, from its beginning to its end; faults, at least one."""
        program: SoakProgram | None = None
        habits: Habits | None = None
        ends = min(time.monotonic() + seconds, self._deadline)
        fatal, faults, seed = False, 0, self._seed + turn
        chance = random.Random(seed)  # noqa: S311  (no secret)
        unread = chance.random() < _HALF
        try:
            with unread_standard_error(unread), open_session(logs=unread) as session:
                self._sessions.add(int(session.session_id, 16))
                program = SoakProgram(session, seed)
                habits = Habits(program, seed, unread=unread)
                if kind == "connect":
                    self.carriers[_carrier_of(session)] += 1
                program.transfer()
                while (time.monotonic() < ends or not faults) and not fatal:
                    program.step()
                    if program.steps % _STEPS_A_FAULT:
                        continue
                    if cluster is not None:
                        fault = cluster.choose(recovers=recovers)
                        fatal = fault in FATAL and not recovers
                        habit = None if fatal or chance.random() < _HALF else habits
                        self._break(program, cluster, fault, habit)
                    elif faults < _HABITS_A_TURN:
                        self._follow(habits)
                    faults += 1
                self._count(program, f"turn {turn}, {kind}, seed {self._seed}")
                self.recovered += len(session.recoveries)
                self.leaks["registers"] += program.left_behind()
        except Exception as error:  # noqa: BLE001  (every other error is a finding)
            if not (fatal and isinstance(error, _LOST)):
                self._found(error, kind, turn)
        if program is not None:
            self.steps[kind] += program.steps
            self.commands += program.issued + program.beside.total()
        if habits is not None:
            self.given_up.update(habits.giving_up.counts)

    def _count(self, program: SoakProgram, where: str) -> None:
        """Counts what was lost and what came twice, and says which."""
        lost, twice = program.check()
        self.lost += lost
        self.twice += twice
        if lost or twice:
            missing, _ = program.missing()
            said = f"{lost} lost, {twice} executed twice; missing of the program's own: {missing}"
            print(f"{where}: {said}", file=sys.stderr)

    def _follow(self, habits: Habits) -> None:
        """Lets the program follow one of its habits."""
        name = habits.choose()
        self.faults[name] += 1
        habits.follow(name)

    def _break(
        self, program: SoakProgram, cluster: Breakable, fault: str, habits: Habits | None
    ) -> None:
        """Makes a fault during the transfer of a large array, which still has to complete.

        Args:
            program: Whose session it is.
            cluster: What breaks.
            fault: How.
            habits: What the program does meanwhile, one of them; None for nothing else.
        """
        self.faults[fault] += 1
        unexpected: list[Exception] = []

        def break_it() -> None:
            try:
                cluster.break_something(fault, program.session)
            except Exception as error:  # noqa: BLE001  (raised below, in the program)
                unexpected.append(error)

        breaking = threading.Thread(target=break_it, name=BREAKER)
        breaking.start()
        try:
            if habits is not None:
                self._follow(habits)
            program.transfer()
        finally:
            breaking.join()
        if unexpected:
            raise unexpected[0]
        self.transfers += 1

    def _found(self, error: Exception, kind: str, turn: int) -> None:
        """Counts a wrong result, or an error that nothing explains."""
        if isinstance(error, WrongResult):
            self.wrong += 1
        else:
            self.untyped += 1
        print(f"turn {turn}, {kind}, seed {self._seed}:", file=sys.stderr)
        traceback.print_exc()

    def report(self) -> dict[str, object]:
        """The figures."""
        return {
            "minutes": round(self._seconds / 60, 1),
            "seed": self._seed,
            "encrypted": self._tls,
            "sessions of the cluster, by what carried them": dict(self.carriers),
            "steps": dict(self.steps),
            "commands counted on each worker": self.commands,
            "faults survived": dict(sorted(self.faults.items())),
            **{f"given up: {name}": count for name, count in sorted(self.given_up.items())},
            "losses recovered from": self.recovered,
            "large transfers during faults": self.transfers,
            "commands lost": self.lost,
            "commands executed twice": self.twice,
            "wrong results": self.wrong,
            "errors without a cause": self.untyped,
            "MiB more in program, controller, nodes": self.growth,
            "descriptors more in each of them": self.descriptors,
            "threads more in each of them": self.threads,
            **{f"leaks of {kind}": count for kind, count in self.leaks.items()},
        }

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, nothing wrong and nothing leaked."""
        return not (self.lost or self.twice or self.wrong or self.untyped or self.leaks.total())


def _carrier_of(session: Session) -> str:
    """What carries a session's stream; nothing public says it to the session's own program."""
    transport: Any = session._core.transport  # noqa: SLF001
    return getattr(transport, "_transport", transport).carrier  # one that recovers has another


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--turn", type=float, default=20.0, help="seconds that a session on the cluster lives"
    )
    parser.add_argument(
        "--frames",
        choices=("on", "off"),
        default="on",
        help="off: the controller takes none, so that gRPC carries all streams",
    )
    parser.add_argument(
        "--tls", action="store_true", help="encrypt the cluster's connections, with certificates"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args(arguments)
    hold_little()
    soak = Soak(
        options.minutes * 60,
        options.seed,
        options.turn,
        frames=options.frames == "on",
        tls=options.tls,
    )
    soak.run()
    report = soak.report()
    for name, value in report.items():
        print(f"{name:40} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if soak.clean else 1


if __name__ == "__main__":
    faulthandler.enable()  # a crash says where each thread was
    sys.exit(main())
