"""Asks the language model's engine thousands of questions, of which one in ten is taken back.

::

    python benchmarks/llm_soak.py --requests 10000
    python benchmarks/llm_soak.py --requests 200 --model SmolLM2.gguf

Without ``--model`` it is a Llama of 2 layers and width 64 with random weights. A cluster of two
daemons and the engine, in this process, are watched: the memory of every process after a tenth
of the requests and at the end, and the blocks of the cache, none of which may be lost. Exit
codes: 0, or 1 where a block was lost or a process has grown by more than ``--growth-mib``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "support")]

from disco_server.cli.local import LocalCluster  # noqa: E402
from llm.config import open_checkpoint  # noqa: E402
from llm.engine import Engine, Sampling, Settings  # noqa: E402
from llm.text import Text  # noqa: E402

if TYPE_CHECKING:
    from llm.config import Checkpoint

__all__ = ["main", "soak"]

_AT_ONCE = 24


async def soak(engine: Engine, checkpoint: Checkpoint, requests: int, seed: int) -> list[str]:
    """Asks and takes back; returns what is wrong with the cache afterwards.

    Args:
        engine: Answers.
        checkpoint: Its model.
        requests: How many.
        seed: Of their lengths, their tokens, and of which are taken back.
    """
    rng = random.Random(seed)  # noqa: S311  (so that a run can be repeated)
    room = min(checkpoint.config.context // 2, 200)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(prompt: list[int], tokens: int, leaves_after: int | None) -> None:
        async with gate:
            sampling = Sampling(rng.choice((0.0, 0.9)), 0.95, rng.randrange(1 << 31))
            request = engine.submit(prompt, tokens, sampling)
            if leaves_after == 0:
                engine.cancel(request)
            async for _ in request:
                if leaves_after is not None and len(request.found) >= leaves_after:
                    engine.cancel(request)

    # Some texts begin alike, so that blocks are shared.
    beginnings = [_tokens(rng, checkpoint, 48) for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for _ in range(requests):
            prompt = rng.choice(beginnings)[: rng.randint(1, 48)]
            prompt = prompt + _tokens(rng, checkpoint, rng.randint(0, room - 48))
            leaves = rng.randint(0, 4) if rng.random() < 0.1 else None  # noqa: PLR2004
            tokens = rng.randint(1, 24)
            while len(asyncio.all_tasks()) > 4 * _AT_ONCE:  # noqa: ASYNC110  (one by one)
                await asyncio.sleep(0.001)
            group.create_task(one(prompt, tokens, leaves))
    wrong: list[str] = []
    if engine.running or engine.waiting:
        wrong.append(f"{engine.running} sequences run and {engine.waiting} wait")
    pool = engine.pool
    if pool.used or len(set(pool.take(pool.count))) != pool.count:
        wrong.append(f"{pool.used} of {pool.count} blocks are held by nobody who lives")
    return wrong


def _tokens(rng: random.Random, checkpoint: Checkpoint, count: int) -> list[int]:
    return [rng.randrange(3, checkpoint.config.vocabulary) for _ in range(count)]


def _memory() -> dict[int, tuple[str, int]]:
    """Of this process and all below it: what it is, and its bytes that nobody shares."""
    found: dict[int, tuple[str, int]] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        words = process.cmdline()
        name = next((word for word in words if word.startswith("disco_server")), words[-1])
        found[process.pid] = name, process.memory_full_info().uss
    return found


async def _run(options: argparse.Namespace, path: Path, address: str) -> int:
    checkpoint = open_checkpoint(path)
    engine = Engine(
        checkpoint,
        Text(checkpoint).ends,
        Settings(cache_bytes=16 << 20),
        progress=False,
        address=address,
        num_workers=options.workers,
    )
    async with engine:
        before: dict[int, tuple[str, int]] = {}
        wrong: list[str] = []
        part = max(1, options.requests // 10)
        for turn in range(10):
            count = part if turn else max(1, options.requests - 9 * part)
            wrong += await soak(engine, checkpoint, count, options.seed + turn)
            engine.pool.release(range(engine.pool.count))
            before = before or _memory()
        after = _memory()
        print(f"{options.requests} requests, {engine.counts}")
    for pid, (name, nbytes) in sorted(after.items()):
        grown = (nbytes - before.get(pid, (name, nbytes))[1]) / 2**20
        print(f"{name:40} {nbytes / 2**20:8.1f} MiB   {grown:+7.1f} MiB since a tenth")
        if grown > options.growth_mib:
            wrong.append(f"{name} has grown by {grown:.1f} MiB")
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    """Runs it and returns the exit code."""
    parser = argparse.ArgumentParser(description="Asks the language model thousands of questions.")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder; else a small one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth-mib", type=float, default=16.0, help="that a process may grow")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path is None:
            from tiny_llama import write_gguf

            path = write_gguf(Path(folder) / "small.gguf")
        with LocalCluster(2, 2, listen="127.0.0.1:0") as cluster:
            return asyncio.run(_run(options, path, cluster.address))


if __name__ == "__main__":
    sys.exit(main())
