"""Another tenant's session, in a program of its own: it prints, computes or sends arrays.

For each line of its input, an activity and a number of seconds, it prints two lines: one
when it has begun, and at the end one with how many bytes a second it has sent.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import disco_client

_BURST_BYTES = 240_000


def send_arrays(session: disco_client.Session, nbytes: int, rate: float, seconds: float) -> float:
    """Sends arrays inside commands; returns how many bytes a second.

    Args:
        session: Where to.
        nbytes: Of each array.
        rate: How many bytes a second to send, in bursts of equal size; 0 for all it can.
        seconds: For how long.
    """
    noop = session.get_global_func("bench.noop")
    array = np.zeros(nbytes, np.uint8)
    sent, started = 0, time.perf_counter()
    while (gone := time.perf_counter() - started) < seconds:
        if rate and sent > rate * gone:
            time.sleep(0.001)
            continue
        for _ in range(_BURST_BYTES // nbytes):
            noop(array, 1, 2)
        sent += _BURST_BYTES
    session.sync_all()
    return sent / (time.perf_counter() - started)


def main() -> None:
    """Runs the tenant; the argument is the controller's address."""
    with disco_client.connect(sys.argv[1], num_workers=1, name="tenant") as session:
        session.import_python_module("disco_bench.worker_functions")
        session.sync_all()
        print("ready", flush=True)
        for line in sys.stdin:
            what, seconds, *numbers = line.split()
            print("begun", flush=True)
            sent = 0.0
            if what == "arrays":
                sent = send_arrays(session, int(numbers[0]), float(numbers[1]), float(seconds))
            else:
                session.get_global_func(f"bench.{what}")(float(seconds))
                session.sync_all()
            print(sent, flush=True)


if __name__ == "__main__":
    main()
