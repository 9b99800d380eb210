"""The controller's decisions where it knows how many nodes there will ever be."""

from __future__ import annotations

from disco_server.core.cluster import Cluster, StartSession, TellEnded
from disco_server.core.nodes import Node
from disco_server.core.session_state import EndReason, SessionState, SessionTable


def promised(nodes):
    """A controller that hears of silent nodes never."""
    return Cluster(10.0, 1e9, expect_nodes=nodes)


def node(name, incarnation=1):
    return Node(name, ("cpu", "cpu"), incarnation, "0.1", "host", 0.0)


def session(number, workers):
    return SessionTable(number, f"s{number}", "me", workers, 1, "", b"key", 0.0, 100.0)


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def test_what_fits_on_no_node_to_come_need_not_wait():
    """It is refused once all nodes are there; what would fit if slots were free waits."""
    cluster = promised(2)
    cluster.node_joined(node("a"))
    large, fitting = session(1, 5), session(2, 4)
    cluster.requested(large)
    assert cluster.tick(1.0) == []
    later = session(3, 1)
    cluster.requested(fitting)
    cluster.node_joined(node("b"))
    (told,) = of(cluster.tick(2.0), TellEnded)
    assert told.session is large
    assert told.end.reason is EndReason.NO_SLOTS
    assert "there will be no others" in told.end.message
    cluster.requested(later)
    assert (fitting.state, later.state) == (SessionState.STARTING, SessionState.QUEUED)
    assert cluster.tick(3.0) == []


def test_slots_of_nodes_that_drain_may_come_back():
    """A node that takes no sessions now will once it was started again."""
    cluster = promised(1)
    cluster.node_joined(node("a"))
    cluster.node_cordoned("a")
    cluster.requested(session(1, 2))
    assert cluster.tick(1.0) == []
    cluster.requested(session(2, 3))
    assert [told.session.session for told in of(cluster.tick(2.0), TellEnded)] == [2]


def test_a_node_that_is_away_may_come_back_with_its_slots():
    """While fewer nodes are there than were promised nothing is hopeless."""
    cluster = promised(2)
    cluster.node_joined(node("a"))
    cluster.node_joined(node("b"))
    cluster.node_left("b", "it was ended")
    cluster.requested(session(1, 4))
    assert cluster.tick(1.0) == []
    assert of(cluster.node_joined(node("b", incarnation=2)), StartSession)
