"""What the loss of a node, and its return, cost a program that goes on without it; beside Ray."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import statistics
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple, Self

import disco_client
from disco_bench.bench import NODES, SLOTS, WORKERS, Bench, variable
from disco_bench.child import BENCHMARKS, Child, ChildFailed, peer_python, with_path
from disco_bench.node_trial import NUMBERS, LossFigures, NodeTrial
from disco_bench.peers import ray_variables
from disco_bench.sampling import Pair, alone, rotate
from disco_bench.table import Limit, Measured, Spec, Unavailable
from disco_client.distributed import DTensor
from disco_server.cli.local import LocalCluster
from disco_server.observe.lifetime import PARENT_VARIABLE

__all__ = ["LOST_NODES", "measure_nodes"]

_LEFT = WORKERS - SLOTS
_START_S, _ROUND_S, _END_S = 120.0, 240.0, 30.0
_NOTICE_S = 0.2
_NONE = LossFigures(*[math.nan] * len(LossFigures._fields))


class _NodeSettings(NamedTuple):
    """With which settings both systems are measured.

    Attributes:
        name: The end of the rows' keys.
        what: The end of what the table calls them.
        disco: Variables of Disco's daemons; None for none.
        ray: Ray's settings, beside its defaults.
        losses: How many, in a full run and in a quick one.
    """

    name: str
    what: str
    disco: Mapping[str, str | None]
    ray: Mapping[str, int]
    losses: tuple[int, int]

    @property
    def specs(self) -> tuple[Spec, Spec]:
        """The rows before they are measured."""
        lost = f"a node of {NODES} is killed, until {_LEFT} workers answer right; {self.what}"
        back = f"it is there again, until {WORKERS} workers answer right; {self.what}"
        return (
            Spec(f"nodes.lost.{self.name}", lost, "s", "Ray's actors"),
            Spec(f"nodes.back.{self.name}", back, "s", "Ray's actors"),
        )


_SETTINGS = (
    _NodeSettings(
        "prompt",
        f"noticed after {_NOTICE_S} s",
        {"DISCO_NODE_RETURN_S": str(_NOTICE_S)},
        # Two failed checks make a loss. How long a check may take stays as it is,
        # since a daemon that is only slow is not lost in Disco either.
        {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": int(_NOTICE_S * 1000 / 2),
            "health_check_failure_threshold": 2,
        },
        (20, 2),
    ),
    _NodeSettings("default", "default settings", {"DISCO_NODE_RETURN_S": None}, {}, (10, 1)),
)
_WRONG = Spec(
    "nodes.wrong", "wrong answers among all", "count", "Ray's actors", Limit("figure", must=0)
)
LOST_NODES = (*(spec for settings in _SETTINGS for spec in settings.specs), _WRONG)


def measure_nodes(bench: Bench) -> None:
    """Kills one of two nodes again and again, in turn with Ray's; without Ray, Disco's alone."""
    ours: list[LossFigures] = []
    theirs: list[LossFigures] = []
    reason = ""
    for settings in _SETTINGS:
        with _RayNodes(settings) as ray, _disco_nodes(settings) as program:
            trial = NodeTrial(program, WORKERS, _LEFT)
            # What the session says of each loss would bury the table.
            with contextlib.redirect_stderr(io.StringIO()):
                mine, others = rotate((trial, ray), bench.pick(*settings.losses), warm_up=0)
        _record(bench, settings, mine, others, ray.reason)
        reason = reason or ray.reason
        ours += mine
        theirs += others
    wrong, answers = _counts(ours)
    if reason:
        bench.record(_WRONG.key, Measured(wrong, note=reason))
        return
    others_wrong, others_answers = _counts(theirs)
    note = f"of {answers:,} answers, and of {others_answers:,} of Ray's"
    bench.record(_WRONG.key, Measured(wrong, others_wrong, note=note))


def _record(
    bench: Bench,
    settings: _NodeSettings,
    mine: Sequence[LossFigures],
    others: Sequence[LossFigures],
    reason: str,
) -> None:
    """Records the times of all losses with these settings; Ray's unless it has none."""
    lost, back = (spec.key for spec in settings.specs)
    if reason:
        bench.record(lost, alone([each.lost for each in mine], note=reason))
        bench.record(back, alone([each.back for each in mine], note=reason))
        return
    starts, their_starts = (
        statistics.median(each.started for each in figures) for figures in (mine, others)
    )
    note = f"after its daemon's start, which took {starts:.2f} s, and {their_starts:.2f} s in Ray"
    losts = Pair([each.lost for each in mine], [each.lost for each in others])
    backs = Pair([each.back for each in mine], [each.back for each in others])
    bench.record(lost, losts.measured())
    bench.record(back, backs.measured(note))


