"""No bytes make a decoder raise what it does not declare, hang, or take memory without end."""

from __future__ import annotations

import random

import pytest
from fuzzing import TARGETS, outcome
from fuzzing.mutating import mutate

INPUTS = 60
"""For each decoder and run of the tests; `make fuzz` tries as many as there is time for."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name):
    """Every input that was ever of interest still ends in a result or in a declared error."""
    target = TARGETS[name]
    corpus = target.corpus()
    assert corpus
    came = {outcome(target, data) for data in corpus}
    assert any(each.startswith("ok") for each in came)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_arrives_ends_in_a_declared_way(name):
    """Seeds that were cut, joined, doubled and changed: a result, or a typed error."""
    target = TARGETS[name]
    chance = random.Random(name)
    corpus = target.corpus()
    for _ in range(INPUTS):
        outcome(target, mutate(chance, corpus))
