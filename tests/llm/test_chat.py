"""The chat as a command: one question, lines of a program, a conversation on a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from disco_server.cli.local import LocalCluster

ROOT = Path(__file__).parents[2]
LOCAL = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "2"]
CHAT = [sys.executable, "examples/chat.py"]
ENV = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
PARIS = "The capital of France is Paris."


def chat(*arguments, given=b"", address=None):
    env = {**ENV, **({"DISCO_ADDRESS": address} if address else {})}
    return subprocess.run(
        [*CHAT, *arguments],
        cwd=ROOT,
        env=env,
        input=given,
        capture_output=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def address():
    with LocalCluster(2, 2, listen="127.0.0.1:0") as cluster:
        yield cluster.address


@pytest.mark.timeout(120)
def test_a_question_is_answered_timed_and_checked():
    """As `make demo` does it: a cluster, an answer, its times, and the plain forward's verdict."""
    command = [*LOCAL, "--", *CHAT, "--prompt", "What is the capital of France?"]
    run = subprocess.run(
        [*command, "--workers", "4", "--greedy", "--check"],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert PARIS in run.stdout
    assert "SmolLM2-135M-Instruct" in run.stderr
    assert "4 workers load a share each" in run.stderr
    assert re.search(r"\ncomputing with numba [\d.]+, on blocks of Q4_1, Q8_0\n", run.stderr)
    cores = len(os.sched_getaffinity(0))
    assert (f"on 4 workers, which share {cores} core" in run.stdout) == (cores < 4)
    assert re.search(r"6 more tokens +[\d.]+ s +[\d.]+ tokens/s", run.stdout)
    shares = re.findall(r"(compute|collectives|control) +[\d.]+ ms +(\d+) %", run.stdout)
    assert [name for name, _ in shares] == ["compute", "collectives", "control"]
    assert 98 <= sum(int(share) for _, share in shares) <= 102
    assert "check passed: the same tokens as a plain forward" in run.stdout


@pytest.mark.timeout(120)
def test_lines_of_a_program_are_conversations_of_their_own(address, text):
    """Each gets a line of JSON, in order; an empty one too, and what is wrong is said there."""
    lines = ["What is the capital of France?", "", "x " * 9000, "Say hello in Spanish. 😊"]
    given = "".join(f"{line}\n" for line in lines).encode() + b"\xff\n"
    options = "--workers", "2", "--greedy", "--max-tokens", "12", "--json"
    run = chat(*options, given=given, address=address)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 2, run.stderr
    assert [answer["prompt"] for answer in answers] == [*lines, "\ufffd"]
    assert answers[0] == {
        "prompt": lines[0],
        "text": PARIS,
        "tokens": text.encode(PARIS),
    }
    assert all(len(answers[n]["tokens"]) == 12 for n in (1, 3))
    assert [set(answer) - {"prompt", "text", "tokens"} for answer in answers] == [
        set(),
        set(),
        {"error"},
        set(),
        {"error"},
    ]
    assert "do not fit into 8192" in answers[2]["error"]


@pytest.mark.timeout(120)
def test_the_same_seed_draws_the_same_text(address):
    """On another number of workers too; another seed draws another one."""
    options = "--max-tokens", "16", "--temperature", "1.2", "--top-p", "0.95", "--json"
    given = b"Tell me a story.\n"
    said = [
        json.loads(chat(*options, "--workers", workers, "--seed", seed, given=given,
                        address=address).stdout)["text"]
        for workers, seed in (("1", "7"), ("3", "7"), ("2", "8"))
    ]  # fmt: skip
    assert said[0] == said[1] != said[2]


@pytest.mark.timeout(120)
def test_interrupting_stops_an_answer_and_not_the_chat(address):
    """The conversation goes on with what was said, and the end of the input ends it."""
    command = [*CHAT, "--workers", "2", "--greedy", "--max-tokens", "2000"]
    env = {**ENV, "DISCO_ADDRESS": address}
    talk = pexpect.spawn(
        command[0], command[1:], cwd=str(ROOT), env=env, encoding="utf-8", timeout=40
    )
    try:
        talk.expect("Ctrl-C stops an answer.*> ")
        talk.sendline("Write a very long story about a dragon named Smaug.")
        talk.expect("dragon.*dragon.*dragon")
        talk.sendintr()
        talk.expect("\n> ")
        talk.sendintr()
        talk.expect("Ctrl-D ends the chat.*> ")
        talk.sendline("What is the capital of France?")
        talk.expect("Paris.*> ")
        talk.sendeof()
        talk.expect(pexpect.EOF)
        talk.close()
        assert talk.exitstatus == 0
    finally:
        talk.close(force=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--workers", "10"), "The model has 9 query heads, and each worker needs one or more."),
        (("--model", "/nowhere"), "There is no model at /nowhere."),
        (("--model", __file__), "cannot be read as GGUF"),
        (("--check",), "add --prompt, --greedy"),
    ],
)
def test_what_is_refused_is_one_sentence(options, told):
    """Before it looks for a cluster, with exit code 2."""
    run = chat(*options, "--address", "127.0.0.1:1")
    assert run.returncode == 2
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("chat: ")
    assert told in line


def test_workers_that_permit_nothing_are_told_of_with_what_to_permit(daemons):
    """The hint names the settings that this command needs."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "2")
    run = chat("--workers", "2", "--prompt", "Hi", address=controller.address)
    assert run.returncode == 1
    said = run.stderr.decode()
    assert "--allow-load uploads, and --allow-read for the model." in said
    assert "embedding" not in said
