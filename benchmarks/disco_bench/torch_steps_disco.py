"""Disco's side of the section `torch_steps`: clusters whose workers have torch.

    python -m disco_bench.torch_steps_disco RANKS

It runs in the environment that has torch, as its workers do. It prints "ready" and then answers
each line ``NODES STEPS`` with how many seconds the steps took on so many daemons, and the losses of
rank 0 as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import disco_client
from disco_bench.child import BENCHMARKS
from disco_server.cli.local import LocalCluster

__all__ = ["main"]

_FUNCTIONS = "disco_bench.torch_steps_functions"


def _open(stack: contextlib.ExitStack, nodes: int, ranks: int) -> disco_client.Session:
    """A session of all slots of a cluster of its own, which ends with the stack."""
    cluster = LocalCluster(
        nodes,
        ranks // nodes,
        listen="127.0.0.1:0",
        allow_modules=[_FUNCTIONS],
        import_path=[str(BENCHMARKS)],
    )
    address = stack.enter_context(cluster).address
    session = stack.enter_context(disco_client.connect(address, num_workers=ranks))
    session.import_python_module(_FUNCTIONS)
    session.sync_all()
    return session


def main() -> None:
    """Serves measurements until standard input ends."""
    ranks = int(sys.argv[1])
    with contextlib.ExitStack() as stack:
        sessions = {nodes: _open(stack, nodes, ranks) for nodes in (1, 2)}
        print("ready", flush=True)
        for line in sys.stdin:
            nodes, steps = map(int, line.split())
            session = sessions[nodes]
            run = session.get_global_func("bench.torch_steps")
            session.sync_all()
            started = time.perf_counter()
            result = run(steps)
            session.sync_all()
            seconds = time.perf_counter() - started
            print(json.dumps([seconds, result.debug_get_from_remote(0)]), flush=True)


if __name__ == "__main__":
    main()
