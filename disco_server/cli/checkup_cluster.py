"""Checks of ``disco doctor --cluster``: releases, latencies, and a collective."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from disco_client.errors import DiscoError, NoSlots
from disco_client.version import __version__
from disco_client.wording import many
from disco_server.cli.figures import duration, rate, size
from disco_server.observe.findings import Finding, State, first_line

if TYPE_CHECKING:
    from disco_client.transport.line import Line
    from disco_client.wire.overview import NodeView, Overview
    from disco_server.cli.options import Controller

__all__ = ["look_at_allreduce", "look_at_controller", "look_at_nodes"]

_ROUNDS: Final = 5
_SIZES: Final = (64 << 10, 4 << 20)
_WAIT_S: Final = 30.0
_UPDATE: Final = "install the same release on all machines"


def look_at_controller(line: Line, view: Overview) -> Finding:
    """Its release, and how long a call takes from here.

    Args:
        line: To the controller.
        view: Of its cluster.
    """
    from disco_client.transport.watching import ask_for_sessions

    took: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        ask_for_sessions(line)
        took.append(time.perf_counter() - started)
    facts = {"version": view.version, "latency_s": min(took)}
    hint = "" if view.version == __version__ else f"{_UPDATE}; this one has {__version__}"
    detail = f"{view.version}, a call from here takes {duration(min(took))}"
    return Finding("controller", State.OK, detail, hint, facts)


def look_at_nodes(view: Overview) -> list[Finding]:
    """Each node's release, and how long it and the controller take to hear each other."""
    if not view.nodes:
        hint = "start worker daemons: disco-worker --controller HOST:PORT"
        return [Finding("nodes", State.MISSING, "no worker daemon is there", hint)]
    return [_look_at_node(node, view.version) for node in view.nodes]


def _look_at_node(node: NodeView, version: str) -> Finding:
    name = f"node {node.name}"
    facts = {"version": node.version, "state": node.state, "latency_s": node.latency_s}
    hint = "see the log of its disco-worker"
    if node.state == "away":
        return Finding(name, State.BROKEN, "its connection is broken", hint, facts)
    if node.latency_s is None:
        return Finding(name, State.BROKEN, "it did not answer within a second", hint, facts)
    hint = "" if node.version == version else f"{_UPDATE}; the controller has {version}"
    state = "" if node.state == "ready" else f", {node.state}"
    detail = (
        f"{node.version}, {duration(node.latency_s)} from the controller and back, "
        f"{node.used} of {node.slots} slots used{state}"
    )
    return Finding(name, State.OK, detail, hint, facts)


def look_at_allreduce(controller: Controller, view: Overview) -> Finding:
    """Whether the workers of all free slots come together, and how fast their sums are."""
    from disco_server.cli.measuring import free_workers, measure_allreduce

    name = "allreduce"
    try:
        workers = free_workers(view)
    except NoSlots:
        return Finding(name, State.NOT_APPLICABLE, "not measured, because no slot is free")
    try:
        with controller.open_session(
            num_workers=workers, name="disco-doctor", logs=False, timeout=_WAIT_S
        ) as session:
            found = [f for nbytes in _SIZES for f in measure_allreduce(session, nbytes, _ROUNDS)]
            nodes = len({rank.node for rank in session.workers})
    except DiscoError as error:
        hint = "MPI needs the machines with workers to reach each other; see disco bench"
        return Finding(name, State.BROKEN, first_line(error), hint)
    rates = [each for each in found if each.unit == "B/s"]
    text = ", ".join(f"{size(each.nbytes)} at {rate(each.best, 'B')}" for each in rates)
    facts = {"workers": workers, "nodes": nodes, "figures": [each.as_dict() for each in found]}
    detail = f"{many(workers, 'worker')} on {many(nodes, 'node')}: {text}"
    return Finding(name, State.OK, detail, facts=facts)
