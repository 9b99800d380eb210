"""Which session somebody means, and what he is told if there is none of his."""

from __future__ import annotations

import pytest

from disco_server.controller.edge import NotYours, find_session, unknown_session
from disco_server.core.access import EVERYBODY, Identity, Role
from disco_server.core.cluster import Cluster
from disco_server.core.session_state import End, EndReason, SessionTable

ALICE, BOB = (Identity(Role.CLIENT, name, "token") for name in ("alice", "bob"))


@pytest.fixture
def cluster():
    """Two sessions of Alice that wait, and one that is over."""
    made = Cluster(10.0, 10.0)
    for number, name in enumerate(("first", "second", "over"), 1):
        made.requested(
            SessionTable(number, name, "a", 1, 1, "", b"k", 0.0, 1e9, principal=ALICE.principal)
        )
    made.end(3, End(EndReason.CLOSED, "closed"))
    return made


def test_a_session_is_found_by_its_name_or_its_id(cluster):
    """By who made it, and where nobody is asked by everybody."""
    assert find_session(cluster, "first", ALICE).session == 1
    assert find_session(cluster, f"{2:016x}", EVERYBODY).name == "second"


def test_one_that_is_over_is_found_by_who_wants_it(cluster):
    """Otherwise it is unknown."""
    assert find_session(cluster, "over", ALICE, ended=True).session == 3
    with pytest.raises(LookupError, match="session that runs, got 'over'; there run: 'first', 's"):
        find_session(cluster, "over", ALICE)


def test_what_is_somebody_else_s_is_not_found_and_not_listed(cluster):
    """The refusal says so; names of sessions are those of who asks."""
    with pytest.raises(NotYours, match="'first' belongs to another owner"):
        find_session(cluster, "first", BOB)
    with pytest.raises(LookupError, match=r"or that ended within .* got 'nope'; there run: none"):
        find_session(cluster, "nope", BOB, ended=True)
    assert len(unknown_session(cluster, "x" * 5000, ALICE)) < 400
