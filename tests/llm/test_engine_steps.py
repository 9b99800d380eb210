"""A step that goes on with the sequences of the one before needs no arguments."""

from __future__ import annotations

import asyncio

import pytest
from llm_serving import ALLOWED
from tiny_llama import write_gguf

from llm.config import open_checkpoint
from llm.engine import Engine, Settings
from llm.model import Model

PROMPTS = ([1, 5, 9], [2] * 40, [7, 3], [4, 8, 15, 16, 23, 42])
LENGTHS = (30, 12, 24, 7)


@pytest.fixture
def issued(monkeypatch):
    """The steps that are issued, by whether they were given anything."""
    steps = []
    for name in ("step", "next_step"):
        issue = getattr(Model, name)

        def noted(model, *given, issue=issue):
            steps.append(bool(given))
            return issue(model, *given)

        monkeypatch.setattr(Model, name, noted)
    return steps


async def answer(engine, prompt, length):
    return [token async for token in engine.submit(prompt, length)]


async def ask_for_logits(engine, times):
    for _ in range(times):
        await engine.logits([6, 6, 6])


async def alone_and_together(engine, issued):
    alone = []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        issued.clear()
        alone.append(await answer(engine, prompt, length))
        assert issued.count(True) <= 3  # the prompt in one chunk, and what may follow it
        assert issued.count(False) >= length - 3
    pairs = zip(PROMPTS, LENGTHS, strict=True)
    together, _ = await asyncio.gather(
        asyncio.gather(*(answer(engine, prompt, length) for prompt, length in pairs)),
        ask_for_logits(engine, 10),
    )
    assert together == alone


def test_sequences_go_on_as_they_would_alone(shared_daemons, tmp_path, issued):
    """While others come and go, and while logits are asked for between two steps."""
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", layers=1, context=256))
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    options = {"address": controller.address, "num_workers": 2, "logs": False}

    async def inside():
        async with Engine(checkpoint, set(), Settings(1 << 20), **options) as engine:
            await alone_and_together(engine, issued)

    asyncio.run(inside())
