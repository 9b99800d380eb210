"""What the tests of the language model share: the real model, and its plain forward."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# As a script, chat.py has its own folder on the path; the tests do as Python does.
sys.path.insert(0, str(EXAMPLES))

from llm.config import find_model, open_checkpoint  # noqa: E402
from llm.plain import Plain  # noqa: E402
from llm.text import Text  # noqa: E402


@pytest.fixture(scope="session")
def checkpoint():
    return open_checkpoint(find_model(None))


@pytest.fixture(scope="session")
def text(checkpoint):
    return Text(checkpoint)


@pytest.fixture(scope="session")
def plain(checkpoint):
    return Plain(checkpoint)


@pytest.fixture(scope="session")
def judge(plain, text):
    """Says of an answer whether it is the plain forward's greedy one, and how sure that is.

    One forward over prompt and answer: a token is right if it is the likeliest one behind those
    before it. The lead is by how much the likeliest was ahead of the next one, where it was least
    so; where it is tiny, another order of adding up may choose another token. Answers that were
    seen before are not computed again.
    """

    @functools.cache
    def of(prompt, answer, limit):
        last = plain.logits([*prompt, *answer], last=len(answer) + 1)
        likeliest = last.argmax(axis=1).tolist()
        right = tuple(likeliest[: len(answer)]) == answer
        ended = len(answer) == limit or likeliest[-1] in text.ends
        decided = last[: len(answer) + (len(answer) < limit)]
        second, first = np.partition(decided, -2)[:, -2:].T
        return right and ended, float((first - second).min())

    return of
