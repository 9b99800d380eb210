"""Training steps of many small torch tensors, by sends and broadcasts, beside gloo."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import disco_client
from disco_bench.bench import WORKERS, Bench
from disco_bench.child import BENCHMARKS, Child, ChildFailed, peer_python, with_path
from disco_bench.sampling import Pair, rotate
from disco_bench.table import Limit, Spec, Unavailable

__all__ = ["TORCH_STEPS", "measure_torch_steps", "python_with_torch"]

_NODES = {1: "torch_steps.one_node", 2: "torch_steps.two_nodes"}
_START_S, _ROUND_S, _IMPORT_S = 120.0, 300.0, 120.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_STEPS = 200
_WHAT = f"{_STEPS} steps of a net 3-16-1 in torch, {WORKERS} workers"
TORCH_STEPS = tuple(
    Spec(key, what, "s", "torch.distributed, gloo", Limit("ratio", must=1.0))
    for key, what in zip(_NODES.values(), (f"{_WHAT}, 1 node", f"{_WHAT}, 2 nodes"), strict=True)
)
_NEEDED = "import torch, grpc, mpi4py"


def measure_torch_steps(bench: Bench) -> None:
    """Compares the training on one daemon, and on two, with that of torch's own processes.

    Raises:
        Unavailable: There is no Python that has torch and what Disco needs, or a side failed.
    """
    python = python_with_torch()
    environ = {**with_path(BENCHMARKS, BENCHMARKS.parent), **_ONE_THREAD}
    try:
        with (
            Child(
                ["-m", "disco_bench.torch_steps_disco", str(WORKERS)], environ, python, end_s=20.0
            ) as ours,
            Child(["-m", "disco_bench.torch_steps_peer", str(WORKERS)], environ, python) as theirs,
        ):
            for child in (ours, theirs):
                child.read_line(_START_S)
            _measure(bench, ours, theirs)
    except ChildFailed as error:
        raise Unavailable(" ".join(str(error).split())) from None


def python_with_torch() -> Path:
    """The interpreter that has torch and what Disco needs, for ranks of both sides.

    Raises:
        Unavailable: There is none.
    """
    found, root = peer_python("interop", "interop"), BENCHMARKS.parent
    if Path(disco_client.__file__).parents[1] != root:
        msg = f"expected the Disco of {root}, which workers with torch import, to be measured"
        raise Unavailable(msg)
    done = subprocess.run(
        [found, "-c", _NEEDED], capture_output=True, text=True, check=False, timeout=_IMPORT_S
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        msg = f"{found} lacks what workers with torch need ({reason}); `make interop` installs it"
        raise Unavailable(msg)
    return found


def _measure(bench: Bench, ours: Child, theirs: Child) -> None:
    steps, rounds = bench.pick((_STEPS, 9), (5, 1))
    expected = _losses(theirs, str(steps))
    measures = [partial(_seconds, ours, f"{nodes} {steps}", expected) for nodes in _NODES]
    peer = partial(_seconds, theirs, str(steps), expected)
    *figures, yardstick = rotate((*measures, peer), rounds)
    for key, figure in zip(_NODES.values(), figures, strict=True):
        note = f"{steps} steps in each of {rounds} rounds; the losses are equal"
        bench.record(key, Pair(figure, yardstick).measured(note))


def _losses(child: Child, question: str) -> list[float]:
    return json.loads(child.ask(question, _ROUND_S))[1]


def _seconds(child: Child, question: str, expected: list[float]) -> float:
    """How long the steps took; a fast wrong result would be no achievement."""
    seconds, losses = json.loads(child.ask(question, _ROUND_S))
    assert losses == expected, (losses[-1], expected[-1])
    return seconds
