"""OpenAI's API of the language model's service, used by its own package and by curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import numpy as np
import openai
import pytest
from llm_serving import ALLOWED, Server
from safetensors.numpy import save_file
from tiny_llama import write_gguf

from llm.config import open_checkpoint
from llm.text import Text

ASK = [{"role": "user", "content": "Zwölf?"}]
CONTEXT = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model."""
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", context=CONTEXT)


@pytest.fixture(scope="module")
def address(shared_daemons):
    """A controller, with the slots of two services."""
    controller = shared_daemons.controller()
    shared_daemons.worker(controller.address, "--slots", "4", *ALLOWED)
    return controller.address


@pytest.fixture(scope="module")
def server(address, model, tmp_path_factory, eventually):
    """A service on two workers."""
    folder = tmp_path_factory.mktemp("server")
    options = "--workers", 2, "--model", model, "--cache-mib", 1, "--max-tokens", 40
    served = Server(folder, eventually, address, *options)
    yield served.await_ready()
    assert served.end() == 0


def use(server, program):
    """Runs a coroutine function with OpenAI's client, which does not try again."""

    async def run():
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            return await program(client)

    return asyncio.run(run())


async def collect(stream):
    """The text of a stream, why it ended, and its usage."""
    text, reason, usage = "", None, None
    async for chunk in stream:
        for choice in chunk.choices:
            said = choice.delta.content if hasattr(choice, "delta") else choice.text
            text, reason = text + (said or ""), choice.finish_reason or reason
        usage = chunk.usage or usage
    return text, reason, usage


def test_whole_and_streamed_answers_are_the_same(server, model):
    """For conversations and for texts, with the numbers of tokens, of which some were shared."""
    text = Text(open_checkpoint(model))

    async def program(client):
        for make, prompt, count in (
            (client.chat.completions.create, {"messages": ASK}, len(text.conversation(ASK))),
            (client.completions.create, {"prompt": "a b" * 20}, len(text.encode("a b" * 20))),
        ):
            wish = {"model": "tiny", "max_tokens": 30, "temperature": 0, **prompt}
            whole = await make(**wish)
            choice = whole.choices[0]
            said = choice.message.content if hasattr(choice, "message") else choice.text
            assert choice.finish_reason == "length"
            assert whole.usage.prompt_tokens == count
            assert whole.usage.completion_tokens == 30
            assert whole.usage.total_tokens == count + 30
            options = {"include_usage": True}
            stream = await make(**wish, stream=True, stream_options=options)
            streamed, reason, usage = await collect(stream)
            assert (streamed, reason) == (said, "length")
            assert usage.prompt_tokens == count
            # All of it but the last token and what fills no block of 16.
            assert usage.prompt_tokens_details.cached_tokens == (count - 1) // 16 * 16
            _, _, usage = await collect(await make(**wish, stream=True))
            assert usage is None

    use(server, program)


def test_tokens_and_parts_are_prompts_too(server, model):
    """A list of tokens is the text that has them, and parts of a content are one text."""
    text = Text(open_checkpoint(model))

    async def program(client):
        wish = {"model": "tiny", "max_tokens": 10, "temperature": 0}
        texts = [
            (await client.completions.create(prompt=prompt, **wish)).choices[0].text
            for prompt in ("Hallo", ["Hallo"], text.encode("Hallo"))
        ]
        assert texts == [texts[0]] * 3
        parts = [{"type": "text", "text": "Zw"}, {"type": "text", "text": "ölf?"}]
        answers = [
            await client.chat.completions.create(
                messages=[{"role": "user", "content": content}], **wish
            )
            for content in ("Zwölf?", parts)
        ]
        assert answers[0].choices[0].message.content == answers[1].choices[0].message.content

    use(server, program)


