"""Options that depend on a sequence's tokens hold on any workers, in company, and after a loss."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest
from llm_serving import ALLOWED
from tiny_llama import write_gguf

from llm.choosing import Sampling
from llm.config import open_checkpoint
from llm.engine import Engine, Settings
from llm.layers import BLOCK
from llm.plain import Plain

LENGTH = 24
PROMPT = [5, 9, 17, 5, 80, 200] * 7
OPTIONS = {
    "none": Sampling(),
    "told": Sampling(logprobs=3, scores_prompt=True),
    "penalties": Sampling(repetition=1.4, frequency=0.6, presence=0.3, logprobs=0),
    "drawn": Sampling(1.0, 0.9, 7, top_k=30, min_p=0.02, repetition=1.2, logprobs=2),
    "kept going": Sampling(0.8, 1.0, 3, min_tokens=12, ends=tuple(range(200)), logprobs=1),
    "biased": Sampling(1.2, 1.0, 5, bias=((40, 6.0), (41, 6.0), (50, -100.0))),
}
"""Of which the last three end by chance or not at all; all of them by themselves alone."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small model."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return open_checkpoint(write_gguf(path, layers=1, context=256))


@pytest.fixture(scope="module")
def address(shared_daemons):
    """A controller and a node."""
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "3", *ALLOWED)
    return controller.address


@pytest.fixture
def run(address, checkpoint):
    """Runs a coroutine function with an engine on some workers."""

    def run_it(program, workers, chunk=16):
        async def inside():
            opened = {"address": address, "num_workers": workers, "logs": False}
            wanted = Settings(1 << 20, chunk=chunk)
            async with Engine(checkpoint, {2}, wanted, **opened) as engine:
                return await program(engine)

        return asyncio.run(inside())

    return run_it


async def collect(request):
    return [token async for token in request]


def told(request):
    """The tokens that were told, and how likely they were."""
    notes = [*request.scores.values(), *request.notes]
    return [t for names, _ in notes for t in names.tolist()], np.concatenate(
        [logprobs for _, logprobs in notes] or [np.zeros(0)]
    )


async def ask_all(engine):
    """The answers to all options at once."""
    requests = {name: engine.submit(PROMPT, LENGTH, each) for name, each in OPTIONS.items()}
    await asyncio.gather(*map(collect, requests.values()))
    return requests


def assert_same(requests, others):
    for name, request in requests.items():
        other = others[name]
        assert (request.found, request.reason) == (other.found, other.reason), name
        (names, logprobs), (wanted, others_logprobs) = told(request), told(other)
        assert names == wanted, name
        np.testing.assert_allclose(logprobs, others_logprobs, atol=1e-4)


async def alone(engine):
    """The answers one after the other."""
    requests = {}
    for name, sampling in OPTIONS.items():
        requests[name] = engine.submit(PROMPT, LENGTH, sampling)
        await collect(requests[name])
    return requests


def test_the_same_options_give_the_same_on_any_workers_in_any_company_and_after_a_loss(run):
    """Tokens, reasons, and log probabilities as near as sums in another order are."""
    wanted = run(alone, 1)
    assert wanted["told"].found == wanted["none"].found
    assert len({tuple(request.found) for request in wanted.values()}) == len(OPTIONS) - 1
    assert len(wanted["kept going"].found) >= 12
    assert 50 not in wanted["biased"].found
    assert_same(run(ask_all, 2), wanted)

    async def lose_one(engine):
        requests = {name: engine.submit(PROMPT, LENGTH, each) for name, each in OPTIONS.items()}
        collected = asyncio.gather(*map(collect, requests.values()))
        async with asyncio.timeout(40):
            while min(len(request.found) for request in requests.values()) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        os.kill(engine.session.workers[1].pid, signal.SIGKILL)
        await collected
        assert engine.counts.recoveries == 1
        return requests

    assert_same(run(lose_one, 3), wanted)


def test_what_is_told_is_what_the_plain_forward_computes(run, checkpoint):
    """Of each token of prompt and answer, before any penalty."""
    requests = run(alone, 2)
    plain = Plain(checkpoint)
    for name in ("told", "penalties", "drawn"):
        request = requests[name]
        logits = plain.logits([*PROMPT, *request.found]).astype(np.float64)
        shares = logits - logits.max(axis=1, keepdims=True)
        shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))
        notes = dict(enumerate(request.notes, len(PROMPT))) | request.scores
        assert len(notes) == len(request.found) + (len(PROMPT) - 1) * (name == "told")
        for position, (tokens, logprobs) in notes.items():
            row = shares[position - 1]
            np.testing.assert_allclose(logprobs, row[tokens], atol=1e-4)
            count = request.sampling.logprobs
            np.testing.assert_allclose(logprobs[1:], np.sort(row)[::-1][:count], atol=1e-4)
            assert tokens[0] == [*PROMPT, *request.found][position]


def test_followers_share_the_blocks_of_their_leader(run):
    """Those that are full; a prompt that is scored is computed whole, and once."""

    async def program(engine):
        for sampling in (Sampling(seed=1), OPTIONS["told"]):
            computed = engine.counts.prompt_tokens
            # A prompt of its own, of which nothing is in the cache.
            prompt = [sampling.seed + 60, *PROMPT]
            leader = engine.submit(prompt, LENGTH, sampling)
            others = [engine.submit(prompt, LENGTH, leader=leader) for _ in range(3)]
            answers = await asyncio.gather(*map(collect, [leader, *others]))
            assert answers == [answers[0]] * 4
            full = (len(prompt) - 1) // BLOCK * BLOCK
            assert [each.shared for each in [leader, *others]] == [0, full, full, full]
            rest = len(prompt) - full
            assert engine.counts.prompt_tokens - computed == len(prompt) + 3 * rest
        leader = engine.submit(PROMPT, LENGTH)
        follower = engine.submit(PROMPT, LENGTH, leader=leader)
        engine.cancel(leader)
        assert len(await collect(follower)) == LENGTH

    run(program, 1, chunk=64)


def test_steps_go_on_without_arguments_whatever_is_asked(run):
    """And what comes back of those in which nobody is told anything are tokens alone."""

    async def program(engine):
        issue, issued = engine.model.next_step, []
        engine.model.next_step = lambda: issued.append(issue()) or issued[-1]
        for sampling in (Sampling(), OPTIONS["penalties"], OPTIONS["biased"]):
            issued.clear()
            await collect(engine.submit(PROMPT, LENGTH, sampling))
            assert len(issued) >= LENGTH - 2
            kind = np.ndarray if sampling.logprobs is None else tuple
            assert {type(await step) for step in issued[-3:]} == {kind}

    run(program, 2, chunk=64)
