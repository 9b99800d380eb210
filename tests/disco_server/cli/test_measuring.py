"""What measurements need of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_client.errors import NoSlots
from disco_client.wire.overview import NodeView, Overview
from disco_server.cli.measuring import Figure, free_workers

CPUS = NodeView("a", "ready", 4, 1, ("cpu",) * 4, "1", 1.0)
GPUS = NodeView("b", "ready", 2, 0, ("cuda:0", "cuda:1"), "1", 1.0)


def view(*nodes):
    return Overview("1", 0.0, nodes)


def test_there_is_room_for_as_many_as_slots_are_free():
    """Of one kind of device, and not on nodes that leave."""
    assert free_workers(view(CPUS)) == 3
    assert free_workers(view(CPUS, GPUS)) == 4
    assert free_workers(view(CPUS, replace(CPUS, state="draining"))) == 3
    assert free_workers(view(replace(CPUS, slots=64, devices=("cpu",) * 64))) == 16


def test_where_no_slot_is_free_nothing_can_be_measured():
    """The error says how many there are."""
    with pytest.raises(NoSlots, match="the cluster has 4 slots and none is free"):
        free_workers(view(replace(CPUS, used=4)))


def test_a_figure_is_written_for_programs():
    """With all that it has."""
    assert Figure("allreduce", "s", 2.0, 1.0, 64).as_dict() == {
        "name": "allreduce",
        "unit": "s",
        "typical": 2.0,
        "best": 1.0,
        "nbytes": 64,
    }
