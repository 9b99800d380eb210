"""What a controller says of a session's end becomes the error that fits."""

from __future__ import annotations

import pytest

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.endings import error_before, error_of_end

Ended = controller_pb2.SessionEnded


def ended(reason, **more):
    return Ended(reason=getattr(controller_pb2, f"END_REASON_{reason}"), message="why", **more)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (controller_pb2.END_REASON_RANK_LOST, errors.WorkerLost),
        (controller_pb2.END_REASON_START_FAILED, errors.WorkerLost),
        (controller_pb2.END_REASON_NODE_LOST, errors.NodeLost),
        (controller_pb2.END_REASON_DRAINED, errors.ControllerLost),
        (controller_pb2.END_REASON_CLOSED, errors.SessionClosed),
        (controller_pb2.END_REASON_STOPPED, errors.SessionLost),
        (99, errors.SessionLost),
    ],
)
def test_each_end_has_its_error(reason, kind):
    """Before a session has begun as well as later, and for a reason not known here yet."""
    for make in (error_before, error_of_end):
        assert type(make(Ended(reason=reason, message="why"), "mine")) is kind


def test_a_session_that_never_began_may_lack_slots_or_be_refused():
    """With the state of the slots, and the controller's words."""
    slots = controller_pb2.Queued(total_slots=4, free_slots=1)
    lacking = error_before(ended("NO_SLOTS", slots=slots), "mine")
    assert isinstance(lacking, errors.NoSlots)
    assert (lacking.total_slots, lacking.free_slots) == (4, 1)
    refused = error_before(ended("REFUSED"), "mine")
    assert isinstance(refused, errors.ConfigError)
    assert str(refused) == "why"


def test_a_lost_worker_is_named():
    """With its node, its status and its last lines."""
    error = error_of_end(
        ended("RANK_LOST", worker=3, node="attic", exit_status=-9, output=["last"]), "mine"
    )
    assert (error.worker, error.node, error.exit_status) == (3, "attic", -9)
    assert list(error.output) == ["last"]
