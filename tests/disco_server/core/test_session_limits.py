"""Who has as many sessions as he may have gets no more, and nobody else notices."""

from __future__ import annotations

from disco_server.core.cluster import SessionLimits
from disco_server.core.session_state import SessionTable

LIMITS = SessionLimits(total=5, per_client=2)


def session(number, principal="", owner="me@here:1"):
    return SessionTable(
        number, f"s{number}", owner, 2, 1, "", b"key", 0.0, 100.0, principal=principal
    )


def test_a_client_has_as_many_sessions_as_one_may_have():
    """Its next is refused with the number and the flag; another client's is not."""
    there = [session(1, "token:ann"), session(2, "token:ann")]
    assert not LIMITS.refusal(there[-1], there)
    late = session(3, "token:ann")
    assert "--max-client-sessions" in LIMITS.refusal(late, [*there, late])
    assert "has 2 sessions" in LIMITS.refusal(late, [*there, late])
    other = session(3, "token:ben")
    assert not LIMITS.refusal(other, [*there, other])


def test_where_nobody_is_asked_a_client_is_a_process():
    """As it names itself, which is all that is known of it."""
    there = [session(1), session(2)]
    late, other = session(3), session(3, owner="me@here:2")
    assert LIMITS.refusal(late, [*there, late])
    assert not LIMITS.refusal(other, [*there, other])


def test_all_together_have_as_many_as_there_may_be():
    """Whoever made them."""
    there = [session(number, owner=f"me@here:{number}") for number in range(6)]
    assert not LIMITS.refusal(there[4], there[:5])
    assert "--max-sessions" in LIMITS.refusal(there[5], there)
