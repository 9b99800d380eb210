"""Answers go on after workers were replaced, and nothing but their tokens is kept for that."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest
from llm_serving import ALLOWED
from tiny_llama import write_gguf

from llm.config import open_checkpoint
from llm.engine import Engine, Settings
from llm.layers import BLOCK
from llm.model import blocks_within

WORKERS, CONTEXT = 2, 4096


class Watched(Engine):
    """Notes how many tokens its sequences have when they begin anew."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.computed_again = []

    def _begin_anew(self):
        self.computed_again.append(sum(each.known for each in self._running.values()))
        self.counts.prompt_tokens = 0
        super()._begin_anew()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small model."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return open_checkpoint(write_gguf(path, layers=1, context=CONTEXT))


@pytest.fixture(scope="module")
def address(shared_daemons):
    """A controller and a node."""
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    return controller.address


@pytest.fixture
def run(address, checkpoint):
    """Runs a coroutine function with an engine."""

    def run_it(program, *, blocks=2048, **settings):
        nbytes = blocks * (1 << 20) // blocks_within(checkpoint, WORKERS, 1 << 20)

        async def inside():
            wanted = Settings(nbytes, **settings)
            options = {"address": address, "num_workers": WORKERS, "logs": False}
            async with Watched(checkpoint, set(), wanted, **options) as engine:
                assert engine.pool.count == blocks
                return await program(engine)

        return asyncio.run(inside())

    return run_it


def prompts_of(count, length, begin=()):
    """Prompts that begin alike, and then differ."""
    rng = np.random.default_rng(3)
    return [[*begin, *rng.integers(3, 320, length).tolist()] for _ in range(count)]


async def collect(request):
    return [token async for token in request]


async def until(condition):
    """Lets the engine work until something is so."""
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110  (steps end one by one)
            await asyncio.sleep(0.001)


def kill(engine):
    os.kill(engine.session.workers[1].pid, signal.SIGKILL)


@pytest.mark.parametrize("steps", [20, 2000])
def test_what_is_computed_again_are_the_tokens_of_those_that_go_on(run, steps):
    """After many steps as after few: the sequences that have ended leave nothing behind."""
    prompts = prompts_of(3, 40)

    async def program(engine):
        wanted = await asyncio.gather(*(collect(engine.submit(p, 60)) for p in prompts))
        while engine.counts.steps < steps:
            await collect(engine.submit(prompts[0][:2], min(200, steps)))
        requests = [engine.submit(prompt, 60) for prompt in prompts]
        collected = [asyncio.create_task(collect(request)) for request in requests]
        await until(lambda: min(len(request.found) for request in requests) >= 10)
        kill(engine)
        assert await asyncio.gather(*collected) == wanted
        assert engine.counts.recoveries == 1
        assert len(engine.computed_again) == 1
        assert engine.counts.prompt_tokens == engine.computed_again[0]
        assert engine.computed_again[0] <= sum(len(p) + 60 for p in prompts)
        assert engine.pool.used == 0

    run(program)


def test_a_loss_while_nothing_runs_leaves_no_text_in_the_cache(run):
    """The same prompt again is computed again, and has the same answer."""
    (prompt,) = prompts_of(1, 100)

    async def program(engine):
        wanted = await collect(engine.submit(prompt, 20))
        kill(engine)
        await until(lambda: engine.session.recoveries)
        again = engine.submit(prompt, 20)
        assert await collect(again) == wanted
        assert again.shared == 0
        assert engine.counts.recoveries == 1

    run(program)


def test_sequences_that_shared_blocks_go_on_where_there_are_too_few_for_all(run):
    """Each held the common beginning once; some wait until others have ended."""
    common = prompts_of(1, 20 * BLOCK)[0]
    prompts = prompts_of(8, 5, common)

    async def program(engine):
        await collect(engine.submit(common, 1))
        requests = [engine.submit(prompt, 60) for prompt in prompts]
        collected = [asyncio.create_task(collect(request)) for request in requests]
        await until(lambda: min(len(request.found) for request in requests) >= 5)
        assert engine.running == 8
        kill(engine)
        answers = await asyncio.gather(*collected)
        assert engine.counts.recoveries == 1
        assert engine.pool.used == 0
        return answers

    async def undisturbed(engine):
        return [await collect(engine.submit(prompt, 60)) for prompt in prompts]

    assert run(program, blocks=60) == run(undisturbed)


def test_a_step_that_would_wait_does_not_end_the_engine(run):
    """Tables of more than 64 KiB take another way to the workers."""
    prompts = prompts_of(70, 2)

    async def program(engine):
        # Each has room for as many positions as there are, so its table soon is wide.
        long = engine.submit(prompts_of(1, 256 * BLOCK - 130)[0], 130)
        others = [engine.submit(prompt, 120) for prompt in prompts]
        await asyncio.gather(*map(collect, [long, *others]))
        assert engine.lost is None
        assert [request.reason for request in others] == ["length"] * len(others)

    run(program, slots=80, chunk=512)