def test_a_stop_string_ends_an_answer_wherever_it_is_cut(server):
    """Also across tokens; what may be its beginning is not sent before that is decided."""

    async def program(client):
        wish = {"model": "tiny", "max_tokens": 30, "temperature": 0, "messages": ASK}
        make = client.chat.completions.create
        whole = (await make(**wish)).choices[0].message.content
        for start, length in ((5, 1), (8, 4), (12, 9)):
            stop = whole[start : start + length]
            wanted = whole[: whole.index(stop)]
            for stops in (stop, ["not there", stop]):
                answer = (await make(**wish, stop=stops)).choices[0]
                assert (answer.message.content, answer.finish_reason) == (wanted, "stop")
                text, reason, _ = await collect(await make(**wish, stop=stops, stream=True))
                assert (text, reason) == (wanted, "stop")

    use(server, program)


def test_letters_that_tokens_cut_come_whole(server, model):
    """The pieces of a stream together are the text of the tokens' bytes, and each is text."""
    text = Text(open_checkpoint(model))

    async def program(client):
        for seed in range(6):
            wish = {"model": "tiny", "max_tokens": 40, "seed": seed, "prompt": "世界"}
            stream = await client.completions.create(**wish, stream=True)
            pieces = [chunk.choices[0].text async for chunk in stream if chunk.choices]
            whole = (await client.completions.create(**wish)).choices[0].text
            assert "".join(pieces) == whole

    use(server, program)
    word = "世"
    stream = text.stream()
    assert [stream.feed(token) for token in text.encode(word)] == ["", "", word]


def test_a_seed_gives_the_same_text_again(server):
    """Whatever else is in the steps; other seeds, and none, give others."""

    async def program(client):
        async def ask(**more):
            wish = {"model": "tiny", "max_tokens": 30, "messages": ASK, **more}
            return (await client.chat.completions.create(**wish)).choices[0].message.content

        first = await ask(seed=7, temperature=1.5, top_p=0.9)
        asked = [ask(seed=seed, temperature=1.5, top_p=0.9) for seed in (7, 8, -3, 1 << 62)]
        again, *others = await asyncio.gather(*asked)
        assert again == first
        assert len({first, *others, await ask(), await ask()}) == 6

    use(server, program)


