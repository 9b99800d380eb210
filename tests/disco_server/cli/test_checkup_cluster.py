"""``disco doctor --cluster``: releases, latencies, and whether workers come together."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from disco_client import connect
from disco_client.version import __version__
from disco_client.wire.overview import NodeView, Overview
from disco_server.cli.checkup import look_at_nodes
from disco_server.cli.main import main
from disco_server.observe.checks import State

NODE = NodeView("a", "ready", 2, 1, ("cpu", "cpu"), "1", 1.0, 0.002)


def doctor(*arguments):
    command = ["doctor", "--cluster", *arguments]
    return CliRunner().invoke(main, command, prog_name="disco")


def test_a_cluster_that_works_is_well(cluster, await_free_slots):
    """Each node with its latency, and an allreduce on all slots."""
    await_free_slots(cluster.address)
    shown = doctor("--json", "--address", cluster.address)
    found = json.loads(shown.stdout)
    assert (shown.exit_code, found["ok"]) == (0, True)
    checks = {check["name"]: check for check in found["checks"]}
    assert set(checks) == {"controller", "node node-0", "node node-1", "allreduce"}
    assert checks["controller"]["facts"]["version"] == __version__
    for name in ("controller", "node node-0", "node node-1"):
        assert checks[name]["facts"]["latency_s"] > 0
    assert (checks["allreduce"]["facts"]["workers"], checks["allreduce"]["facts"]["nodes"]) == (
        4,
        2,
    )


def test_a_busy_cluster_is_well_too(cluster):
    """Nothing can be measured, and people are told why."""
    with connect(cluster.address, num_workers=4):
        shown = doctor("--address", cluster.address)
    assert shown.exit_code == 0
    assert f"the cluster at {cluster.address}" in shown.output
    assert "not measured, because no slot is free" in shown.output


@pytest.mark.parametrize(
    ("node", "state", "detail"),
    [
        (NODE, State.OK, "1, 2.0 ms from the controller and back, 1 of 2 slots used"),
        (replace(NODE, state="draining"), State.OK, "slots used, draining"),
        (replace(NODE, state="away", latency_s=None), State.BROKEN, "its connection is broken"),
        (replace(NODE, latency_s=None), State.BROKEN, "it did not answer within a second"),
    ],
)
def test_a_node_is_judged_by_its_answer(node, state, detail):
    """One that does not answer is broken."""
    (found,) = look_at_nodes(Overview("1", 0.0, (node,)))
    assert found.state is state
    assert detail in found.detail


def test_other_releases_are_pointed_out():
    """They may work together, as far as their protocol is the same."""
    (found,) = look_at_nodes(Overview("2", 0.0, (NODE,)))
    assert found.hint == "install the same release on all machines; the controller has 2"


def test_a_cluster_without_nodes_is_none():
    """The hint says how to start one."""
    (found,) = look_at_nodes(Overview("1", 0.0))
    assert found.state is State.MISSING
    assert "disco-worker --controller" in found.hint


def test_one_thing_is_looked_at_at_a_time():
    """A session, or the cluster."""
    shown = doctor("--session", "x")
    assert shown.exit_code == 2
    assert "expected --session or --cluster, got both" in shown.stderr
