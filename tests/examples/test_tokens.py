"""From sentences to batches and back."""

from __future__ import annotations

import numpy as np
import pytest

from embedding.settings import ModelError, read_settings
from embedding.tokens import in_order, make_batches, tokenize


def test_every_sentence_gets_its_special_tokens(settings):
    """Even a sentence of nothing has a beginning and an end, so that it can be embedded."""
    assert tokenize(settings, ["", " ", "\t"]) == [[101, 102]] * 3
    assert tokenize(settings, ["."]) == [[101, 1012, 102]]


def test_long_sentences_are_cut_at_the_models_maximum(settings):
    """400 words become 256 tokens, not the 128 that tokenizer.json was saved with."""
    (ids,) = tokenize(settings, ["word " * 400])
    assert len(ids) == 256
    assert ids[-1] == 102


def test_a_broken_tokenizer_is_named(make_model):
    """A tokenizer.json that is none is refused with its path."""
    folder = make_model()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        tokenize(read_settings(folder), ["x"])


def test_batches_hold_each_sentence_once_by_length():
    """Batches go from long to short, are of the size asked for, and carry no padding."""
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 99, rng.integers(2, 40)).tolist() for _ in range(70)]
    batches = list(make_batches(tokens, 32))
    assert [len(batch.places) for batch in batches] == [32, 32, 6]
    assert sorted(place for batch in batches for place in batch.places) == list(range(70))
    lengths = np.concatenate([batch.lengths for batch in batches])
    assert (np.diff(lengths) <= 0).all()
    for batch in batches:
        parts = np.split(batch.ids, np.cumsum(batch.lengths)[:-1])
        assert [part.tolist() for part in parts] == [tokens[place] for place in batch.places]
        assert batch.ids.dtype == batch.lengths.dtype == np.int32


def test_results_return_in_the_order_of_the_sentences():
    """However batches were made, row i belongs to sentence i."""
    batches = list(make_batches([[1, 2], [1, 2, 3], [1], [1, 2, 3, 4]], 2))
    results = [(batch, batch.lengths[:, None].astype(np.float32)) for batch in batches]
    assert in_order(results)[:, 0].tolist() == [2, 3, 1, 4]
