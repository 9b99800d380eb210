"""torch's distributed tensors over gloo, doing what Disco's do in ``dtensor``.

Runs in an environment that has torch and not Disco, with the number of ranks; it is
rank 0 itself and starts the others, to whose standard input it forwards what it reads
on its own. A line is ``check NAME NBYTES``, answered by ``ok``, or ``many NAME
NBYTES COUNT`` or ``one NAME NBYTES COUNT``, answered by the seconds of one of COUNT
operations: of all of them with a barrier at the end, or the median of each with its
own. The slowest rank counts.
"""

from __future__ import annotations

import importlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from disco_bench.dtensor_cases import CASES, Case, expected, inputs, result_of

__all__ = ["main"]

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")
tensors: Any = importlib.import_module("torch.distributed.tensor")

_SPEC = re.compile(r"(R)|(P)|S\[(\d+)\]")


class Rank:
    """One rank, and what it has made so far.

    Args:
        rank: Which.
        size: Of how many.
        store: The file of their rendezvous.
    """

    def __init__(self, rank: int, size: int, store: str) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self._rank = rank
        self._meshes: dict[tuple[int, ...], Any] = {}
        self._actions: dict[tuple[str, int], Callable[[], Any]] = {}

    def answer(self, line: str) -> str:
        """Does what a line says, together with the other ranks."""
        verb, name, nbytes, *count = line.split()
        if verb == "check":
            self._check(CASES[name], int(nbytes))
            dist.barrier()
            return "ok"
        action = self._action(CASES[name], int(nbytes))
        if verb == "many":
            return str(self._many(action, int(count[0])))
        return str(self._one(action, int(count[0])))

    def _many(self, action: Callable[[], object], count: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            _result = action()
        dist.barrier()
        return _slowest([(time.perf_counter() - started) / count])[0]

    def _one(self, action: Callable[[], object], count: int) -> float:
        figures: list[float] = []
        dist.barrier()
        for _ in range(count):
            started = time.perf_counter()
            _result = action()
            dist.barrier()
            figures.append(time.perf_counter() - started)
        return statistics.median(_slowest(figures))

    def _check(self, case: Case, nbytes: int) -> None:
        result = self._action(case, nbytes)()
        if result is None:
            return
        if case.after:
            assert list(result.placements) == _placements(case.after), result.placements
        assert np.array_equal(result.full_tensor().numpy(), expected(case, nbytes)), case

    def _action(self, case: Case, nbytes: int) -> Callable[[], Any]:
        action = self._actions.get((case.name, nbytes))
        if action is None:
            mesh = self._mesh(case.mesh)
            pairs = zip(inputs(case, nbytes), case.operands, strict=True)
            operands = [self._distribute(array, mesh, text) for array, text in pairs]
            after = _placements(case.after) if case.after else None
            action = result_of(
                operands, None if after is None else lambda x: x.redistribute(mesh, after)
            )
            self._actions[case.name, nbytes] = action
        return action

    def _mesh(self, shape: tuple[int, ...]) -> Any:
        if shape not in self._meshes:
            self._meshes[shape] = dist.init_device_mesh("cpu", shape)
        return self._meshes[shape]

    def _distribute(self, array: np.ndarray[Any, Any], mesh: Any, text: str) -> Any:
        whole = torch.from_numpy(array)
        if "P" not in text:
            return tensors.distribute_tensor(whole, mesh, _placements(text))
        # As Disco makes a partial tensor of an array: the first rank has the values.
        mine = whole if self._rank == 0 else torch.zeros_like(whole)
        return tensors.DTensor.from_local(mine, mesh, _placements(text))


def _placements(text: str) -> list[Any]:
    found: list[Any] = []
    for whole, partial, axis in _SPEC.findall(text):
        if whole:
            found.append(tensors.Replicate())
        else:
            found.append(tensors.Partial() if partial else tensors.Shard(int(axis)))
    return found


def _slowest(figures: list[float]) -> list[float]:
    both = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both.tolist()


def main() -> None:
    """Serves measurements until standard input ends."""
    size = int(sys.argv[1])
    if len(sys.argv) > 2:  # noqa: PLR2004
        rank = Rank(int(sys.argv[2]), size, sys.argv[3])
        for line in sys.stdin:
            rank.answer(line)
        return
    # Between processes of one machine, however its name is resolved.
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        others = [
            subprocess.Popen(
                [sys.executable, "-m", "disco_bench.torch_peer", str(size), str(number), store],
                stdin=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for number in range(1, size)
        ]
        rank = Rank(0, size, store)
        print("ready", flush=True)
        for line in sys.stdin:
            for other in others:
                assert other.stdin is not None
                other.stdin.write(line)
            print(rank.answer(line), flush=True)


if __name__ == "__main__":
    main()
