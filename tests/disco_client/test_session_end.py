"""How far a session has come to its end: one state, which only goes on."""

from __future__ import annotations

import itertools

import pytest

from disco_client.errors import ControllerLost, SessionClosed
from disco_client.session_end import Phase, SessionEnd

CLOSED, LOST = SessionClosed("closed"), ControllerLost("lost")
STEPS = {"close": lambda end: end.close(CLOSED), "end": lambda end: end.end(LOST)}


@pytest.mark.parametrize("steps", list(itertools.product(STEPS, repeat=3)), ids="-".join)
def test_the_first_reason_counts_for_calls_and_the_first_end_for_waits(steps):
    """In whatever order a program closes its session and the session is lost."""
    end = SessionEnd()
    for step in steps:
        STEPS[step](end)
    assert end.refused is (CLOSED if steps[0] == "close" else LOST)
    assert end.error is (LOST if "end" in steps else None)
    assert end.phase is (Phase.ENDED if "end" in steps else Phase.CLOSING)


def test_what_it_has_raised_it_has_told():
    """A call of a closed session raises why; a wait only once nothing comes any more."""
    end = SessionEnd()
    end.check_open()
    end.close(CLOSED)
    end.check_alive()
    assert not end.told
    with pytest.raises(SessionClosed):
        end.check_open()
    assert end.told
    end.end(LOST)
    with pytest.raises(ControllerLost):
        end.check_alive()
