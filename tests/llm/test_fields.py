"""Fields of a model's files: served, known to change nothing, or refused by name."""

from __future__ import annotations

import json

import pytest
from gguf import GGUFReader
from tiny_llama import write_gguf

from llm.config import ModelError, open_checkpoint

FIGURES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def open_with(folder, **changes):
    """Opens a folder whose config.json has these fields more; only the workers have weights."""
    (folder / "config.json").write_text(json.dumps({**FIGURES, **changes}))
    return open_checkpoint(folder)


REFUSED = {
    "attention_bias": [1, "true"],
    "attention_multiplier": [0.5],
    "architectures": [["LlamaForSequenceClassification"], "LlamaForCausalLM"],
    "attn_logit_softcapping": [30.0],
    "auto_map": [{"AutoModelForCausalLM": "modeling.Mine"}],
    "clip_qkv": [8.0],
    "embedding_multiplier": [12.0],
    "final_logit_softcapping": [30.0],
    "head_dim": ["16"],
    "hidden_act": ["mish", "gelu_10", "quick_gelu", ["silu"]],
    "layer_types": [["full_attention", "sliding_attention"], "sliding_attention"],
    "logits_scaling": [8.0],
    "max_position_embeddings": [512.5, True],
    "mlp_bias": [0],
    "my_own_attention": [True, False, 0, "x"],
    "no_rope_layers": [[0, 1]],
    "num_local_experts": [8],
    "partial_rotary_factor": [0.5],
    "qk_norm": [True],
    "quantization_config": [{"quant_method": "gptq"}],
    "query_pre_attn_scalar": [256],
    "residual_multiplier": [0.22],
    "rms_norm_eps": [-1e-5, "1e-5"],
    "rope_interleaved": [True],
    "rope_parameters": [
        {"full_attention": {"rope_type": "default"}},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        [8.0],
    ],
    "rope_scaling": [
        8.0,
        {"factor": 8.0},
        {"type": "dynamic", "factor": 2.0},
        {"type": "linear"},
        {"type": "linear", "factor": 0},
        {"type": "linear", "factor": "4"},
        {"type": "linear", "factor": 4.0, "attention_factor": 2.0},
        {"type": "linear", "rope_type": "llama3", "factor": 4.0},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": 5},
        {**LLAMA3, "high_freq_factor": 1.0},
        {**LLAMA3, "original_max_position_embeddings": None},
    ],
    "rope_theta": [0, -1.0, "10000", True],
    "sliding_window": [4096],
    "tie_word_embeddings": ["yes"],
    "use_qk_norm": [True],
    "use_sliding_window": [True],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_of_config_json_that_is_not_computed_is_refused(tmp_path, name):
    """By its name, with what it is; unknown ones whatever they are."""
    said = {"hidden_act": "hidden_act", "max_position_embeddings": "context"}
    for value in REFUSED[name]:
        with pytest.raises(ModelError) as raised:
            open_with(tmp_path, **{name: value})
        told = {"rms_norm_eps": "epsilon", **said}.get(name, name)
        assert told in str(raised.value), value


HARMLESS = {
    "_name_or_path": "me/mine",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attn_logit_softcapping": None,
    "auto_map": None,
    "bos_token_id": 1,
    "do_sample": True,
    "eos_token_id": [2, 3],
    "head_dim": None,
    "initializer_range": 0.02,
    "layer_types": ["full_attention"] * 2,
    "logits_scaling": 1.0,
    "mlp_bias": None,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 2,
    "quantization_config": None,
    "rope_interleaved": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "rope_scaling": None,
    "sliding_window": None,
    "something_new": None,
    "tie_word_embeddings": None,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"},
    "transformers_version": "5.24.0",
    "use_cache": True,
}


def test_fields_that_change_nothing_are_let_be(tmp_path):
    """All at once, as they stand in published models; null is a field that is not there."""
    config = open_with(tmp_path, **HARMLESS).config
    assert (config.rope.base, config.rope.divisors, config.biases) == (500000.0, (), ())
    assert open_with(tmp_path).config.rope.base == 10000.0
    same = {"type": "linear", "factor": 2.0}
    both = open_with(tmp_path, rope_scaling=same, rope_parameters=same).config
    assert both.rope.divisors == (2.0,) * 8
    with pytest.raises(ModelError, match=r"rope_scaling = .* and rope_parameters = "):
        open_with(tmp_path, rope_scaling=same, rope_parameters=LLAMA3)


REFUSED_GGUF = {
    "general.architecture": ["qwen2moe"],
    "general.type": ["adapter"],
    "llama.attention.clamp_kqv": [8.0],
    "llama.attention.key_length": [32],
    "llama.attention.scale": [0.5],
    "llama.attention.sliding_window": [-1, 0.5],
    "llama.attention.something_new": [0, False],
    "llama.attention.value_length": [32],
    "llama.embedding_scale": [12.0],
    "llama.expert_count": [8],
    "llama.final_logit_softcapping": [30.0],
    "llama.logit_scale": [0.1],
    "llama.residual_scale": [0.2],
    "llama.rope.dimension_count": [8],
    "llama.rope.freq_base": [0.0],
    "llama.rope.scale_linear": [-1.0],
    "llama.rope.scaling.attn_factor": [1.5],
    "llama.rope.scaling.factor": [-4.0],
    "llama.rope.scaling.type": ["yarn", "longrope"],
    "split.count": [4],
    "tokenizer.ggml.add_eos_token": [True],
    "tokenizer.ggml.something_new": ["x"],
}


@pytest.mark.parametrize("name", REFUSED_GGUF)
def test_metadata_of_a_gguf_file_that_are_not_computed_are_refused(tmp_path, name):
    """By their names; unknown ones of the architecture and of the tokenizer whatever they are."""
    for value in REFUSED_GGUF[name]:
        path = write_gguf(tmp_path / "tiny.gguf", metadata={name: value})
        told = (
            "architecture 'qwen2moe'; expected 'llama', 'qwen2'"
            if name == "general.architecture"
            else name
        )
        if name == "llama.attention.key_length":
            told = "llama.rope.dimension_count = 16; expected 32"
        with pytest.raises(ModelError) as raised:
            open_checkpoint(path)
        assert told in str(raised.value), value


def test_metadata_that_change_nothing_are_let_be(tmp_path):
    """Whatever a file says of where it comes from, and what says that there is nothing."""
    said = {
        "general.basename": "tiny",
        "general.something_new": "x",
        "llama.attention.causal": True,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.expert_count": 0,
        "llama.rope.scaling.factor": 0.0,
        "llama.rope.scaling.original_context_length": 8192,
        "quantize.imatrix.file": "x.dat",
        "split.count": 1,
        "tokenizer.chat_template.tool_use": "x",
        "tokenizer.ggml.fim_pre_token_id": 5,
    }
    path = write_gguf(tmp_path / "tiny.gguf", metadata=said)
    assert said.keys() <= GGUFReader(path).fields.keys()
    assert open_checkpoint(path).config.rope.divisors == ()
    said = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "tiny.gguf", metadata=said)
    assert open_checkpoint(path).config.rope.divisors == ()
