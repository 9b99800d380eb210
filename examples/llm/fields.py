"""What a model's files may say of it: what is served, what changes nothing, and what is refused.

A field that is in none of these tables may change the arithmetic, so it is refused by name. Null
is a field that is not there. The tables here are of all families; `llm.families` has what is
different in one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from llm.families import Family

__all__ = ["ModelError", "check_gguf", "check_json", "equal", "positive"]

_LARGEST = 1e30


class ModelError(Exception):
    """A model that is not there, or of no family that is served; the text says what is wrong."""


# config.json -------------------------------------------------------------------------------

_SERVED = frozenset(
    (
        "eos_token_id", "head_dim", "hidden_act", "hidden_size",
        "intermediate_size", "max_position_embeddings", "model_type",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
        "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings", "vocab_size",
    )
)  # fmt: skip
_HARMLESS = frozenset(
    (
        # Where it comes from, and what read or wrote it.
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
        "_flash_attn_2_enabled", "_name_or_path", "attn_implementation", "dtype",
        "finetuning_task", "is_llama_config", "max_sequence_length", "name_or_path",
        "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript",
        "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
        "use_bfloat16",
        # Of training, of other heads, of memory, of what is returned.
        "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
        "chunk_size_feed_forward", "classifier_dropout", "embd_pdrop", "gradient_checkpointing",
        "hidden_dropout", "hidden_dropout_prob", "id2label", "initializer_range", "is_decoder",
        "label2id", "neftune_noise_alpha", "num_labels", "original_max_position_embeddings",
        "output_attentions", "output_hidden_states", "output_scores", "pretraining_tp",
        "problem_type", "resid_pdrop", "return_dict", "return_dict_in_generate",
        "tf_legacy_loss", "use_cache", "use_flash_attn",
        # Tokens: the tokenizer's own files have them.
        "bos_token_id", "decoder_start_token_id", "pad_token_id", "prefix", "sep_token_id",
        "unk_token_id",
        # How tokens are chosen: a request says that.
        "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
        "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
        "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "remove_invalid_values", "repetition_penalty",
        "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    )
)  # fmt: skip
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "auto_map": ({},),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "is_causal": (True,),
    "layer_types": (),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "quantization_config": ({},),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "rotary_pct": (1,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
_ATTENTION = "full_attention"


def check_json(path: Path, said: Mapping[str, Any], family: Family) -> None:
    """Checks the fields of a ``config.json``.

    Args:
        path: The file.
        said: What it says.
        family: That of the model.

    Raises:
        ModelError: One of them is not served.
    """
    of_family = family.saying
    passed = _SERVED | _HARMLESS | of_family.served | of_family.harmless
    classes = tuple([each] for each in family.classes)
    neutral = {**_NEUTRAL, "architectures": classes, **of_family.neutral}
    for name, value in said.items():
        if name in passed:
            continue
        if name == "layer_types" and isinstance(value, list):
            layers = cast("list[Any]", value)
            if any(each != _ATTENTION for each in layers):
                raise ModelError(f"{_has(path, name, layers)}; expected {_ATTENTION!r} of each.")
            continue
        _check(path, name, value, neutral)


# The metadata of a GGUF file ---------------------------------------------------------------

_SERVED_GGUF = frozenset(
    (
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.layer_norm_rms_epsilon", "attention.value_length", "block_count",
        "context_length", "embedding_length", "feed_forward_length", "rope.dimension_count",
        "rope.freq_base", "rope.scale_linear", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.type", "vocab_size",
    )
)  # fmt: skip
"""Metadata of all architectures, whose names stand before them."""
_SERVED_BESIDE = frozenset(
    (
        "general.architecture",
        "tokenizer.chat_template", "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.merges", "tokenizer.ggml.model",
        "tokenizer.ggml.pre", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
        "tokenizer.ggml.tokens",
    )
)  # fmt: skip
# Of scalings that are refused, and of how weights were stored before they were converted.
_HARMLESS_GGUF = frozenset(("rope.scaling.finetuned", "tensor_data_layout"))
_HARMLESS_BESIDE = frozenset(
    (
        "split.tensors.count",
        "tokenizer.chat_templates", "tokenizer.huggingface.json",
        "tokenizer.ggml.cls_token_id", "tokenizer.ggml.mask_token_id",
        "tokenizer.ggml.middle_token_id", "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.prefix_token_id", "tokenizer.ggml.separator_token_id",
        "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.suffix_token_id",
        "tokenizer.ggml.token_type_count", "tokenizer.ggml.unknown_token_id",
    )
)  # fmt: skip
_HARMLESS_BEGINNINGS = (
    "GGUF.",
    "general.",
    "quantize.",
    "tokenizer.chat_template.",
    "tokenizer.ggml.fim_",
)
_NEUTRAL_GGUF: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
}
_NEUTRAL_BESIDE: dict[str, tuple[object, ...]] = {
    "general.type": ("model",),
    "split.count": (0, 1),
    "split.no": (0,),
    "tokenizer.ggml.add_eos_token": (False,),
    "tokenizer.ggml.add_sep_token": (False,),
    "tokenizer.ggml.precompiled_charsmap": ([],),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
}


def check_gguf(path: Path, said: Mapping[str, Any], family: Family) -> None:
    """Checks the metadata of a GGUF file.

    Args:
        path: The file.
        said: Its metadata.
        family: That of the model.

    Raises:
        ModelError: Some of them are not served.
    """
    before = f"{family.architecture}."
    passed = _SERVED_GGUF | _HARMLESS_GGUF | family.saying.gguf
    neutral = {f"{before}{name}": values for name, values in _NEUTRAL_GGUF.items()}
    neutral |= _NEUTRAL_BESIDE
    for name, value in said.items():
        if name in _SERVED_BESIDE or name in _HARMLESS_BESIDE:
            continue
        if name.startswith(before) and name.removeprefix(before) in passed:
            continue
        if name not in neutral and name.startswith(_HARMLESS_BEGINNINGS):
            continue
        _check(path, name, value, neutral)


# Both --------------------------------------------------------------------------------------


def equal(value: object, others: Iterable[object]) -> bool:
    """Whether a value is one of others; True and 1 differ, 1 and 1.0 do not."""
    flag = isinstance(value, bool)
    return any(value == other and flag == isinstance(other, bool) for other in others)


def positive(path: Path, name: str, value: object) -> float:
    """A number of a model's files that has to be above 0.

    Raises:
        ModelError: It is none.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if not 0 < number < _LARGEST:
        raise ModelError(f"{path} has {name} = {value!r:.80}; expected a number above 0.")
    return float(number)


def _check(path: Path, name: str, value: object, neutral: Mapping[str, tuple[object, ...]]) -> None:
    if value is None or equal(value, neutral.get(name, ())):
        return
    if name not in neutral:
        raise ModelError(f"{path} has {name} = {value!r:.80}, which this example does not know.")
    may = " or ".join(map(repr, neutral[name])) or "none"
    raise ModelError(f"{_has(path, name, value)}; expected {may}.")


def _has(path: Path, name: str, value: object) -> str:
    return f"{path} has {name} = {value!r:.80}, which this example does not compute"
