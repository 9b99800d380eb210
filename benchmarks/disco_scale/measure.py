"""What is measured at each size, and by which law each quantity may grow."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import disco_client
from disco_client.transport.admin import ask_for_overview
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.credentials import NO_CREDENTIALS
from disco_scale.cluster import Cost, ScaledCluster

__all__ = [
    "NODE_QUANTITIES",
    "SESSION_QUANTITIES",
    "WAITING_QUANTITIES",
    "Figures",
    "Quantity",
    "exponent",
    "grown",
    "measure_nodes",
    "measure_sessions",
    "measure_waiting",
]

Figures: TypeAlias = dict[str, float]
"""By the keys of quantities."""

_IDLE_S = 4.0
_COMMANDS = 4096
_SYNCS = 16
_ARRIVE_S = 0.5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantity:
    """One row of the table.

    Attributes:
        key: Names it in the data.
        what: The same in words.
        unit: Of its figures.
        law: With which power of the size it may grow.
        counted: Whether it is a count, and no time or memory, so that it is always the same.
    """

    key: str
    what: str
    unit: str
    law: float = 1.0
    counted: bool = False


NODE_QUANTITIES = (
    Quantity("sync_all", "sync of all workers, controller", "ms"),
    Quantity("sync_all_client", "the same, client", "ms"),
    Quantity("sync_all_bytes", "the same, bytes that come to all nodes", "B", counted=True),
    Quantity("sync_one", "sync of one worker, controller", "ms"),
    Quantity("storm", "a no-op of a storm, controller", "us"),
    Quantity("storm_client", "the same, client", "us"),
    Quantity("start", "start of a session, controller", "ms"),
    Quantity("start_client", "the same, client", "ms"),
    Quantity("start_stretch", "the same, longest time without reading", "ms"),
    Quantity("start_bytes", "the same, bytes that come to all nodes", "MiB", 2.0, counted=True),
    Quantity("end", "end of a session, controller", "ms"),
    Quantity("open", "all ranks open their communicator, controller", "ms"),
    # Its bytes are most of what it costs.
    Quantity("fence", "PMI fence, 200 bytes a node, controller", "ms", 2.0),
    Quantity("fence_stretch", "the same, longest time without reading", "ms"),
    Quantity("fence_bytes", "the same, bytes to all nodes", "MiB", 2.0, counted=True),
    Quantity("overview", "an overview, controller", "ms"),
    Quantity("sample", "a sample of every node's machine, controller", "ms"),
    Quantity("idle", "heartbeats of an idle cluster, controller", "% of a core"),
    Quantity("memory", "memory of the controller for all nodes", "MiB"),
)
SESSION_QUANTITIES = (
    Quantity("start", "start of one more session, controller", "ms", 0.0),
    Quantity("end", "end of one of them, controller", "ms", 0.0),
    Quantity("sync", "sync of one of them, controller", "ms", 0.0),
    Quantity("idle", "heartbeats of all, controller", "% of a core"),
    Quantity("idle_queued", "the same with 50 more that wait for slots", "% of a core"),
    Quantity("end_queued", "end of one while 50 wait for slots, controller", "ms", 0.0),
    Quantity("memory", "memory of the controller for all sessions", "MiB"),
)
WAITING_QUANTITIES = (
    # The order of all is found once for those that have come in a quarter of a second.
    Quantity("come", "one more that waits, controller", "ms"),
    Quantity("idle", "heartbeats of all, controller", "% of a core"),
    Quantity("admit", "end of a session, and start of one that waits, controller", "ms", 0.0),
    Quantity("give_up", "all give up at once, controller", "ms"),
    Quantity("give_up_stretch", "the same, longest time without reading", "ms"),
)


def exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """With which power of the size a quantity has grown between the last two sizes."""
    (before, after), (less, more) = sizes[-2:], figures[-2:]
    return math.log(max(more, 1e-9) / max(less, 1e-9)) / math.log(after / before)


def measure_nodes(nodes: int, slots: int, *, frames: bool = True) -> Figures:
    """Measures one session on all slots of so many nodes.

    Args:
        nodes: How many.
        slots: Of each.
        frames: Whether the controller takes frames.
    """
    figures: Figures = {}
    with ScaledCluster(frames=frames) as cluster:
        cluster.tell("nodes", 1, slots)
        empty = cluster.memory()
        cluster.tell("nodes", nodes, slots)
        cluster.check_carriers()
        grown = (cluster.memory() - empty) / _MIB
        figures["memory"] = grown * nodes / max(nodes - 1, 1)
        figures["idle"] = _idle(cluster)
        figures["sample"] = cluster.cost(lambda: cluster.tell("sample"), 10).controller
        opened: list[disco_client.Session] = []

        def start() -> None:
            opened.append(
                disco_client.connect(
                    cluster.address, num_workers=nodes * slots, timeout=300, logs=False
                )
            )

        def end() -> None:
            opened.pop().shutdown()
            cluster.tell("rest")

        start()  # what the first one loads is not measured
        end()
        starts: list[Cost] = []
        ends: list[Cost] = []
        came = 0.0
        for _ in range(2):
            cluster.tell("traffic")
            starts.append(cluster.cost(start, rounds=1))
            came = sum(cluster.tell("traffic")["bytes"].values())
            if len(starts) == 1:
                ends.append(cluster.cost(end, rounds=1))
        figures["start"] = min(each.controller for each in starts)
        figures["start_client"] = min(each.client for each in starts)
        figures["start_stretch"] = min(each.stretch for each in starts)
        figures["start_bytes"] = came / _MIB
        figures |= _commands(cluster, opened[0], times=max(2, 200 // (nodes * slots)))
        figures["open"] = cluster.cost(lambda: cluster.tell("open")).controller
        figures |= _fences(cluster)
        figures["overview"] = _overview(cluster)
        ends.append(cluster.cost(end, rounds=1))
        figures["end"] = min(each.controller for each in ends)
    return figures


def _commands(cluster: ScaledCluster, session: disco_client.Session, times: int) -> Figures:
    """Waits for all workers and for one, and a storm of commands that want no answer."""
    session.sync_all()
    cluster.tell("traffic")
    for _ in range(_SYNCS):
        session.sync_all()
    time.sleep(_ARRIVE_S)
    came = cluster.tell("traffic")["bytes"]
    sync = cluster.cost(session.sync_all, times)
    one = cluster.cost(lambda: session.sync_worker(0), max(10, times))
    function = session.get_global_func("disco.pretended")

    def storm() -> None:
        for number in range(_COMMANDS):
            function(number)
        session.sync_all()

    stormy = cluster.cost(storm)
    scale = 1e3 / _COMMANDS
    return {
        "sync_all": sync.controller,
        "sync_all_client": sync.client,
        "sync_all_bytes": (came.get("BATCH", 0) + came.get("RECEIVED", 0)) / _SYNCS,
        "sync_one": one.controller,
        "storm": stormy.controller * scale,
        "storm_client": stormy.client * scale,
    }


def _fences(cluster: ScaledCluster) -> Figures:
    """A PMI fence of all nodes."""
    nbytes: list[int] = []

    def fence() -> None:
        nbytes.append(cluster.tell("fence", f"fence-{len(nbytes)}", 1, 200))

    cost = cluster.cost(fence, rounds=2)
    return {
        "fence": cost.controller,
        "fence_stretch": cost.stretch,
        "fence_bytes": nbytes[-1] / _MIB,
    }


def _overview(cluster: ScaledCluster) -> float:
    line = ReloadingChannel(cluster.address, NO_CREDENTIALS)
    try:
        return cluster.cost(lambda: ask_for_overview(line, 60.0)).controller
    finally:
        line.close()


def _idle(cluster: ScaledCluster) -> float:
    """Which part of a core heartbeats cost."""
    before, began = cluster.cpu_s(), time.monotonic()
    time.sleep(_IDLE_S)
    return 100 * (cluster.cpu_s() - before) / (time.monotonic() - began)


_NODES, _SLOTS, _SOME, _WAITING = 33, 32, 10, 50


def measure_sessions(sessions: int, *, frames: bool = True) -> Figures:
    """Measures so many sessions of one worker on a cluster that has room for a thousand.

    Args:
        sessions: How many.
        frames: Whether the controller takes frames.
    """
    figures: Figures = {}
    with ScaledCluster(frames=frames) as cluster:
        cluster.tell("nodes", _NODES, _SLOTS)
        cluster.tell("clients", 1, 1)
        empty = cluster.memory()
        cluster.tell("clients", max(sessions - 1, 1), 1)
        cluster.check_carriers()
        grown = (cluster.memory() - empty) / _MIB
        figures["memory"] = grown * sessions / max(sessions - 1, 1)
        figures["idle"] = _idle(cluster)
        with disco_client.connect(cluster.address, num_workers=1, logs=False) as session:
            session.sync_all()
            figures["sync"] = cluster.cost(session.sync_all, 50).controller

        def come() -> None:
            cluster.tell("clients", _SOME, 1)

        def leave() -> None:
            cluster.tell("leave", _SOME)

        starts: list[float] = []
        ends: list[float] = []
        for _ in range(3):
            starts.append(cluster.cost(come, rounds=1).controller / _SOME)
            ends.append(cluster.cost(leave, rounds=1).controller / _SOME)
        figures["start"], figures["end"] = min(starts), min(ends)
        come()
        cluster.tell("queue", _WAITING, _NODES * _SLOTS + 1)
        figures["idle_queued"] = _idle(cluster)
        figures["end_queued"] = cluster.cost(
            lambda: cluster.tell("leave_first", 1), 5, 1
        ).controller
    return figures


_FEW_NODES, _ARRIVALS_S = 4, 0.01


def measure_waiting(waiting: int, *, held_back: bool, frames: bool = True) -> Figures:
    """Measures so many sessions that wait.

    Args:
        waiting: How many.
        held_back: Whether all are of one owner, whose quota holds them back; else each has an
            owner of its own, and sessions of one worker hold all slots.
        frames: Whether the controller takes frames.
    """
    figures: Figures = {}
    owner, holding, quota = "", _FEW_NODES * _SLOTS, "0"
    if held_back:
        owner, holding, quota = "somebody", 1, "1"
    quotas = ("--max-client-sessions", "4096", "--max-client-slots", quota)
    with ScaledCluster(*quotas, frames=frames) as cluster:
        cluster.tell("nodes", _FEW_NODES, _SLOTS)
        cluster.tell("clients", holding, 1, owner)
        cluster.check_carriers()
        gone: list[Cost] = []
        for count in (1, waiting, waiting):  # what the first one loads is not measured
            seconds = 1 + count * _ARRIVALS_S
            if (there := cluster.tell("wait", count, 1, seconds, owner)) != count:
                msg = f"expected {count} that wait, got {there} that do not give up before"
                raise RuntimeError(msg)
            gone.append(cluster.cost(lambda: cluster.tell("given_up"), rounds=1))
        figures["give_up"] = min(each.controller for each in gone[1:])
        figures["give_up_stretch"] = min(each.stretch for each in gone[1:])
        cluster.tell("queue", waiting, 1, owner)
        figures["idle"] = _idle(cluster)

        def come() -> None:
            cluster.tell("queue", _SOME, 1, owner)

        figures["come"] = cluster.cost(come).controller / _SOME
        figures["admit"] = cluster.cost(lambda: cluster.tell("leave_first", 1), _SOME).controller
    return figures


def grown(figures: Mapping[int, Figures], quantity: Quantity) -> float:
    """With which power of the size a quantity has grown between the last two sizes."""
    sizes = sorted(figures)
    return exponent(sizes, [figures[size][quantity.key] for size in sizes])
