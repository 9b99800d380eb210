"""The language model's service while all workers are replaced, one after another."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys

import openai
import pytest
from llm_serving import ALLOWED, Server
from tiny_llama import write_gguf

from deploying.charts import CHART, containers, render, values_of

NODES = tuple(f"disco-worker-{at}" for at in (2, 1, 0))
"""In the order in which they are replaced, which is that in which the service's workers fill them:
so each of them is replaced while they run there. They fit on one."""

ASKED = {"model": "tiny", "prompt": "x", "temperature": 0}
CLIENTS = 4


def pre_stop(url, pid):
    """The chart's hook of a worker's pod, at a daemon of this machine."""
    (container,) = (c for c in containers(render(values_of("serve"))) if c["name"] == "worker")
    _, option, program, seconds, *_ = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == (CHART / "files" / "drain.py").read_text()
    return [sys.executable, option, program, seconds, url, str(pid)]


class Rolling:
    """Worker daemons that are replaced as a StatefulSet does it, the last one first."""

    def __init__(self, daemons, address):
        self._daemons, self._address = daemons, address
        self.running = {name: self._start(name) for name in NODES}

    def _start(self, name):
        options = ("--slots", 2, "--name", name, "--http", "127.0.0.1:0")
        return self._daemons.worker(self._address, *options, *ALLOWED)

    def update(self):
        """Each is drained, told to end, and started anew before the next one's turn."""
        for name in NODES:
            old = self.running[name]
            port = re.search(r"metrics at http://127.0.0.1:(\d+)", old.stderr)[1]
            hook = pre_stop(f"http://localhost:{port}", old.process.pid)
            subprocess.run(hook, check=True, timeout=60)
            assert not old.ranks()  # within its time, so that none is ended by force
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            self.running[name] = self._start(name)


async def ask_until(done, client, answers):
    """Asks one thing after another, long answers as streams; none is tried again."""
    while not done.is_set():
        short = await client.completions.create(**ASKED, max_tokens=5)
        answers.append((5, short.choices[0].text))
        chunks = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(**ASKED, max_tokens=60, stream=True)
        ]
        answers.append((60, "".join(chunks)))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_request_fails_while_all_workers_are_replaced(daemons, tmp_path, eventually):
    """Every answer is whole and right, and no worker is lost on the way."""
    model = write_gguf(tmp_path / "tiny.gguf", layers=4)
    controller = daemons.controller()
    nodes = Rolling(daemons, controller.address)
    first = {name: daemon.process.pid for name, daemon in nodes.running.items()}
    options = ("--workers", 2, "--model", model)
    server = Server(tmp_path / "server", eventually, controller.address, *options).await_ready()
    answers: list[tuple[int, str]] = []

    async def program():
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            expected = {
                tokens: (await client.completions.create(**ASKED, max_tokens=tokens))
                .choices[0]
                .text
                for tokens in (5, 60)
            }
            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CLIENTS):
                    tasks.create_task(ask_until(done, client, answers))
                try:
                    await asyncio.to_thread(nodes.update)
                finally:
                    done.set()
            assert len(answers) > CLIENTS
            assert [each for each in answers if expected[each[0]] != each[1]] == []

    try:
        asyncio.run(program())
        assert not set(first.values()) & {d.process.pid for d in nodes.running.values()}
        assert server.metric("recoveries_total") == 0
        assert server.stderr.count("another session") >= len(NODES)
        assert server.end() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
