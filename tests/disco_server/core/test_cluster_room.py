"""Why a session has no room, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_server.core.cluster import no_room
from disco_server.core.nodes import Membership, Node, NodeShare
from disco_server.core.session_state import SessionState, SessionTable

ASKED = SessionTable(1, "asked", "me@here:1", 5, 1, "", b"key", 0.0, 9.0)
CPUS, GPUS = ("cpu",) * 3, ("cuda:0",)


def members(*nodes):
    made = Membership()
    for index, devices in enumerate(nodes):
        made.join(Node(f"n{index}", devices, 1, "0.1", "host", 0.0))
    return made


ADD = "add nodes or slots"
START = "start a worker daemon: disco-worker --controller HOST:PORT"
ONE_KIND = " (those of one session have devices of one kind)"
MIXED = "4 slots (3 cpu, 1 cuda) on 2 nodes"


@pytest.mark.parametrize(
    ("nodes", "ccl", "there", "advice"),
    [
        ((), "", "0 slots on 0 nodes", START),
        ((CPUS,), "", "3 slots on 1 node", f"{ADD}, or ask for fewer workers"),
        ((CPUS, CPUS), "mpi", "6 slots on 2 nodes", "wait longer (timeout=...) or end a session"),
        (
            (CPUS, GPUS),
            "nccl",
            MIXED,
            f"{ADD} with --devices cuda, ask for fewer, or leave out ccl",
        ),
        ((CPUS, GPUS), "", MIXED, f"{ADD}, or ask for fewer workers{ONE_KIND}"),
    ],
)
def test_it_says_what_there_is_and_what_to_do(nodes, ccl, there, advice):
    """The slots, of each kind where that matters, and the way that is open."""
    text = no_room(replace(ASKED, ccl=ccl), members(*nodes), [], 1.0, never=False)
    what = "cuda workers" if ccl == "nccl" else "workers"
    free = sum(map(len, nodes))
    assert text == (
        f"no room for 5 {what} in time: the cluster has {there}, {free} of them free; {advice}"
    )


def test_it_says_who_holds_slots():
    """Also of a session whose program is away, and until when."""
    share = (NodeShare("n0", (0,), (0,), ("cpu",)),)
    busy = replace(ASKED, name="busy", num_workers=2, shares=share)
    away = replace(busy, name="away", state=SessionState.DETACHED, deadline=8.0)
    text = no_room(ASKED, members(CPUS), [busy, away, ASKED], 1.5, never=False)
    assert (
        "; session 'busy' holds 2 (me@here:1), 'away' holds 2 (me@here:1, which is away; " in text
    )
    assert "free in 6 s unless it comes back); add" in text


def test_what_will_never_fit_is_not_told_to_wait():
    """There will be no other nodes: neither waiting nor who holds slots is of any use."""
    share = (NodeShare("n0", (0,), (0,), ("cpu",)),)
    text = no_room(ASKED, members(CPUS), [replace(ASKED, shares=share)], 1.0, never=True)
    assert text == (
        "no room for 5 workers: the cluster has 3 slots on 1 node, and there will be no others; "
        "start it with more nodes or slots, or ask for fewer workers"
    )
