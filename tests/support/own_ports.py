"""Ports for controllers that no other test process uses."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST = 10_000
_EACH = 2_500
_PROCESSES = 8


def own_port() -> int:
    """A free port for a controller that this process gives to nobody again soon.

    A port that the system has chosen it soon gives to another test; daemons that look for
    their own controller there would join that test's.
    """
    return next(_ports)


def check_awaited(address: str) -> None:
    """Refuses to let a daemon look for a controller that is not there yet on another port.

    Raises:
        AssertionError: Nobody listens there, and it is a port that the system gives to others.
    """
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or int(port) < _first_of_system():
        return
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", int(port)))
        except OSError:
            return
    raise AssertionError(f"expected a port of own_port() for a controller to come, got {address}")


def _first_of_system() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _own_ports() -> Iterator[int]:
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + process % _PROCESSES * _EACH
    for number in itertools.count(os.getpid()):
        port = first + number % _EACH
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_ports = _own_ports()
