"""Other models of the architecture: GGUF files and folders in Hugging Face's layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_llama import MARKS, TEMPLATE, write_gguf

import disco_client
from llm.config import ModelError, open_checkpoint
from llm.model import Model, Piece
from llm.plain import Plain, read_weights
from llm.text import Text

PROMPT = [{"role": "user", "content": "the thing in the other one"}]


def write_folder(folder, gguf, **changes):
    """Writes a GGUF file's model as Hugging Face has it: names, turned halves, JSON."""
    checkpoint = open_checkpoint(gguf)
    config = checkpoint.config
    figures = {
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.inner,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.epsilon,
        "tie_word_embeddings": config.tied,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**figures, **changes}))
    names = open_checkpoint(folder).names if not changes else {}
    tensors = {}
    for name, array in read_weights(checkpoint).items() if names else ():
        if name.endswith(("query", "key")):
            pairs = array.reshape(-1, config.head // 2, 2, config.width)
            array = pairs.swapaxes(1, 2).reshape(array.shape)  # noqa: PLW2901
        tensors[names[name]] = np.ascontiguousarray(array)
    save_file(tensors, folder / "model.safetensors")
    Text(checkpoint)._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": {"content": MARKS[2]}})
    )
    return folder


def logits_of(session, checkpoint, ids):
    model = Model(session, checkpoint, blocks=8, slots=2)
    blocks = [5, 2, 3, 7, 0]
    halves = [
        model.logits([Piece(1, start, ids[start : start + 20], blocks)]).numpy()
        for start in range(0, len(ids), 20)
    ]
    return np.concatenate(halves)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_both_layouts_compute_what_the_plain_forward_does(tmp_path, workers, tied):
    """Also in two chunks, with blocks of the cache out of order, and a head of its own."""
    gguf = write_gguf(tmp_path / "tiny.gguf", seed=3, tied=tied)
    folder = write_folder(tmp_path / "folder", gguf)
    first, second = open_checkpoint(gguf), open_checkpoint(folder)
    ids = Text(first).conversation(PROMPT)
    assert Text(second).conversation(PROMPT) == ids
    assert Text(second).ends == Text(first).ends
    expected = Plain(first).logits(ids)
    assert np.abs(Plain(second).logits(ids) - expected).max() < 1e-4
    with disco_client.ProcessSession(workers) as session:
        for checkpoint in (first, second):
            assert np.abs(logits_of(session, checkpoint, ids) - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "mistral"}, "is a model of type 'mistral'; expected 'llama'"),
        ({"rope_scaling": {"factor": 8.0}}, "rope_scaling = {'factor': 8.0}, which this example"),
        ({"rms_norm_eps": None}, "expected a number as epsilon, got None"),
        ({"num_key_value_heads": 3}, "the 3 heads of keys and values divide, got 4"),
    ],
)
def test_folders_of_other_models_are_refused(tmp_path, changes, told):
    """With what was expected."""
    gguf = write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match=told):
        open_checkpoint(write_folder(tmp_path / "folder", gguf, **changes))


def test_damaged_files_are_refused(tmp_path):
    """Cut off at any place of the header, or no JSON."""
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    for count in (0, 3, 100, 2000):
        (tmp_path / "cut.gguf").write_bytes(whole[:count])
        with pytest.raises(ModelError, match="cannot be read as GGUF"):
            open_checkpoint(tmp_path / "cut.gguf")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        open_checkpoint(tmp_path)


def test_a_model_without_one_of_its_tensors_is_refused(tmp_path):
    """By the workers, before they read anything; the tensor is named."""
    gguf = write_gguf(tmp_path / "tiny.gguf")
    folder = write_folder(tmp_path / "folder", gguf)
    checkpoint = open_checkpoint(folder)
    tensors = {
        checkpoint.names[name]: array
        for name, array in read_weights(open_checkpoint(gguf)).items()
        if name != "1.up"
    }
    save_file(tensors, folder / "model.safetensors")
    with (
        disco_client.ProcessSession(1) as session,
        pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight: missing"),
    ):
        Model(session, checkpoint, blocks=2, slots=1)
