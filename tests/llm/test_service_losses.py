"""The language model's service while it ends, its node is drained, and its workers are lost."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request

import openai
import pytest
from llm_serving import ALLOWED, Server
from tiny_llama import write_gguf

import disco_client

LONG = {"model": "tiny", "prompt": "x", "max_tokens": 200, "temperature": 0}
SHORT = {**LONG, "max_tokens": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model."""
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=4)


@pytest.fixture
def serve(model, tmp_path, eventually):
    """Starts services on two workers; they end with the test."""
    started = []

    def start(address, *options):
        folder = tmp_path / f"server-{len(started)}"
        server = Server(folder, eventually, address, "--workers", 2, "--model", model, *options)
        started.append(server)
        return server.await_ready()

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def use(server, program):
    """Runs a coroutine function with OpenAI's client, which does not try again."""

    async def run():
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            return await program(client)

    return asyncio.run(run())


async def begin(client, **more):
    """A stream whose answer has begun."""
    stream = await client.completions.create(**LONG, stream=True, **more)
    chunks = aiter(stream)
    return [(await anext(chunks)).choices[0].text], chunks


async def finish(begun):
    """The text of such a stream, and why it ended."""
    texts, chunks = begun
    reason = None
    async for chunk in chunks:
        texts.append(chunk.choices[0].text)
        reason = chunk.choices[0].finish_reason
    return "".join(texts), reason


def test_the_signal_to_end_lets_answers_end_and_leaves_no_session(daemons, serve, eventually):
    """New requests get 503 meanwhile; its slots are free at once, and it ends with 0."""
    controller = daemons.controller(DISCO_SESSION_LEASE_S="600")
    daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    server = serve(controller.address)

    async def program(client):
        whole = (await client.completions.create(**LONG)).choices[0].text
        begun = await begin(client)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(eventually, lambda: "is ending" in server.get("/readyz"))
        with pytest.raises(openai.InternalServerError, match="is ending") as raised:
            await client.completions.create(**SHORT)
        assert raised.value.status_code == 503
        assert await finish(begun) == (whole, "length")

    use(server, program)
    assert server.process.wait(20) == 0
    assert server.stdout == f"serving tiny at {server.url}\n"
    with disco_client.connect(controller.address, num_workers=2, timeout=10):
        pass


def test_answers_that_take_too_long_end_with_an_error(daemons, serve):
    """After --drain-s; and a second signal ends the service at once."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "4", *ALLOWED)

    async def program(client):
        begun = [await begin(client) for _ in range(8)]
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="closed"):
            await asyncio.gather(*map(finish, begun))

    server = serve(controller.address, "--drain-s", 0)
    use(server, program)
    assert server.process.wait(20) == 0

    async def hurry(client):
        begun = await begin(client)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.process.wait, 20) == 1
        await begun[1].aclose()

    server = serve(controller.address)
    use(server, hurry)


def test_a_draining_node_is_left_without_a_break(daemons, serve, eventually):
    """New requests go to a session elsewhere, and what runs ends where it is."""
    controller = daemons.controller()
    old = daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    server = serve(controller.address)
    new = daemons.worker(controller.address, "--slots", "2", "--name", "new", *ALLOWED)

    async def program(client):
        whole = (await client.completions.create(**LONG)).choices[0].text
        short = (await client.completions.create(**SHORT)).choices[0].text
        assert not new.ranks()
        begun = [await begin(client) for _ in range(4)]
        old.send(signal.SIGUSR1)
        await asyncio.to_thread(eventually, lambda: "another session" in server.stderr)
        for _ in range(20):
            assert (await client.completions.create(**SHORT)).choices[0].text == short
        assert await asyncio.gather(*map(finish, begun)) == [(whole, "length")] * 4

    use(server, program)
    eventually(lambda: len(new.ranks()) == 2 and not old.ranks(), what="the other node alone")
    assert server.metric("recoveries_total") == 0
    assert server.end() == 0


def test_without_other_workers_an_error_names_the_rank_and_later_there_are_some(
    daemons, serve, eventually
):
    """The service answers that it lives meanwhile, and says with 503 why it does not serve."""
    controller = daemons.controller("--node-return", "0.2")
    node = daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    server = serve(controller.address, "--timeout", 3)

    async def program(client):
        begun = [await begin(client) for _ in range(8)]
        node.send(signal.SIGKILL)
        ended = asyncio.gather(*map(finish, begun), return_exceptions=True)
        while not ended.done():
            assert await asyncio.to_thread(server.get, "/healthz") == "ok\n"
        for error in await ended:
            assert isinstance(error, openai.APIError)
            assert "worker" in str(error) or "rank" in str(error), error
        await asyncio.to_thread(eventually, lambda: server.get("/readyz") != "ready\n")
        with pytest.raises(openai.InternalServerError) as raised:
            await client.completions.create(**SHORT)
        assert raised.value.status_code == 503
        assert raised.value.code == "not_ready"
        daemons.worker(controller.address, "--slots", "2", "--name", "new", *ALLOWED)
        await asyncio.to_thread(eventually, lambda: server.get("/readyz") == "ready\n", 40)
        return (await client.completions.create(**SHORT)).choices[0].finish_reason

    assert use(server, program) == "length"
    assert server.end() == 0


def test_a_service_without_workers_says_so_and_serves_when_there_are(
    daemons, model, tmp_path, eventually
):
    """From its start on: it lives, is not ready, and a request gets the reason."""
    controller = daemons.controller()
    options = "--workers", 2, "--model", model, "--timeout", 1
    server = Server(tmp_path / "early", eventually, controller.address, *options)
    assert server.get("/healthz") == "ok\n"
    data = json.dumps(SHORT).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", data)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=20)
    with raised.value as error:
        assert (error.code, error.headers["Retry-After"]) == (503, "1")
    eventually(lambda: "slots" in server.get("/readyz"), what="the reason")
    assert server.stdout == ""
    daemons.worker(controller.address, "--slots", "2", *ALLOWED)
    server.await_ready()
    with urllib.request.urlopen(request, timeout=20) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 5
    assert server.end() == 0
