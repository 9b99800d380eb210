"""Sessions of four workers on which distributed tensors lie, one for each carrier."""

from __future__ import annotations

import pytest

from disco_client import ProcessSession, connect


@pytest.fixture(scope="module", params=["process", "connect"])
def workers(request):
    """A session of four workers, on child processes and on a cluster."""
    if request.param == "process":
        session = ProcessSession(4)
    else:
        session = connect(request.getfixturevalue("cluster").address, num_workers=4)
    with session:
        yield session
