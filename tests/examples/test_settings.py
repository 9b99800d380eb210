"""What a model's folder says, and which models and numbers of workers are refused."""

from __future__ import annotations

import pytest

from embedding.settings import (
    ModelError,
    allowed_worker_counts,
    read_settings,
    refuse_worker_count,
)


def test_the_bundled_model_is_all_minilm(settings):
    """The default model has the published figures and the published cut at 256 tokens."""
    assert (settings.layers, settings.heads, settings.hidden) == (6, 12, 384)
    assert (settings.feed_forward, settings.max_tokens, settings.pooling) == (1536, 256, "mean")


def test_worker_counts_divide_heads_and_columns(settings):
    """The numbers that work are the common divisors of heads and feed-forward columns."""
    assert allowed_worker_counts(settings) == [1, 2, 3, 4, 6, 12]
    for workers in (1, 2, 3, 4, 6):
        refuse_worker_count(settings, workers)


@pytest.mark.parametrize("workers", [-1, 0, 5, 7, 8, 24])
def test_other_worker_counts_are_refused_with_the_reason(settings, workers):
    """The refusal names the heads, the columns and the numbers that would work."""
    with pytest.raises(ModelError, match=r"12 attention heads.*1536.*1, 2, 3, 4, 6 or 12 workers"):
        refuse_worker_count(settings, workers)


def test_an_incomplete_folder_is_named(tmp_path):
    """A folder without a model says what it lacks."""
    with pytest.raises(ModelError, match=r"lacks config\.json, model\.safetensors, tokenizer"):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
    ],
)
def test_models_with_other_arithmetic_are_refused(make_model, key, value):
    """What would be computed wrongly is not computed at all."""
    with pytest.raises(ModelError, match=f"{key} '{value}'"):
        read_settings(make_model(**{key: value}))


def test_heads_must_divide_the_width(make_model):
    """A configuration that contradicts itself is refused."""
    with pytest.raises(ModelError, match="24, which its 7 heads do not divide"):
        read_settings(make_model(num_attention_heads=7))


def test_a_damaged_configuration_is_named(make_model):
    """A config.json that is no JSON, or lacks a figure, is named in the error."""
    folder = make_model(hidden_size=None)
    with pytest.raises(ModelError, match=r"config\.json has no usable"):
        read_settings(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        read_settings(folder)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (None, "mean"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
    ],
)
def test_pooling_is_read_in_both_spellings(make_model, pooling, expected):
    """The old flags and the new word are both understood."""
    assert read_settings(make_model(pooling=pooling)).pooling == expected


@pytest.mark.parametrize("mode", ["max_tokens", "mean_sqrt_len_tokens", "lasttoken"])
def test_other_poolings_are_refused(make_model, mode):
    """A pooling that is not computed here is named."""
    with pytest.raises(ModelError, match=f"pools by {mode.removesuffix('_tokens')}"):
        read_settings(make_model(pooling={f"pooling_mode_{mode}": True}))


def test_the_cut_falls_back_to_the_positions(make_model):
    """A model without a sentence length takes as many tokens as it has positions."""
    folder = make_model()
    assert read_settings(folder).max_tokens == 40
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert read_settings(folder).max_tokens == 40
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    assert read_settings(folder).max_tokens == 16
