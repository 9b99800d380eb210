"""Ray's actors on two nodes, one of which is lost and comes back, for the section ``nodes``.

It takes the number of nodes, of slots of each, and Ray's settings as JSON. Its first line says
that it is ready, and it answers each line of standard input by the figures of a `NodeTrial`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from disco_bench.array_peer import own_output
from disco_bench.node_trial import NUMBERS, NodeTrial
from disco_bench.ray_peer import OBJECTS_BYTES, QUIET, ray

cluster_utils: Any = importlib.import_module("ray.cluster_utils")


class _NumbersActor:
    """An actor that holds a part of the numbers."""

    def __init__(self) -> None:
        self._numbers = np.zeros(0)

    def hold(self, numbers: np.ndarray[Any, Any]) -> None:
        """Takes it."""
        self._numbers = numbers

    def where(self) -> tuple[str, int]:
        """Returns the node, and the process there."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def total(self, factor: int) -> float:
        """Returns the sum of the part times a factor."""
        return float((self._numbers * factor).sum())


class _RayProgram:
    """See `node_trial.NodeProgram`: a driver, which keeps the actors that a loss leaves it.

    The actors do not restart by themselves: where they do (``max_restarts=-1``), a call of a lost
    one fails no sooner, and later where Ray takes a node for dead soon.
    """

    def __init__(self, cluster: Any, nodes: Sequence[Any], slots: int) -> None:
        self._cluster, self._slots = cluster, slots
        self._node = nodes[-1]  # the first one has the driver and Ray's own services
        self._make = ray.remote(num_cpus=1)(_NumbersActor).remote
        self._actors = [self._make() for _ in range(slots * len(nodes))]
        self._divided = False

    def answer(self, factor: int) -> tuple[float, int]:
        while True:
            if not self._divided:
                parts = np.array_split(NUMBERS, len(self._actors))
                actors = zip(self._actors, parts, strict=True)
                self._divided = self._have_come([actor.hold.remote(part) for actor, part in actors])
                continue
            totals = [actor.total.remote(factor) for actor in self._actors]
            if self._have_come(totals):
                return sum(ray.get(totals)), len(totals)
            self._divided = False

    def kill_node(self) -> None:
        # Workers outlive their daemon until the cluster takes it for dead, and answer meanwhile.
        # Where a machine is lost they are lost, too, as Disco's are with their daemon.
        places = ray.get([actor.where.remote() for actor in self._actors])
        pids = [pid for node, pid in places if node == self._node.node_id]
        for pid in (self._node.all_processes["raylet"][0].process.pid, *pids):
            os.kill(pid, signal.SIGKILL)

    def start_node(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = _add_node(self._cluster, self._slots)

    def use_node(self) -> None:
        self._actors += [self._make() for _ in range(self._slots)]
        self._divided = False

    def _have_come(self, answers: Sequence[Any]) -> bool:
        """Waits for each actor's answer; drops the actors that are lost. Whether all have come."""
        asked = zip(self._actors, answers, strict=True)
        self._actors = [actor for actor, answer in asked if _has_come(answer)]
        return len(self._actors) == len(answers)


def _has_come(answer: Any) -> bool:
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get(answer)
        return True
    return False


def _add_node(cluster: Any, slots: int, **options: Any) -> Any:
    return cluster.add_node(num_cpus=slots, object_store_memory=OBJECTS_BYTES, **options)


@contextlib.contextmanager
def _started(nodes: int, slots: int, settings: dict[str, int]) -> Generator[_RayProgram]:
    cluster = cluster_utils.Cluster()
    try:
        first = _add_node(cluster, slots, include_dashboard=False, _system_config=settings)
        others = [_add_node(cluster, slots) for _ in range(nodes - 1)]
        with ray.init(cluster.address, **QUIET):
            yield _RayProgram(cluster, (first, *others), slots)
    finally:
        cluster.shutdown()


def main() -> None:
    """Does what the command line says."""
    nodes, slots = map(int, sys.argv[1:3])
    out = own_output()
    with _started(nodes, slots, json.loads(sys.argv[3])) as program:
        trial = NodeTrial(program, nodes * slots, (nodes - 1) * slots)
        print("ready", file=out, flush=True)
        for _ in sys.stdin:
            print(*trial(), file=out, flush=True)


if __name__ == "__main__":
    main()