BAD = [
    (b"{", None, "not JSON"),
    (b"[]", None, "JSON object"),
    ({}, "messages", "expected messages"),
    ({"messages": []}, "messages", "one message or more"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages[0]", "role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0]",
        "type text",
    ),
    ({"messages": ASK, "n": 129}, "n", "from 1 to 128"),
    ({"messages": ASK, "n": 0}, "n", "from 1 to 128"),
    ({"messages": ASK, "best_of": 2}, "best_of", "not served"),
    ({"messages": ASK, "tools": [{}]}, "tools", "not served"),
    ({"messages": ASK, "logprobs": 3}, "logprobs", "true or false"),
    ({"messages": ASK, "top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
    ({"messages": ASK, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"messages": ASK, "top_k": -2}, "top_k", "from -1 to"),
    ({"messages": ASK, "min_p": 1.1}, "min_p", "from 0 to 1"),
    ({"messages": ASK, "presence_penalty": 2.1}, "presence_penalty", "from -2 to 2"),
    ({"messages": ASK, "frequency_penalty": "1"}, "frequency_penalty", "from -2 to 2"),
    ({"messages": ASK, "repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 100"),
    ({"messages": ASK, "ignore_eos": 1}, "ignore_eos", "true or false"),
    ({"messages": ASK, "min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most max_tokens, 8"),
    ({"messages": ASK, "stop_token_ids": [320]}, "stop_token_ids", "tokens from 0 to 319"),
    ({"messages": ASK, "stop_token_ids": "x"}, "stop_token_ids", "expected tokens"),
    ({"messages": ASK, "logit_bias": {"320": 1}}, "logit_bias", "tokens from 0 to 319"),
    ({"messages": ASK, "logit_bias": {"a": 1}}, "logit_bias", "tokens as keys"),
    ({"messages": ASK, "logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
    ({"messages": ASK, "logit_bias": [[1, 1]]}, "logit_bias", "expected an object"),
    ({"messages": ASK, "echo": True}, "echo", "not served"),
    ({"messages": ASK, "response_format": {"type": "json_object"}}, "response_format", "not"),
    ({"messages": ASK, "temperature": 2.1}, "temperature", "from 0 to 2"),
    ({"messages": ASK, "temperature": True}, "temperature", "from 0 to 2"),
    ({"messages": ASK, "top_p": "1"}, "top_p", "from 0 to 1"),
    ({"messages": ASK, "seed": 1.5}, "seed", "integer"),
    ({"messages": ASK, "stop": ["a"] * 5}, "stop", "at most 4"),
    ({"messages": ASK, "stop": [1]}, "stop", "string"),
    ({"messages": ASK, "max_tokens": 0}, "max_tokens", "from 1"),
    ({"messages": ASK, "max_completion_tokens": "9"}, "max_completion_tokens", "from 1"),
    ({"messages": ASK, "stream": 1}, "stream", "true or false"),
    ({"messages": ASK, "stream_options": {}}, "stream_options", "stream"),
    ({"messages": ASK, "model": 4}, "model", "string"),
]


@pytest.fixture
def curl():
    """Asks with curl; returns the status, the headers and the body."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")

    def ask(url, body=None, *options):
        data = [] if body is None else ["--data-binary", "@-"]
        command = ["curl", "-sSi", "--max-time", "30", "-H", "Expect:", *options, *data, url]
        given = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        said = subprocess.run(command, input=given, capture_output=True, check=True).stdout
        head, _, rest = said.decode().partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, rest

    return ask


def test_what_is_wrong_is_said_in_openais_form(server, curl):
    """Bad JSON, bad fields and fields that are not served are 400 and name the field."""
    for body, param, words in BAD:
        status, _, rest = curl(f"{server.url}/v1/chat/completions", body)
        error = json.loads(rest)["error"]
        assert (status, error["param"]) == (400, param), (body, error)
        assert words in error["message"], (body, error)
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}
    for prompt in ("", [], ["a", ""], [1, "a"], ["a", 1], [320], [-1], [True], {"a": 1}, [[1], []]):
        status, _, rest = curl(f"{server.url}/v1/completions", {"prompt": prompt})
        assert (status, json.loads(rest)["error"]["param"]) == (400, "prompt"), prompt
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "n": 1, "tools": [], "x": 1}
    silent = [*ASK, {"role": "assistant", "content": None}, *ASK]
    body = {"messages": silent, "max_tokens": 2, "logprobs": False, "stop": None, **harmless}
    assert curl(f"{server.url}/v1/chat/completions", body)[0] == 200


def test_paths_models_methods_and_sizes(server, curl):
    """404, 405 and 413 have the same form; the model is listed."""
    url = server.url
    assert curl(f"{url}/healthz")[::2] == (200, "ok\n")
    assert curl(f"{url}/readyz")[::2] == (200, "ready\n")
    listed = json.loads(curl(f"{url}/v1/models")[2])["data"]
    assert [each["id"] for each in listed] == ["tiny"]
    assert json.loads(curl(f"{url}/v1/models/tiny")[2]) == listed[0]
    large = json.dumps({"prompt": "a" * (5 << 20)}).encode()
    for path, body, status, code in (
        ("/v1/models/huge", None, 404, "model_not_found"),
        ("/v1/chat/completions", {"messages": ASK, "model": "huge"}, 404, "model_not_found"),
        ("/v1/nothing", None, 404, None),
        ("/v1/completions", None, 405, None),
        ("/v1/completions", large, 413, None),
    ):
        got, headers, rest = curl(url + path, body)
        assert (got, json.loads(rest)["error"]["code"]) == (status, code)
        assert headers.get("allow") == ("post" if status == 405 else None)


def test_curl_reads_a_stream(server, curl):
    """Events of one line each, of which the last one says that it is done."""
    body = {"messages": ASK, "max_tokens": 3, "temperature": 0, "stream": True}
    status, headers, rest = curl(f"{server.url}/v1/chat/completions", body, "-N")
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    *events, done, nothing = rest.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


def test_what_does_not_fit_is_said(server):
    """A prompt and an answer longer than the context are refused; alone they are cut to it."""

    async def program(client):
        for prompt, most in (("1" * 500, 20), ("1" * 600, None)):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.completions.create(model="tiny", prompt=prompt, max_tokens=most)
            assert raised.value.code == "context_length_exceeded"
        answer = await client.completions.create(model="tiny", prompt="1" * (CONTEXT - 5))
        assert answer.usage.total_tokens <= CONTEXT

    use(server, program)


def test_a_client_that_leaves_frees_its_blocks(server, eventually):
    """Streams and waits for whole answers that are given up end their sequences."""

    async def program(client):
        wish = {"model": "tiny", "max_tokens": 490, "prompt": "x", "temperature": 0}
        stream = await client.completions.create(**wish, stream=True)
        async for _ in stream:
            break
        whole = asyncio.create_task(client.completions.create(**wish))
        await asyncio.to_thread(eventually, lambda: server.metric("running") == 2)
        await stream.close()
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)

    before = server.metric('requests_total{outcome="cancelled"}')
    use(server, program)
    eventually(lambda: server.metric("running") == 0)
    assert server.metric("cache_blocks_used") == 0
    assert server.metric("cache_blocks") > 0
    assert server.metric('compute{by="numpy, on float32"}') == 1
    assert server.metric('requests_total{outcome="cancelled"}') == before + 2


def test_pieces_of_a_text_are_served_as_text(address, tmp_path, eventually):
    """Of a model in the manner of SentencePiece, whose texts begin with a mark and a space."""
    model = write_gguf(tmp_path / "pieces.gguf", pieces=True, vocabulary=400)
    text = Text(open_checkpoint(model))
    server = Server(tmp_path, eventually, address, "--workers", 1, "--model", model).await_ready()

    async def program(client):
        for seed in range(4):
            wish = {"model": "pieces", "max_tokens": 30, "seed": seed}
            completed = await client.completions.create(**wish, prompt="The capital of France")
            assert completed.usage.prompt_tokens == 5  # four pieces, and what begins a text
            stream = await client.completions.create(
                **wish, prompt="The capital of France", stream=True
            )
            assert (await collect(stream))[0] == completed.choices[0].text
            chat = await client.chat.completions.create(**wish, messages=ASK)
            assert chat.usage.prompt_tokens == len(text.conversation(ASK))
            said = completed.choices[0].text + chat.choices[0].message.content
            assert said
            assert "▁" not in said
            assert "<0x" not in said

    use(server, program)
    assert server.end() == 0


def test_a_model_that_the_workers_refuse_ends_the_service(address, tmp_path, eventually):
    """Where it is read first, with a sentence; another try would find the same."""
    figures = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 320,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(figures))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    other = write_gguf(tmp_path / "other.gguf", layers=1)
    Text(open_checkpoint(other))._tokenizer.save(str(tmp_path / "tokenizer.json"))
    names = open_checkpoint(tmp_path).names.values()
    save_file(dict.fromkeys(names, np.ones((8, 9), np.float32)), tmp_path / "model.safetensors")
    options = "--workers", 1, "--model", tmp_path
    server = Server(tmp_path / "server", eventually, address, *options)
    assert server.process.wait(60) == 2
    assert "serve.py: " in server.stderr
    assert "expected shape [8, 8], the file has [8, 9]" in server.stderr
    assert "Traceback" not in server.stderr


def test_a_full_queue_is_429(address, model, tmp_path, eventually):
    """With one place in the queue and one slot a third request is told to come again."""
    options = "--workers", 1, "--model", model, "--slots", 1, "--queue", 1
    server = Server(tmp_path, eventually, address, *options).await_ready()

    async def program(client):
        wish = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True}
        streams = []

        async def fill():
            # Where this process stood still, the first may be done when the next is asked for.
            while len(streams) < 50:
                streams.append(await client.completions.create(**wish))

        with pytest.raises(openai.RateLimitError) as raised:
            await fill()
        assert raised.value.code == "queue_full"
        assert raised.value.response.headers["Retry-After"] == "1"
        assert len(streams) >= 2
        for stream in streams[:-1]:
            await stream.close()
        await anext(aiter(streams[-1]))
        await streams[-1].close()

    use(server, program)
    assert server.end() == 0
