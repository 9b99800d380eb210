"""How tokens are chosen, against the same in a few lines that go through all tokens one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llm.choosing import History, Sampling, choose, note

TOKENS = 12
NEAR = 1e-9
"""Two orders of adding up may differ by less; where that would decide, nothing is compared."""


def processed(logits, sampling, prompt, answer):
    """The logits after minimum, bias and penalties."""
    found = []
    for token, logit in enumerate(logits):
        value = float(logit)
        if token in sampling.ends and len(answer) < sampling.min_tokens:
            value = -math.inf
        value += dict(sampling.bias).get(token, 0)
        if token in prompt or token in answer:
            value = value / sampling.repetition if value > 0 else value * sampling.repetition
        value -= sampling.frequency * answer.count(token)
        value -= sampling.presence * (token in answer)
        found.append(value)
    return found


def probabilities(values, sampling):
    """The tokens that may be drawn, the likeliest first, with their probabilities."""
    highest = max(values)
    shares = {t: math.exp((v - highest) / sampling.temperature) for t, v in enumerate(values)}
    shares = {t: share for t, share in shares.items() if share >= sampling.min_p}
    if sampling.top_k:
        least = sorted((values[t] for t in shares), reverse=True)[: sampling.top_k][-1]
        shares = {t: share for t, share in shares.items() if values[t] >= least}
    ordered = sorted(shares, key=lambda t: (-values[t], t))
    total, reach, kept = math.fsum(shares.values()), 0.0, []
    for token in ordered:
        assume(abs(reach - sampling.top_p * total) > NEAR or not kept)
        if kept and reach >= sampling.top_p * total:
            break
        kept.append(token)
        reach += shares[token]
    return [(token, shares[token] / reach) for token in kept]


numbers = st.integers(-40, 40).map(lambda number: number / 8)
tokens = st.integers(0, TOKENS - 1)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.9]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    seed=st.integers(0, 2**63 - 1),
    top_k=st.integers(0, TOKENS + 1),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    presence=st.sampled_from([0.0, 0.7, -1.5]),
    frequency=st.sampled_from([0.0, 0.4, -2.0]),
    repetition=st.sampled_from([1.0, 1.3, 0.5]),
    bias=st.dictionaries(tokens, numbers, max_size=3).map(lambda given: tuple(given.items())),
    min_tokens=st.integers(0, 4),
    ends=st.sets(tokens, max_size=2).map(tuple),
)


@given(
    logits=st.lists(numbers, min_size=TOKENS, max_size=TOKENS),
    sampling=samplings,
    prompt=st.lists(tokens, min_size=1, max_size=5),
    answer=st.lists(tokens, max_size=6),
)
@settings(max_examples=400)
def test_a_token_is_chosen_as_it_says_of_the_processed_logits(logits, sampling, prompt, answer):
    """The likeliest one, or what the draw of seed and position falls on."""
    history = History(sampling, prompt, len(prompt))
    for token in answer:
        history.add(token)
    position = len(prompt) + len(answer)
    row = np.array(logits, np.float32)
    found = history.next_token(row, sampling.seed, position)
    values = processed(logits, sampling, prompt, answer)
    np.testing.assert_allclose(history.process(row), values, atol=NEAR)
    if not sampling.temperature:
        best = max(values)
        assert values[found] == pytest.approx(best, abs=NEAR)
        return
    drawn = np.random.Generator(np.random.Philox(key=sampling.seed, counter=position)).random()
    reach = 0.0
    for token, share in probabilities(values, sampling):
        reach += share
        assume(abs(reach - drawn) > NEAR)
        if reach > drawn:
            assert found == token
            return


@given(
    logits=st.lists(numbers, min_size=TOKENS, max_size=TOKENS),
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.3, 1.0]),
    top_p=st.sampled_from([1.0, 0.7]),
)
def test_a_history_without_options_draws_as_a_row_without_one(logits, seed, temperature, top_p):
    """What is told of tokens does not change them."""
    sampling = Sampling(temperature, top_p, seed, logprobs=3)
    row = np.array(logits, np.float32)
    drawn = choose(row, seed, 4, temperature, top_p)
    assert History(sampling, [1, 2], 1).next_token(row, seed, 4) == drawn


@given(
    logits=st.lists(numbers, min_size=TOKENS, max_size=TOKENS),
    token=tokens,
    count=st.integers(0, TOKENS + 3),
)
def test_a_note_has_the_log_probabilities_of_the_model(logits, token, count):
    """Of the token that stands there and of the likeliest, of equals the lower number first."""
    named, logprobs = note(np.array(logits, np.float32), token, count)
    total = math.log(math.fsum(math.exp(logit) for logit in logits))
    likeliest = sorted(range(TOKENS), key=lambda other: (-logits[other], other))[:count]
    assert named.tolist() == [token, *likeliest]
    assert logprobs.tolist() == pytest.approx([logits[t] - total for t in named], abs=1e-9)
