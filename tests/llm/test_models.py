"""Other models of the architecture: GGUF files and folders in Hugging Face's layout."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import reference_llama
from safetensors.numpy import load_file, save_file
from tiny_llama import MARKS, TEMPLATE, write_gguf

import disco_client
from llm.config import ModelError, open_checkpoint
from llm.model import Model, Piece
from llm.plain import Plain, read_weights
from llm.text import Text

LEFT_OUT = object()
PROMPT = [{"role": "user", "content": "the thing in the other one"}]


def write_folder(folder, gguf, *, metadata=None, tensors=None, **changes):
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
        "rope_theta": config.rope.base,
        "rms_norm_eps": config.epsilon,
        "tie_word_embeddings": config.tied,
        "attention_bias": "query" in config.biases,
        "mlp_bias": "gate" in config.biases,
    }
    folder.mkdir()
    said = {name: value for name, value in {**figures, **changes}.items() if value is not LEFT_OUT}
    (folder / "config.json").write_text(json.dumps(said))
    names = dataclasses.replace(checkpoint, path=folder).names
    found = {}
    for name, array in read_weights(checkpoint).items():
        if name.endswith(("query", "key", "query_bias", "key_bias")):
            pairs = array.reshape(-1, config.head // 2, 2, *array.shape[1:])
            array = pairs.swapaxes(1, 2).reshape(array.shape)  # noqa: PLW2901
        found[names[name]] = np.ascontiguousarray(array)
    found |= tensors or {}
    found = {name: array for name, array in found.items() if array is not LEFT_OUT}
    save_file(found, folder / "model.safetensors", metadata=metadata)
    Text(checkpoint)._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": {"content": MARKS[2]}})
    )
    return folder


@pytest.fixture(scope="module")
def shared():
    """Three workers, which have unequal shares of four heads."""
    with disco_client.ProcessSession(3) as session:
        yield session


def logits_of(session, checkpoint, ids):
    model = Model(session, checkpoint, blocks=8, slots=2)
    blocks = [5, 2, 3, 7, 0, 1]
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


ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PLAIN_SPEEDS = reference_llama.plain_speeds(10000.0, 16)
LLAMA3_SPEEDS = reference_llama.llama3_speeds(10000.0, 16, 8.0, 1.0, 4.0, 64)
# As converters write it: what the speeds are divided by.
FACTORS = {"rope_freqs.weight": (PLAIN_SPEEDS / LLAMA3_SPEEDS).astype(np.float32)}
MODELS = {
    "llama3": ({"tensors": FACTORS}, {"rope_parameters": {**LLAMA3, "rope_theta": 10000.0}}),
    "llama3, older": ({"tensors": FACTORS}, {"rope_scaling": {**LLAMA3, "type": "llama3"}}),
    "linear": (
        {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
        {
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            "rope_theta": LEFT_OUT,
        },
    ),
    "linear, older": (
        {"metadata": {"llama.rope.scale_linear": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "biases": ({"biases": ATTENTION}, {}),
    "all biases": ({"biases": (*ATTENTION, "ffn_gate", "ffn_up", "ffn_down"), "tied": False}, {}),
    **{act: ({}, {"hidden_act": act}) for act in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")},
}
SPEEDS = {"llama3": LLAMA3_SPEEDS, "linear": PLAIN_SPEEDS / 4}


@pytest.mark.parametrize("name", MODELS)
def test_what_changes_the_arithmetic_is_computed(shared, tmp_path, name):
    """Split, plain, and in both layouts: within 2e-4 of the formulas in float64."""
    options, changes = MODELS[name]
    gguf = write_gguf(tmp_path / "tiny.gguf", seed=3, **options)
    folder = write_folder(tmp_path / "folder", gguf, **changes)
    act = changes.get("hidden_act", "silu")
    ids = [int(each) for each in np.random.default_rng(1).integers(3, 320, 80)]
    tensors = load_file(folder / "model.safetensors")
    biases = [name for name in tensors if name.endswith(".bias")]
    assert len(biases) == 2 * len(options.get("biases", ()))
    expected = reference_llama.logits(
        tensors,
        ids,
        SPEEDS.get(name.partition(",")[0], PLAIN_SPEEDS),
        heads=4,
        epsilon=1e-5,
        activation=act,
    )
    # A GGUF file of this architecture always means silu.
    for path in (gguf, folder) if act == "silu" else (folder,):
        checkpoint = open_checkpoint(path)
        assert np.abs(Plain(checkpoint).logits(ids) - expected).max() < 2e-4
        assert np.abs(logits_of(shared, checkpoint, ids) - expected).max() < 2e-4


def test_a_single_token_at_a_time_turns_as_far(shared, tmp_path):
    """The cached steps of an answer use the same positions and biases as a prompt does."""
    options = {"tensors": FACTORS, "biases": ATTENTION}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", seed=5, **options))
    model, prompt, found = Model(shared, checkpoint, blocks=4, slots=1), [7, 9, 300], []
    token = model.step([Piece(0, 0, prompt, [2, 0, 3, 1])])
    for _ in range(30):
        found.append(int(token.numpy()[0]))
        token = model.next_step()
    assert found == Plain(checkpoint).continue_greedily(prompt, 30, set())[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "mixtral"}, "is a model of type 'mixtral'; expected 'llama', 'mistral'"),
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


@pytest.mark.parametrize(
    "surplus", ["blk.0.attn_q_norm.weight", "blk.1.ffn_gate_exps.weight", "output.bias"]
)
def test_a_tensor_that_nothing_computes_with_is_refused(tmp_path, surplus):
    """By its name, where the file is opened."""
    extra = {surplus: np.ones(16, np.float32)}
    gguf = write_gguf(tmp_path / "tiny.gguf", tensors=extra)
    with pytest.raises(ModelError, match=f"has the tensor '{surplus}'"):
        open_checkpoint(gguf)


def test_tensors_that_are_known_to_change_nothing_are_let_be(shared, tmp_path):
    """What older converters wrote of rotary positions; others are refused, by the workers too."""
    old = {"blk.0.attn_rot_embd.weight": np.ones(8, np.float32)}
    gguf = write_gguf(tmp_path / "tiny.gguf", tensors=old)
    old = {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    folder = write_folder(tmp_path / "folder", gguf, tensors=old)
    for path in (gguf, folder):
        Model(shared, open_checkpoint(path), blocks=2, slots=1)
    checkpoint = open_checkpoint(folder)
    surplus = "model.layers.1.self_attn.q_proj.bias"
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, surplus: np.ones(64, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=f"{surplus}: surplus"):
        Model(shared, checkpoint, blocks=2, slots=1)
    with pytest.raises(ModelError, match=f"has the tensor '{surplus}'"):
        Plain(checkpoint)
    with pytest.raises(ModelError, match=f"has the tensor '{surplus}'"):
        open_checkpoint(folder)
    whole = {name: (array * 100).astype(np.int8) for name, array in tensors.items()}
    save_file(whole, folder / "model.safetensors")
    with pytest.raises(ModelError, match="is int8; expected numbers in floating point"):
        Model(shared, checkpoint, blocks=2, slots=1)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("kept", [EMBEDDING, HEAD])
@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_that_is_the_head_is_written_once(shared, tmp_path, kept, tied):
    """By either name; the other one is in the metadata alone, whatever config.json says."""
    gguf = write_gguf(tmp_path / "tiny.gguf", seed=3)
    embedding = read_weights(open_checkpoint(gguf))["embedding"]
    other = HEAD if kept == EMBEDDING else EMBEDDING
    folder = write_folder(
        tmp_path / "folder",
        gguf,
        tie_word_embeddings=tied,
        metadata={"format": "pt", other: kept},
        tensors={kept: embedding, other: LEFT_OUT},
    )
    ids = list(range(40, 80))
    expected = Plain(open_checkpoint(gguf)).logits(ids)
    checkpoint = open_checkpoint(folder)
    assert np.abs(Plain(checkpoint).logits(ids) - expected).max() < 1e-4
    assert np.abs(logits_of(shared, checkpoint, ids) - expected).max() < 1e-4


def test_a_head_that_the_files_have_beside_the_embedding_counts(shared, tmp_path):
    """Though config.json says that they are one: transformers ties only what is equal."""
    gguf = write_gguf(tmp_path / "tiny.gguf", seed=3, tied=False)
    folder = write_folder(tmp_path / "folder", gguf, tie_word_embeddings=True)
    ids = list(range(40, 80))
    expected = Plain(open_checkpoint(gguf)).logits(ids)
    checkpoint = open_checkpoint(folder)
    assert np.abs(Plain(checkpoint).logits(ids) - expected).max() < 1e-4
    assert np.abs(logits_of(shared, checkpoint, ids) - expected).max() < 1e-4
