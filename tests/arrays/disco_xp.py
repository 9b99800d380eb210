"""Stands for ``session.numpy`` where a library asks for an array module by its name.

The session is opened when this module is imported, and ends with the process. ``ARRAYS_SESSION``
says of which kind it is: "processes", "threads" or "cluster", which is two nodes of two workers.
``ARRAYS_WORKERS`` is how many workers the others have.
"""

from __future__ import annotations

import atexit
import os
import sys

import disco_client
from disco_server.cli.local import LocalCluster

_NODES, _SLOTS = 2, 2


def _opened() -> disco_client.Session:
    kind = os.environ.get("ARRAYS_SESSION", "processes")
    workers = int(os.environ.get("ARRAYS_WORKERS", "4"))
    if kind == "cluster":
        cluster = LocalCluster(_NODES, _SLOTS, import_path=sys.path)
        cluster.start()
        atexit.register(cluster.stop)
        return disco_client.connect(cluster.address, num_workers=_NODES * _SLOTS)
    kinds = {"processes": disco_client.ProcessSession, "threads": disco_client.ThreadedSession}
    return kinds[kind](workers)


session = _opened()
atexit.register(session.shutdown)
sys.modules[__name__] = session.numpy  # type: ignore[assignment]
