"""The families of models: one row each, with what differs between them.

A row says how the files name their tensors, what a file of the family may say, and what the
family computes otherwise. Nothing else asks for the name of a family: the layers read `Traits`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm.traits import Traits

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAMILIES", "INNER", "OUTER", "Family", "Saying", "of_architecture", "of_model_type"]

Names = dict[str, tuple[str, str]]

OUTER: Names = {
    "embedding": ("token_embd", "model.embed_tokens"),
    "norm": ("output_norm", "model.norm"),
    "output": ("output", "lm_head"),
}
"""The tensors outside of layers: their names in a GGUF file, and in a folder."""

INNER: Names = {
    "norm": ("attn_norm", "input_layernorm"),
    "query": ("attn_q", "self_attn.q_proj"),
    "key": ("attn_k", "self_attn.k_proj"),
    "value": ("attn_v", "self_attn.v_proj"),
    "out": ("attn_output", "self_attn.o_proj"),
    "inner_norm": ("ffn_norm", "post_attention_layernorm"),
    "gate": ("ffn_gate", "mlp.gate_proj"),
    "up": ("ffn_up", "mlp.up_proj"),
    "down": ("ffn_down", "mlp.down_proj"),
}
"""Those of a layer."""

_HEAD_NORMS: Names = {
    "query_norm": ("attn_q_norm", "self_attn.q_norm"),
    "key_norm": ("attn_k_norm", "self_attn.k_norm"),
}
_AFTER_NORMS: Names = {
    "after_norm": ("post_attention_norm", "post_attention_layernorm"),
    "inner_norm": ("ffn_norm", "pre_feedforward_layernorm"),
    "inner_after_norm": ("post_ffw_norm", "post_feedforward_layernorm"),
}
_FUSED: Names = {
    "query_key_value": ("attn_qkv", "self_attn.qkv_proj"),
    "gate_up": ("ffn_up", "mlp.gate_up_proj"),
}
_ATTENTION = ("query", "key", "value", "out")


@dataclass(frozen=True, slots=True)
class Saying:
    """What files of a family may say besides what those of all families may.

    Attributes:
        served: Fields of ``config.json`` that are read.
        harmless: Fields that change nothing.
        neutral: Fields, and the values with which they change nothing.
        missing: What a field of ``config.json`` is that is not there; null is another value.
        gguf: Metadata of a GGUF file that are read, without the name of the architecture.
        rope: The scalings of rotary positions in ``config.json``.
    """

    served: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    missing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gguf: frozenset[str] = frozenset()
    rope: tuple[str, ...] = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        title: What people call it.
        architecture: ``general.architecture`` of its GGUF files.
        model_type: Of its ``config.json``.
        classes: Which classes ``architectures`` may name there.
        names: Its tensors of a layer, as `INNER`, where they differ.
        biases: The matrices that always have one in a folder.
        bias_fields: Fields of ``config.json``, and the matrices that have one where they are true.
        interleaved: Whether rotary positions in its GGUF files turn the numbers 2i and 2i+1 of a
            head, not i and i + head / 2 as in all folders.
        activation: What the gate goes through, unless a ``config.json`` says it.
        traits: What all its models do; of a folder, whose norms a GGUF file has already added.
        windows: Which layers see a window, where a file names none: ``all``; ``late``, those from
            ``max_window_layers`` on; ``period``, all but each one that ends a period.
        period: How many layers a period has.
        local_base: The base of rotary positions in layers that see a window; None for that of
            the others.
        root_scale: Whether embeddings are multiplied by the root of the width.
        wide_layers: A GGUF file does not say what queries are multiplied by; the model of so many
            layers takes (width / heads) ** -0.5.
        saying: What its files may say.
    """

    title: str
    architecture: str
    model_type: str
    classes: tuple[str, ...]
    names: Names = field(default_factory=dict[str, tuple[str, str]])
    biases: tuple[str, ...] = ()
    bias_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    interleaved: bool = False
    activation: str = "silu"
    traits: Traits = field(default_factory=Traits)
    windows: str = "all"
    period: int = 0
    local_base: float | None = None
    root_scale: bool = False
    wide_layers: int = 0
    saying: Saying = field(default_factory=Saying)


