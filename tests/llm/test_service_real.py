"""Streams of the real model, of which every loss of workers is at most a pause."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time

import openai
import pytest
from llm_serving import ALLOWED, Server

from llm.config import ModelError, find_model, open_checkpoint
from llm.plain import Plain
from llm.text import Text

TOKENS = 32
THINGS = (
    "tensor river volcano bridge library clock garden bicycle "
    "island telescope lighthouse desert glacier orchestra harbour kettle"
)


def prompts():
    """Questions whose answers, computed in any order of sums, are the same."""
    return [f"What is a {thing}?" for thing in THINGS.split()]


class Streams:
    """Answers of which the pieces are counted as they come.

    Attributes:
        pieces: Of each prompt.
        reasons: Why each ended.
    """

    def __init__(self, server, model):
        self.pieces = {prompt: [] for prompt in prompts()}
        self.reasons = {}
        self.times = []
        self._server, self._model = server, model

    async def run(self, meanwhile):
        """Streams all of them at once."""
        url = f"{self._server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            await asyncio.gather(meanwhile(self), *(self._one(client, each) for each in prompts()))
        return {prompt: "".join(pieces) for prompt, pieces in self.pieces.items()}

    async def _one(self, client, prompt):
        stream = await client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
        )
        async for chunk in stream:
            if said := chunk.choices[0].delta.content:
                self.pieces[prompt].append(said)
                self.times.append(time.monotonic())
            self.reasons[prompt] = chunk.choices[0].finish_reason or self.reasons.get(prompt)

    async def reach(self, count):
        """Waits until every stream has so many pieces."""
        async with asyncio.timeout(100):
            while min(map(len, self.pieces.values())) < count:  # noqa: ASYNC110  (one by one)
                await asyncio.sleep(0.02)


async def nothing(_):
    """Disturbs nothing."""


@pytest.fixture(scope="module")
def checkpoint():
    """The real model."""
    try:
        return open_checkpoint(find_model(None))
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_16_streams_outlive_a_worker_and_the_controller(
    daemons, checkpoint, tmp_path, eventually, record_property
):
    """Each text is that of an undisturbed run, and that of the model in one process."""
    controller = daemons.controller()
    nodes = [
        daemons.worker(controller.address, "--slots", "2", "--name", name, *ALLOWED)
        for name in ("one", "two")
    ]
    options = "--workers", 4, "--cache-mib", 64
    server = Server(tmp_path / "server", eventually, controller.address, *options).await_ready()
    name = checkpoint.path.stem
    wanted = asyncio.run(Streams(server, name).run(nothing))

    async def disturb(streams):
        await streams.reach(4)
        os.kill(nodes[0].ranks()[0].pid, signal.SIGKILL)
        await streams.reach(12)
        assert server.get("/healthz") == "ok\n"
        assert not any(streams.reasons.values())
        controller.send(signal.SIGKILL)
        controller.wait()
        again = "--listen", controller.address
        await asyncio.to_thread(daemons.controller, *again)

    streams = Streams(server, name)
    assert asyncio.run(streams.run(disturb)) == wanted
    assert set(streams.reasons.values()) == {"length"}
    assert server.metric("recoveries_total") >= 1
    assert server.metric("cache_blocks_used") == 0
    ordered = sorted(streams.times)
    pauses = sorted(b - a for a, b in itertools.pairwise(ordered))
    record_property("longest_pauses_s", pauses[-2:])
    print(f"the longest pauses: {pauses[-3:]}, recoveries {server.metric('recoveries_total')}")
    assert server.end() == 0
    text, plain = Text(checkpoint), Plain(checkpoint)
    for prompt in prompts()[:4]:
        asked = text.conversation([{"role": "user", "content": prompt}])
        found, margin = plain.continue_greedily(asked, TOKENS, text.ends)
        assert margin > 1e-3
        assert text.decode(found) == wanted[prompt]
