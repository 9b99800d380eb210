"""Register ids against a model of the original's: a stack of free ones, then the counter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disco_client.command_log import RegisterIds


def test_freed_ids_come_back_last_in_first_out():
    """As the original's documented sequence: 3 comes back at once, then 4, then 2, then 5."""
    ids = RegisterIds()
    assert [ids.allocate() for _ in range(3)] == [1, 2, 3]
    ids.free(3)
    assert ids.allocate() == 3
    assert ids.allocate() == 4
    ids.free(2)
    ids.free(4)
    assert [ids.allocate() for _ in range(3)] == [4, 2, 5]
    assert ids.high_water == 5


@given(st.lists(st.none() | st.integers(0, 1000)))
def test_no_two_live_references_share_an_id(steps):
    """Whatever is allocated (None) and freed (a choice), ids stay unique and few."""
    ids, live, free, most = RegisterIds(), [], [], 0
    for step in steps:
        if step is None:
            register = ids.allocate()
            assert register not in live
            assert register == (free.pop() if free else most + 1)
            live.append(register)
            most = max(most, register)
        elif live:
            register = live.pop(step % len(live))
            ids.free(register)
            free.append(register)
        assert ids.high_water == most
        assert ids.live() == set(live)
        assert 0 not in live