_QWEN = Saying(
    served=frozenset(("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")),
    neutral={"use_mrope": (False,)},
    missing={"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
)
_GEMMA = frozenset(
    (
        "attention_bias", "final_logit_softcapping", "hidden_activation", "layer_types",
        "query_pre_attn_scalar", "sliding_window",
    )
)  # fmt: skip
_GEMMA_MISSING: dict[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA_GGUF = frozenset(
    ("attention.sliding_window", "attention.sliding_window_pattern", "final_logit_softcapping")
)
# The code that these name is what transformers has of its own.
_PHI_CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}

FAMILIES = (
    Family(
        "Llama 2, 3.x",
        "llama",
        "llama",
        ("LlamaForCausalLM", "LLaMAForCausalLM"),
        bias_fields={"attention_bias": _ATTENTION, "mlp_bias": ("gate", "up", "down")},
        interleaved=True,
        saying=Saying(
            served=frozenset(("attention_bias", "mlp_bias")),
            gguf=frozenset(("attention.sliding_window",)),
        ),
    ),
    Family(
        "Mistral",
        "llama",
        "mistral",
        ("MistralForCausalLM",),
        interleaved=True,
        saying=Saying(served=frozenset(("sliding_window",)), missing={"sliding_window": 4096}),
    ),
    Family(
        "Qwen 2, 2.5",
        "qwen2",
        "qwen2",
        ("Qwen2ForCausalLM",),
        biases=("query", "key", "value"),
        windows="late",
        saying=_QWEN,
    ),
    Family(
        "Qwen 3",
        "qwen3",
        "qwen3",
        ("Qwen3ForCausalLM",),
        names=_HEAD_NORMS,
        bias_fields={"attention_bias": _ATTENTION},
        traits=Traits(head_norms=True),
        windows="late",
        saying=Saying(
            served=_QWEN.served | {"attention_bias"},
            neutral=_QWEN.neutral,
            missing={**_QWEN.missing, "head_dim": 128},
        ),
    ),
    Family(
        "Phi 3, 4",
        "phi3",
        "phi3",
        ("Phi3ForCausalLM",),
        names=_FUSED,
        traits=Traits(fused=True),
        saying=Saying(
            served=frozenset(("partial_rotary_factor", "sliding_window")),
            neutral={
                "auto_map": (
                    {},
                    _PHI_CODE,
                    {**_PHI_CODE, "AutoTokenizer": "Xenova/gpt-4o"},
                ),
                "attention_bias": (False,),
                "full_attn_mod": (1,),
                "interpolate_factor": (1,),
                "lm_head_bias": (False,),
                "mlp_bias": (False,),
            },
            gguf=frozenset(("attention.sliding_window", "rope.scaling.attn_factor")),
            rope=("default", "longrope", "su"),
        ),
    ),
    Family(
        "Gemma 2",
        "gemma2",
        "gemma2",
        ("Gemma2ForCausalLM",),
        names=_AFTER_NORMS,
        bias_fields={"attention_bias": _ATTENTION},
        activation="gelu_tanh",
        traits=Traits(after_norms=True, norm_offset=1.0, attention_cap=50.0, logit_cap=30.0),
        windows="period",
        period=2,
        root_scale=True,
        wide_layers=46,
        saying=Saying(
            served=_GEMMA | {"attn_logit_softcapping"},
            harmless=frozenset(("cache_implementation", "hidden_act", "sliding_window_size")),
            missing={
                **_GEMMA_MISSING,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
            gguf=_GEMMA_GGUF | {"attn_logit_softcapping"},
        ),
    ),
    Family(
        "Gemma 3",
        "gemma3",
        "gemma3_text",
        ("Gemma3ForCausalLM",),
        names={**_HEAD_NORMS, **_AFTER_NORMS},
        bias_fields={"attention_bias": _ATTENTION},
        activation="gelu_tanh",
        traits=Traits(head_norms=True, after_norms=True, norm_offset=1.0),
        windows="period",
        period=6,
        local_base=10000.0,
        root_scale=True,
        wide_layers=62,
        saying=Saying(
            served=_GEMMA | {"rope_local_base_freq", "sliding_window_pattern"},
            harmless=frozenset(("_sliding_window_pattern", "cache_implementation", "hidden_act")),
            missing={**_GEMMA_MISSING, "rope_theta": 1e6},
            gguf=_GEMMA_GGUF | {"rope.freq_base_swa"},
        ),
    ),
)
"""All that are served. The first one of an architecture is that of its GGUF files."""


def of_architecture(name: object) -> Family | None:
    """The family of GGUF files with this ``general.architecture``; None for none."""
    return next((each for each in FAMILIES if each.architecture == name), None)


def of_model_type(name: object) -> Family | None:
    """The family of folders with this ``model_type``; None for none."""
    return next((each for each in FAMILIES if each.model_type == name), None)
