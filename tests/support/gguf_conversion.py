"""Converts a folder in Hugging Face's layout to a GGUF file, as llama.cpp's converter does.

Names come from the mapping of the package ``gguf``. What else changes is as the converter of each
architecture has it (conversion/ in https://github.com/ggml-org/llama.cpp): rows of queries and keys
in the order of the other rotary positions, 1 added to norms, scalings as tensors and metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from synthetic_models import SPLITS

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}


def convert(
    folder: Path,
    path: Path,
    metadata: Mapping[str, int] | None = None,
    *,
    quantised: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """Writes the GGUF file of a folder; returns its path.

    Args:
        folder: With ``config.json``, ``model.safetensors`` and ``tokenizer.json``.
        path: The file.
        metadata: More fields, numbers from 0 on, without the name of the architecture.
        quantised: How matrices are stored.
    """
    said = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[said["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("synthetic")
    _add_figures(writer, said, architecture)
    more = _SAYING.get(architecture, lambda *_: {})(writer, said)
    for name, value in (metadata or {}).items():
        writer.kv_data[0].pop(f"{architecture}.{name}", None)
        writer.add_uint32(f"{architecture}.{name}", value)
    _add_tokenizer(writer, folder, said, architecture)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, said["num_hidden_layers"])
    for name, array in load_file(folder / "model.safetensors").items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise ValueError(f"no tensor of {architecture} is called {name}")
        array = _converted(name, array.astype(np.float32), said, architecture)  # noqa: PLW2901
        kind = quantised if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(theirs, gguf.quantize(array, kind), raw_dtype=kind)
    for name, array in more.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(name: str, array: np.ndarray, said: dict[str, Any], architecture: str):
    if architecture == "llama" and ".self_attn.q_proj." in name:
        return _neighbours(array, said["num_attention_heads"])
    if architecture == "llama" and ".self_attn.k_proj." in name:
        return _neighbours(array, said["num_key_value_heads"])
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    return array


def _neighbours(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows i and i + head / 2 of each head become neighbours."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def _add_figures(writer: gguf.GGUFWriter, said: dict[str, Any], architecture: str) -> None:
    heads = said["num_attention_heads"]
    head = said.get("head_dim") or said["hidden_size"] // heads
    writer.add_block_count(said["num_hidden_layers"])
    writer.add_context_length(said["max_position_embeddings"])
    writer.add_embedding_length(said["hidden_size"])
    writer.add_feed_forward_length(said["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(said["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(said["rms_norm_eps"])
    if said.get("head_dim"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if architecture == "llama":
        writer.add_vocab_size(said["vocab_size"])
        writer.add_rope_dimension_count(head)
    base = _rope_of(said).get("rope_theta")
    if base is not None and architecture != "gemma2":
        writer.add_rope_freq_base(base)


def _rope_of(said: dict[str, Any]) -> dict[str, Any]:
    found = said.get("rope_parameters") or said.get("rope_scaling") or {}
    found = found.get("full_attention", found)
    return {"rope_theta": said.get("rope_theta"), **found}


def _say_llama(writer: gguf.GGUFWriter, said: dict[str, Any]) -> dict[str, np.ndarray]:
    rope = _rope_of(said)
    if rope.get("rope_type") != "llama3":
        return {}
    head = said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"]
    old = rope["original_max_position_embeddings"]
    factors = []
    for speed in 1.0 / rope["rope_theta"] ** (np.arange(0, head, 2) / head):
        wave = 2 * math.pi / speed
        smooth = (old / wave - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        slow, fast = wave > old / rope["low_freq_factor"], wave < old / rope["high_freq_factor"]
        factors.append(1.0 if fast else rope["factor"] if slow else between)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _say_phi(writer: gguf.GGUFWriter, said: dict[str, Any]) -> dict[str, np.ndarray]:
    rope, context = _rope_of(said), said["max_position_embeddings"]
    old = rope.get("original_max_position_embeddings") or context
    part = rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_scaling_orig_ctx_len(old)
    writer.add_rope_dimension_count(int(part * said["hidden_size"]) // said["num_attention_heads"])
    writer.add_sliding_window(said.get("sliding_window") or 0)
    if not rope.get("long_factor"):
        return {}
    scale = context / old
    writer.add_rope_scaling_attn_factors(
        math.sqrt(1 + math.log(scale) / math.log(old)) if scale > 1 else 1.0
    )
    return {
        f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
        for which in ("long", "short")
    }


def _say_gemma(writer: gguf.GGUFWriter, said: dict[str, Any]) -> dict[str, np.ndarray]:
    writer.add_sliding_window(said["sliding_window"])
    if cap := said.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(cap)
    if cap := said.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(cap)
    rope = _rope_of(said)
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    return {}


_SAYING: dict[str, Callable[[gguf.GGUFWriter, dict[str, Any]], dict[str, np.ndarray]]] = {
    "llama": _say_llama,
    "phi3": _say_phi,
    "gemma2": _say_gemma,
    "gemma3": _say_gemma,
}


def _add_tokenizer(
    writer: gguf.GGUFWriter, folder: Path, said: dict[str, Any], architecture: str
) -> None:
    found = json.loads((folder / "tokenizer.json").read_text())
    marks = {each["id"] for each in found["added_tokens"]}
    vocabulary = {**found["model"]["vocab"]}
    vocabulary |= {each["content"]: each["id"] for each in found["added_tokens"]}
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    kinds = [
        gguf.TokenType.CONTROL if n in marks else gguf.TokenType.NORMAL for n in range(len(words))
    ]
    if found["model"]["byte_fallback"]:
        kinds = [
            gguf.TokenType.BYTE if w.startswith("<0x") else k
            for w, k in zip(words, kinds, strict=True)
        ]
        kinds[0] = gguf.TokenType.UNKNOWN
        ranks = {"".join(merge): -float(n) for n, merge in enumerate(found["model"]["merges"])}
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([ranks.get(word, -1000.0) for word in words])
        if architecture.startswith("gemma"):
            writer.add_add_space_prefix(False)
    else:
        writer.add_tokenizer_model("gpt2")
        split = found["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        writer.add_tokenizer_pre(next(name for name, each in SPLITS.items() if each == split))
        writer.add_token_merges([" ".join(merge) for merge in found["model"]["merges"]])
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(said["bos_token_id"])
    writer.add_eos_token_id(said["eos_token_id"])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