def _counts(figures: Sequence[LossFigures]) -> tuple[int, int]:
    """How many answers were wrong, and how many there were."""
    return int(sum(each.wrong for each in figures)), int(sum(each.answers for each in figures))


class _RayNodes:
    """Ray on as many nodes; measures one loss, as `NodeTrial` does; a context manager.

    Args:
        settings: Ray's among them.

    Attributes:
        reason: Why it has no figures, or no more of them; empty where it has all.
    """

    def __init__(self, settings: _NodeSettings) -> None:
        self._settings = json.dumps(settings.ray)
        self._stack = contextlib.ExitStack()
        self._child: Child
        self.reason = ""

    def __enter__(self) -> Self:
        try:
            python = peer_python("ray", "bench-peers")
            folder = self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="nodes", ignore_cleanup_errors=True)
            )
            command = ["-m", "disco_bench.ray_nodes_peer", str(NODES), str(SLOTS), self._settings]
            environ = {**with_path(BENCHMARKS), **ray_variables(folder)}
            self._child = self._stack.enter_context(Child(command, environ, python, end_s=_END_S))
            self._child.read_line(_START_S)
        except (Unavailable, ChildFailed) as error:
            self._fail(error)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _fail(self, error: Exception) -> None:
        self.reason = " ".join(str(error).split())

    def __call__(self) -> LossFigures:
        if not self.reason:
            try:
                figures = self._child.ask("lose", _ROUND_S).split()
                return LossFigures(*map(float, figures))
            except ChildFailed as error:
                self._fail(error)
        return _NONE


class _DiscoProgram:
    """See `node_trial.NodeProgram`: a session of a range of workers, whose state is made anew.

    Args:
        cluster: The nodes, started.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._address = cluster.address
        self._pid = cluster.pids[-1]
        self._daemon: Child | None = None
        self._state: tuple[DTensor, int]
        self._session = disco_client.connect(
            cluster.address,
            num_workers=(_LEFT, WORKERS),
            name="bench-nodes",
            recover=self._rebuild,
        )
        self._rebuild(self._session)

    def _rebuild(self, session: disco_client.Session) -> None:
        # Together, so that an answer is never taken for one of other workers.
        self._state = session.distribute(NUMBERS, placement="S[0]"), session.num_workers

    def answer(self, factor: int) -> tuple[float, int]:
        while True:
            numbers, workers = self._state
            with contextlib.suppress(disco_client.WorkersReplaced):
                return (numbers * factor).sum().item(), workers

    def kill_node(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def start_node(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
        options = ("--controller", self._address, "--slots", str(SLOTS), "--http", "off")
        command = ["-m", "disco_server.cli.worker", *options, "--log-level", "error"]
        environ = {**with_path(BENCHMARKS), PARENT_VARIABLE: str(os.getpid())}
        self._daemon = Child(command, environ, end_s=_END_S)
        self._pid = self._daemon.pid
        self._daemon.read_line(_START_S)

    def use_node(self) -> None:
        # A session grows only where it loses a worker.
        os.kill(self._session.workers[0].pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the session, and the node that was started last."""
        self._session.shutdown()
        if self._daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            self._daemon.close()


@contextlib.contextmanager
def _disco_nodes(settings: _NodeSettings) -> Generator[_DiscoProgram]:
    """A cluster with these settings, and a program that has all of its slots."""
    with contextlib.ExitStack() as of:
        for name, value in settings.disco.items():
            of.enter_context(variable(name, value))
        # Its daemons keep the variables of this moment.
        cluster = LocalCluster(
            NODES, SLOTS, listen="127.0.0.1:0", allow_modules=[], log_level="error"
        )
    with cluster, contextlib.closing(_DiscoProgram(cluster)) as program:
        yield program
