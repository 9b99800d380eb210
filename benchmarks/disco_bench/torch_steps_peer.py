"""Gloo's side of the section `torch_steps`: as many processes of torch.distributed.

    python -m disco_bench.torch_steps_peer RANKS

It prints "ready" and then answers each line ``STEPS`` with how many seconds the steps took until
all ranks had done them, and the losses of rank 0 as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from disco_bench.torch_steps_net import train

__all__ = ["main"]

dist: Any = importlib.import_module("torch.distributed")


class _ByGloo:
    """See `TensorTransfer`."""

    def __init__(self) -> None:
        self.send, self.recv = dist.send, dist.recv

    def broadcast(self, tensor: Any) -> None:
        """Overwrites the tensors of all ranks with that of rank 0."""
        dist.broadcast(tensor, 0)


def _join(rank: int, size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def _answer(rank: int, size: int, line: str) -> str:
    """Trains together with the other ranks."""
    dist.barrier()
    started = time.perf_counter()
    losses = train(rank, size, int(line), _ByGloo())
    dist.barrier()
    return json.dumps([time.perf_counter() - started, losses])


def _lead(size: int, store: str) -> None:
    """Starts the other ranks, and passes on what rank 0 is asked."""
    others = [
        subprocess.Popen(
            [sys.executable, "-m", "disco_bench.torch_steps_peer", str(size), str(rank), store],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for rank in range(1, size)
    ]
    _join(0, size, store)
    print("ready", flush=True)
    for line in sys.stdin:
        for other in others:
            assert other.stdin is not None
            other.stdin.write(line)
        print(_answer(0, size, line), flush=True)


def main() -> None:
    """Serves measurements until standard input ends."""
    size, *rest = sys.argv[1:]
    if rest:
        rank, store = rest
        _join(int(rank), int(size), store)
        for line in sys.stdin:
            _answer(int(rank), int(size), line)
        return
    # Between processes of one machine, however its name is resolved.
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        _lead(int(size), str(Path(folder) / "store"))


if __name__ == "__main__":
    main()
