"""Small models of all families with random weights, and their tokenizers, in folders.

A case has the fields of a ``config.json``; what it does not say is as in the family's published
models. The weights have the spread of trained ones: what goes through a matrix keeps its size,
norms are near 1, biases and scores of attention are large enough to matter.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tiny_llama import byte_letters
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

VOCABULARY, LAYERS = 320, 4
MARKS = ("<unk>", "<s>", "</s>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ("▁the", "▁river", "▁of", "▁sea")
FIGURES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2],
    "long_factor": [1.0, 1.1, 1.3, 1.8, 2.5, 4.0, 6.0, 9.0, 12.0],
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 256,
}
ALTERNATING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
CASES: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama", "rope_parameters": LLAMA3, "tie_word_embeddings": False},
    "mistral": {"model_type": "mistral", "sliding_window": 24, "head_dim": 32},
    "mistral without a window": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 with a window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 2,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
    "phi3": {"model_type": "phi3", "sliding_window": 24},
    "phi4": {
        "model_type": "phi3",
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 256,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma2 with another scale": {
        "model_type": "gemma2",
        "head_dim": 32,
        "query_pre_attn_scalar": 12,
        "sliding_window": 24,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "layer_types": ALTERNATING,
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}
"""The fields of each case besides `FIGURES`."""

SAID_BESIDE: dict[str, dict[str, int]] = {
    "mistral": {"attention.sliding_window": 24},
    "gemma3": {"attention.sliding_window_pattern": 2},
}
"""What a GGUF file has to say of a case that llama.cpp's converter does not write."""

UNSAID = frozenset(("qwen2 with a window", "gemma2 with another scale"))
"""The cases that no GGUF file can say."""

PIECES = frozenset(("mistral", "phi3", "gemma2", "gemma2 with another scale", "gemma3"))
"""The cases whose tokenizer is in the manner of SentencePiece; the others' is byte-level BPE."""

_WORD = r"[^\r\n\p{L}\p{N}]?"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "llama-bpe": rf"{_SHORT}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}",
    "qwen2": rf"{_SHORT}|{_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}",
    "gpt-4o": rf"{_WORD}{_CAPITALS}*{_SMALL}+{_SHORT}?|{_WORD}{_CAPITALS}+{_SMALL}*{_SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}",
    "tekken": rf"{_WORD}{_CAPITALS}*{_SMALL}+|{_WORD}{_CAPITALS}+{_SMALL}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}",
}
"""How texts are split, by llama.cpp's names, as the tokenizers that families publish do it."""
_SPLIT_OF = {
    "llama": "llama-bpe",
    "mistral without a window": "tekken",
    "qwen2": "qwen2",
    "qwen2 with a window": "qwen2",
    "qwen3": "qwen2",
    "phi4": "gpt-4o",
}


def draw_weight(name: str, shape: tuple[int, ...], model_type: str, rng: np.random.Generator):
    """A tensor of a folder: float32, of the spread that its place asks for."""
    numbers = rng.standard_normal(shape)
    gemma = model_type.startswith("gemma")
    if gemma and name == "model.norm.weight":
        return (0.2 * numbers + 5).astype(np.float32)  # so that the cap of logits matters
    if name.endswith("norm.weight"):
        return (0.2 * numbers + (0 if gemma else 1)).astype(np.float32)
    if name.endswith(".bias"):
        return (0.5 * numbers).astype(np.float32)
    # Small beside what layers add, or a model whose head is the embedding repeats its last token.
    spread = 0.2 if "embed_tokens" in name else 1.7
    if "embed_tokens" in name and not gemma:
        spread *= shape[-1] ** 0.5
    if "embed_tokens" in name or name.startswith("lm_head"):
        numbers[: len(MARKS)] = 0  # so that the likeliest token is never one of them
    return (numbers * spread / shape[-1] ** 0.5).astype(np.float32)


def shapes_of(said: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The tensors of a folder with these fields, by the names in published ones."""
    figures = {name: value for name, value in said.items() if isinstance(value, int)}
    width, inner = figures["hidden_size"], figures["intermediate_size"]
    heads, kv = figures["num_attention_heads"], figures["num_key_value_heads"]
    head = figures.get("head_dim") or width // heads
    kind = str(said["model_type"])
    layer = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.o_proj.weight": (width, heads * head),
        "mlp.down_proj.weight": (width, inner),
    }
    if kind == "phi3":
        layer["self_attn.qkv_proj.weight"] = ((heads + 2 * kv) * head, width)
        layer["mlp.gate_up_proj.weight"] = (2 * inner, width)
    else:
        for name, count in (("q", heads), ("k", kv), ("v", kv)):
            layer[f"self_attn.{name}_proj.weight"] = (count * head, width)
            if kind == "qwen2":
                layer[f"self_attn.{name}_proj.bias"] = (count * head,)
        layer |= {"mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width)}
    if kind in ("qwen3", "gemma3_text"):
        layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    if kind.startswith("gemma"):
        layer |= {f"{name}_feedforward_layernorm.weight": (width,) for name in ("pre", "post")}
    found = {
        f"model.layers.{number}.{name}": shape
        for number in range(figures["num_hidden_layers"])
        for name, shape in layer.items()
    }
    table = (figures["vocab_size"], width)
    found |= {"model.embed_tokens.weight": table, "model.norm.weight": (width,)}
    if not said.get("tie_word_embeddings", kind.startswith("gemma")):
        found["lm_head.weight"] = table
    return found


def write_folder(
    folder: Path, case: str, *, seed: int = 0, **changes: object
) -> dict[str, np.ndarray]:
    """Writes a model with its tokenizer, and other fields; returns its tensors."""
    said = {**FIGURES, **CASES[case], **changes}
    rng = np.random.default_rng(seed)
    tensors = {
        name: draw_weight(name, shape, str(said["model_type"]), rng)
        for name, shape in shapes_of(said).items()
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(said))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, case)
    return tensors


def write_tokenizer(folder: Path, case: str) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json`` of a case."""
    gemma = case.startswith("gemma")
    made = _pieces(spaced=not gemma) if case in PIECES else _letters(SPLITS[_SPLIT_OF[case]])
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _letters(split: str):
    pairs = itertools.product(string.ascii_lowercase, repeat=2)
    merges = list(itertools.islice(pairs, VOCABULARY - len(MARKS) - 256))
    words = [*MARKS, *byte_letters(), *map("".join, merges)]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    cut = pre_tokenizers.Split(tokenizers.Regex(split), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
    made.decoder = decoders.ByteLevel()
    return made


def _pieces(*, spaced: bool):
    """Every piece begins like a word, so that there is one way to merge it."""
    grown = dict.fromkeys(word[:end] for word in WORDS for end in range(2, len(word) + 1))
    merges = [(piece[:-1], piece[-1]) for piece in grown]
    letters = ["▁", *string.ascii_letters]
    words = [*MARKS, *BYTES, *grown, *letters][:VOCABULARY]
    vocabulary = {word: number for number, word in enumerate(words)}
    kept = [merge for merge in merges if all(part in vocabulary for part in merge)]
    made = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=kept, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    before = [normalizers.Prepend("▁")] if spaced else []
    made.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if spaced else []))
    return made
