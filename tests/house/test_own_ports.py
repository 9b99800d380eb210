"""Which ports the tests' daemons may look for a controller at."""

from __future__ import annotations

import socket

import pytest
from own_ports import own_port


def test_no_daemon_waits_for_its_controller_where_another_test_may_start_one(daemons):
    """It is refused where nobody listens yet, unless the port is the process's own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(AssertionError, match="expected a port of own_port"):
        daemons.worker(address, ready=False)
    daemons.worker(f"127.0.0.1:{own_port()}", ready=False)
