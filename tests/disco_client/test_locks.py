"""A thread that has a lock for which others may wait does not wait for them."""

from __future__ import annotations

import pytest

import disco_client
from disco_client.errors import Reentered
from disco_client.locks import make_lock


@pytest.mark.parametrize("waits", ["sync", "get", "room"])
def test_a_wait_of_a_thread_that_has_a_lock_is_refused_after_a_moment(waits):
    """A finalizer may run in the middle of anything, and what it waits for may need the lock."""
    with disco_client.ThreadedSession(1) as session:
        add = session.get_global_func("numpy.add")
        session.sync_all()
        session.get_global_func("time.sleep")(3.0)
        session._core.log.window = 1 if waits == "room" else 1000
        wait = {
            "sync": session.sync_all,
            "get": lambda: add(1, 2).debug_get_from_remote(0),
            "room": lambda: add(1, 2),
        }[waits]
        with make_lock(), pytest.raises(Reentered):
            wait()
        session._core.log.window = 1000
        assert add(1, 2).debug_get_from_remote(0) == 3
