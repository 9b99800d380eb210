"""What the workers compute is what one process computes: text, logits, perplexity."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import disco_client
from disco_server.cli.local import LocalCluster
from llm.engine import Engine, Settings
from llm.model import Model

LONG = "The lighthouse keeper wrote down the wind, the tide and the names of the ships. " * 120
PROMPTS = [
    "What is the capital of France?",
    "",
    "Quelle est la capitale de l'Italie ?",
    "Wie heißt die Hauptstadt von Deutschland?",
    "¿Cuál es la capital de España?",
    "日本の首都はどこですか",
    "Какой город является столицей России?",
    "Write a Python function that adds two numbers.",
    "def fibonacci(n):\n    if n < 2:",
    "SELECT name FROM ships WHERE",
    "What is 2 + 2?",
    "Name the planets of the solar system.",
    "Write a haiku about the sea.",
    "Translate 'good morning' into French.",
    "List three primary colors.",
    "Who wrote Romeo and Juliet?",
    "Finish the sentence: The early bird catches",
    "What do bees make?",
    "🐝🌻 what do these two have in common?",
    LONG + "\nWhat did the lighthouse keeper write down?",
]
TOKENS = 24
LEAST_LEAD = 1e-3
"""By how much the likeliest token must be ahead where the texts have to be equal."""

PAGE = (
    "A river is a natural stream of fresh water that flows on land or inside caves towards another "
    "body of water at a lower elevation, such as an ocean, a lake, or another river. A river may "
    "run dry before it reaches the end of its course if it runs out of water, or only flow during "
    "certain seasons. Rivers are regulated by the water cycle, the processes by which water moves "
    "around the Earth. Water first enters rivers through precipitation, whether from rainfall, the "
    "runoff of water down a slope, the melting of glaciers or snow, or seepage from aquifers "
    "beneath the surface of the Earth. Rivers flow in channeled watercourses and merge in "
    "confluences to form drainage basins, areas where surface water eventually flows to a common "
    "outlet. Rivers have a great effect on the landscape around them. They may regularly overflow "
    "their banks and flood the surrounding area, spreading nutrients to the soil."
)


def perplexity(logits, ids):
    logits = logits[:-1].astype(np.float64)
    highest = logits.max(axis=1)
    total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    return float(np.exp((total - logits[np.arange(len(logits)), ids[1:]]).mean()))


@pytest.fixture(scope="module")
def prompts(text):
    return [text.conversation([{"role": "user", "content": each}]) for each in PROMPTS]


@pytest.fixture(scope="module")
def expected(plain, prompts, text):
    """The plain forward's logits of a prompt and of the page."""
    return plain.logits(prompts[0]), plain.logits(text.encode(PAGE))


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(2, 3, listen="127.0.0.1:0") as cluster:
        yield cluster


def test_the_prompts_are_twenty_and_one_is_long(prompts):
    """With 2,000 tokens."""
    assert len(prompts) == 20
    assert max(map(len, prompts)) >= 2000


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("workers", "compute"),
    [(1, "numba"), (2, "numba"), (3, "numpy"), (4, "numba"), (5, "numpy")],
)
def test_any_number_of_workers_gives_the_plain_forward_s_answers(
    cluster, checkpoint, text, prompts, judge, expected, workers, compute
):
    """The same greedy texts, logits within 2e-4, and the perplexity in four digits."""
    if compute == "numba":
        pytest.importorskip("numba", reason="numba is not installed")
    logits, page = expected

    async def ask():
        opened = {"address": cluster.address, "num_workers": workers}
        settings = Settings(compute=compute)
        async with Engine(checkpoint, text.ends, settings, **opened) as engine:
            assert engine.computed_by.startswith(compute)
            requests = [engine.submit(ids, TOKENS) for ids in prompts]
            found = [tuple([token async for token in request]) for request in requests]
            ids = text.encode(PAGE)
            return found, await engine.logits(prompts[0]), await engine.logits(ids)

    found, our_logits, our_page = asyncio.run(ask())
    for answer, ids, prompt in zip(found, prompts, PROMPTS, strict=True):
        right, lead = judge(tuple(ids), answer, TOKENS)
        assert right, prompt[-80:]
        assert lead > LEAST_LEAD, prompt[-80:]
    # Of some 38 at most: the plain forward itself is 8e-5 from one in float64.
    assert np.abs(our_logits - logits).max() < 2e-4
    ids = text.encode(PAGE)
    assert f"{perplexity(our_page, ids):.4g}" == f"{perplexity(page, ids):.4g}"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
@pytest.mark.parametrize("workers", [2, 4, 5, 7])
def test_a_worker_reads_little_more_than_its_part_of_the_file(checkpoint, workers):
    """At most 1.15 of an equal share, although heads of keys and values lie on two workers."""
    with disco_client.ProcessSession(workers) as session:
        # The packages, and the file's header with its vocabulary, are read by each.
        session.load_weights(checkpoint.path, {"output_norm.weight": "R", "*": "skip"})
        Model(session, checkpoint, blocks=1, slots=1)
        before = [read_bytes(place.pid) for place in session.workers]
        session.load_weights(checkpoint.path, {"output_norm.weight": "R", "*": "skip"})
        between = [read_bytes(place.pid) for place in session.workers]
        Model(session, checkpoint, blocks=1, slots=1)
        after = [read_bytes(place.pid) for place in session.workers]
    share = checkpoint.path.stat().st_size / workers
    counts = zip(before, between, after, strict=True)
    most = max((last - middle) - (middle - first) for first, middle, last in counts)
    assert 0.9 * share <= most <= 1.15 * share


def read_bytes(pid):
    """How many bytes a process has read by system calls, whether from the disk or not."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])
