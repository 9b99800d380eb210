"""The language model's service by programs of others, each as it is released.

`make clients` installs them in an environment of their own. The real model runs on two workers of a
cluster; nothing is downloaded while they run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import openai
import pytest
from llm_serving import ALLOWED, Server

from llm.config import find_model, open_checkpoint
from llm.plain import Plain
from llm.text import Text

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BIN = ROOT / ".venv-clients" / "bin"
KEY = "a-key-of-the-tests"
PARIS = "The capital of France is Paris."
WORDS = ["The", " capital", " of", " France", " is", " Paris", ".", "<|im_end|>"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not BIN.exists(), reason="`make clients` installs them"),
]


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(find_model(None))


@pytest.fixture(scope="module")
def text(checkpoint):
    return Text(checkpoint)


@pytest.fixture(scope="module")
def server(shared_daemons, tmp_path_factory, eventually):
    """A service with a key, on two nodes; the key is in its environment."""
    controller = shared_daemons.controller()
    for name in ("one", "two"):
        shared_daemons.worker(controller.address, "--slots", "1", "--name", name, *ALLOWED)
    folder = tmp_path_factory.mktemp("server")
    environ = {"DISCO_SERVE_API_KEY": KEY}
    served = Server(folder, eventually, controller.address, "--workers", 2, environ=environ)
    yield served.await_ready()
    assert served.end() == 0
    assert "Traceback" not in served.stderr


@pytest.fixture(scope="module")
def tokenizer(text, tmp_path_factory):
    """The model's tokenizer as a folder that transformers reads."""
    folder = tmp_path_factory.mktemp("tokenizer")
    text._tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def run(server, checkpoint, tmp_path):
    """Runs a command of the clients' environment; returns what it printed."""

    def run_it(*command):
        environ = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": KEY,
            "MODEL": checkpoint.path.stem,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGSMITH_TRACING": "false",
        }
        program, *arguments = map(str, command)
        ended = subprocess.run(  # noqa: PLW1510  (looked at)
            [BIN / program, *arguments],
            cwd=HERE,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    return run_it


def test_openai_s_package(run, checkpoint):
    """Choices with log probabilities, streams, echoes, embeddings, models, and a wrong key."""
    said = json.loads(run("python", HERE / "programs" / "use_openai.py"))
    assert said["models"] == [checkpoint.path.stem]
    assert said["texts"] == [PARIS, PARIS]
    assert (said["streamed"], said["tokens"]) == (PARIS, WORDS)
    assert said["echoed"] == ["The capital of France is Paris", "The capital of Italy is Rome"]
    assert said["scored"] == [6, 6]
    assert said["near"] > 2 * said["far"]
    assert said["refused"] == "invalid_api_key"


def test_langchain(run):
    """Chains in batches and streams, log probabilities, texts with choices, embeddings."""
    said = json.loads(run("python", HERE / "programs" / "use_langchain.py"))
    assert (said["answers"][0], said["streamed"]) == (PARIS, PARIS)
    assert said["tokens"] == WORDS
    assert said["usage"] == 44
    assert said["pieces"] > 7
    assert [text.split()[0] for text in said["texts"]] == ["Paris.", "Rome."]
    assert len({*said["choices"]}) == 3
    assert said["near"] > 0.7


def test_litellm(run):
    """By its names for OpenAI's API and for vLLM's: answers, streams, texts, embeddings."""
    said = json.loads(run("python", HERE / "programs" / "use_litellm.py"))
    assert said["texts"] == [PARIS, PARIS]
    assert [said["hosted"], said["streamed"]] == [PARIS, PARIS]
    assert said["tokens"] == WORDS
    assert (said["text"].split(), said["scored"]) == (["Paris."], 4)
    assert said["near"] > 0.7


def lm_eval(run, server, checkpoint, folder, kind, path, tasks, *more):
    """Runs tasks of lm-eval; returns their results and samples."""
    where = f"model={checkpoint.path.stem},base_url={server.url}{path},num_concurrent=2"
    said = "--include_path", HERE / "tasks", "--output_path", folder, "--log_samples"
    model, *options = more or ("",)
    arguments = f"{where}{model}"
    run("lm_eval", "--model", kind, "--model_args", arguments, "--tasks", tasks, *said, *options)
    (results,) = folder.glob("*/results_*.json")
    samples = {
        path.name.removeprefix("samples_").rpartition("_")[0]: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in folder.glob("*/samples_*.jsonl")
    }
    return json.loads(results.read_text())["results"], samples


def test_lm_eval_of_texts(run, server, checkpoint, text, tokenizer, tmp_path):
    """``loglikelihood`` is what one process computes, and ``generate_until`` ends where it says."""
    results, samples = lm_eval(
        run,
        server,
        checkpoint,
        tmp_path / "out",
        "local-completions",
        "/v1/completions",
        "disco_choices,disco_capitals",
        f",tokenizer={tokenizer}",
        "--batch_size",
        "2",
    )
    assert results["disco_choices"]["acc,none"] == 1
    assert results["disco_capitals"]["exact_match,none"] == 1
    plain, count = Plain(checkpoint), 0
    for sample in samples["disco_choices"]:
        pairs = zip(sample["arguments"].values(), sample["filtered_resps"], strict=True)
        for arguments, (found, greedy) in pairs:
            prompt = text.encode(arguments["arg_0"])
            whole = text.encode(arguments["arg_0"] + arguments["arg_1"])
            rows = plain.logits(whole)[len(prompt) - 1 : -1].astype(np.float64)
            answer = whole[len(prompt) :]
            total = np.log(np.exp(rows).sum(axis=1))
            wanted = (rows[np.arange(len(answer)), answer] - total).sum()
            assert float(found) == pytest.approx(wanted, abs=1e-3)
            assert (greedy == "True") == (rows.argmax(axis=1).tolist() == answer)
            count += 1
    assert count == 9


def test_lm_eval_of_conversations(run, server, checkpoint, tmp_path):
    """``generate_until`` by the form of conversations; its other kind lm-eval refuses there."""
    _, samples = lm_eval(
        run,
        server,
        checkpoint,
        tmp_path / "out",
        "local-chat-completions",
        "/v1/chat/completions",
        "disco_capitals",
        "",
        "--apply_chat_template",
    )
    answers = [sample["resps"][0][0] for sample in samples["disco_capitals"]]
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        asked = [
            client.chat.completions.create(
                model=checkpoint.path.stem,
                messages=[{"role": "user", "content": f"The capital of {country} is"}],
                stop=["\n", "."],
                max_tokens=8,
                temperature=0,
            )
            for country in ("France", "Italy", "Japan")
        ]
    assert answers == [each.choices[0].message.content for each in asked]
    assert all(answers)


@pytest.mark.parametrize("profile", ["kind=synchronous", "kind=concurrent,streams=4"])
def test_guidellm(run, server, tokenizer, tmp_path, profile):
    """With its defaults for all it does not ask for; each answer has the length it wants."""
    run(
        "guidellm",
        "run",
        *("--backend", f"kind=openai_http,target={server.url},api_key={KEY}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=12"),
        *("--profile", profile, "--constraint", "kind=max_requests,count=8"),
        *("--output", f"kind=json,path={tmp_path / 'out.json'}", "--disable-console"),
    )
    (found,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert found["metrics"]["request_totals"]["successful"] == 8
    assert found["metrics"]["request_totals"]["errored"] == 0
    counts = found["metrics"]["output_token_count"]["successful"]
    assert (counts["min"], counts["max"]) == (12, 12)
