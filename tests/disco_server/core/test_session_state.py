"""The life of a session: the table of moves, and nothing beside it."""

from __future__ import annotations

import inspect
import re

import pytest

from disco_client.pb import controller_pb2
from disco_server.core import session_state
from disco_server.core.session_state import (
    EndReason,
    SessionEvent,
    SessionState,
    SessionTable,
    WrongStep,
)

MOVES = {
    ("queued", "place"): "starting",
    ("queued", "end"): "gone",
    ("starting", "ready"): "running",
    ("starting", "end"): "ending",
    ("running", "detach"): "detached",
    ("running", "end"): "ending",
    ("returning", "ready"): "detached",
    ("returning", "end"): "ending",
    ("detached", "attach"): "running",
    ("detached", "end"): "ending",
    ("ending", "gone"): "gone",
}


def table(state):
    return SessionTable(1, "mine", "me", 2, 1, "", b"", 0.0, 1.0, state=state)


@pytest.mark.parametrize("step", SessionEvent, ids=lambda step: step.value)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.value)
def test_only_the_moves_of_the_table_are_possible(state, step):
    """Any other one is an error that changes nothing."""
    session = table(state)
    after = MOVES.get((state.value, step.value))
    if after is None:
        with pytest.raises(WrongStep, match=f"'mine' is {state.value} and cannot {step.value}"):
            session.step(step)
        assert session.state is state
    else:
        session.step(step)
        assert session.state.value == after


def test_a_session_is_alive_until_its_end():
    """An ending one executes nothing more."""
    alive = {state for state in SessionState if table(state).alive}
    assert alive == set(SessionState) - {SessionState.ENDING, SessionState.GONE}


def test_the_picture_names_every_state_and_step():
    """What is drawn at the top of the module is what there is."""
    picture = inspect.getdoc(session_state)
    for state in SessionState:
        assert re.search(rf"\b{state.name}\b", picture), state
    for step in SessionEvent:
        assert re.search(rf"\b{step.value}\b", picture), step


def test_reasons_have_the_numbers_of_the_wire():
    """The same names, too."""
    wire = dict(controller_pb2.EndReason.items())
    wire.pop("END_REASON_UNSPECIFIED")
    assert {f"END_REASON_{reason.name}": reason.value for reason in EndReason} == wire
