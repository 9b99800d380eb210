"""What a request of OpenAI's API asks for, and what is wrong with one."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, cast

from llm.engine import Sampling
from llm.fields import equal

__all__ = ["Asked", "Refused", "read"]

_SEEDS = (1 << 63) - 1
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_STOPS = 4
_COLDEST = 1e-4
"""Below this temperature the likeliest token is meant."""

_OFF, _ZERO, _ONE = (False,), (0,), (1,)
_NOTHING: tuple[object, ...] = ("", [], {})
_UNSERVED: dict[str, tuple[object, ...]] = {
    # OpenAI's.
    "audio": (),
    "best_of": _ONE,
    "echo": _OFF,
    "frequency_penalty": _ZERO,
    "function_call": ("none", "auto"),
    "functions": _NOTHING,
    "logit_bias": _NOTHING,
    "logprobs": _OFF,
    "modalities": (["text"],),
    "n": _ONE,
    "prediction": (),
    "presence_penalty": _ZERO,
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": _NOTHING,
    "tool_choice": ("none", "auto"),
    "tools": _NOTHING,
    "top_logprobs": _ZERO,
    "verbosity": ("medium",),
    "web_search_options": (),
    # How tokens are chosen, by the names of vLLM, SGLang, TGI, transformers and llama.cpp.
    "allowed_token_ids": _NOTHING,
    "bad_words": _NOTHING,
    "bad_words_ids": _NOTHING,
    "begin_suppress_tokens": _NOTHING,
    "custom_logit_processor": _NOTHING,
    "diversity_penalty": _ZERO,
    "do_sample": (True,),
    "dry_multiplier": _ZERO,
    "dynamic_temperature": _OFF,
    "dynatemp_range": _ZERO,
    "early_stopping": _OFF,
    "encoder_no_repeat_ngram_size": _ZERO,
    "encoder_repetition_penalty": _ONE,
    "epsilon_cutoff": _ZERO,
    "eta_cutoff": _ZERO,
    "exponential_decay_length_penalty": _NOTHING,
    "force_words_ids": _NOTHING,
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": _ONE,
    "length_penalty": _ONE,
    "logits_processors": _NOTHING,
    "lora": _NOTHING,
    "lora_path": _NOTHING,
    "lora_request": _NOTHING,
    "min_keep": _ZERO,
    "min_p": _ZERO,
    "mirostat": _ZERO,
    "mirostat_mode": _ZERO,
    "no_repeat_ngram_size": _ZERO,
    "num_beam_groups": _ONE,
    "num_beams": _ONE,
    "num_return_sequences": _ONE,
    "penalty_alpha": _ZERO,
    "penalty_prompt": _NOTHING,
    "renormalize_logits": _OFF,
    "repeat_penalty": _ONE,
    "repetition_penalty": _ONE,
    "samplers": _NOTHING,
    "sequence_bias": _NOTHING,
    "smoothing_factor": _ZERO,
    "suppress_tokens": _NOTHING,
    "temperature_last": _OFF,
    "tfs": _ONE,
    "tfs_z": _ONE,
    "top_a": _ZERO,
    "top_k": (-1, 0),
    "top_n_sigma": (-1, 0),
    "typical": _ONE,
    "typical_p": _ONE,
    "use_beam_search": _OFF,
    "watermark": _OFF,
    "xtc_probability": _ZERO,
    # Where an answer ends, and how long it is.
    "eos_token_id": _NOTHING,
    "ignore_eos": _OFF,
    "include_stop_str_in_output": _OFF,
    "max_length": (),
    "max_new_tokens": (),
    "max_time": (),
    "min_length": _ZERO,
    "min_new_tokens": _ZERO,
    "min_tokens": _ZERO,
    "n_indent": _ZERO,
    "n_predict": (-1,),
    "no_stop_trim": _OFF,
    "num_predict": (-1,),
    "stop_regex": _NOTHING,
    "stop_sequences": _NOTHING,
    "stop_strings": _NOTHING,
    "stop_token_ids": _NOTHING,
    "t_max_predict_ms": _ZERO,
    "thinking_token_budget": (),
    # What an answer may look like.
    "ebnf": _NOTHING,
    "format": _NOTHING,
    "grammar": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_decoding_backend": _NOTHING,
    "guided_grammar": _NOTHING,
    "guided_json": _NOTHING,
    "guided_json_object": _OFF,
    "guided_regex": _NOTHING,
    "guided_whitespace_pattern": _NOTHING,
    "json_schema": _NOTHING,
    "regex": _NOTHING,
    "structural_tag": _NOTHING,
    "structured_outputs": _NOTHING,
    # What the prompt is made of.
    "add_generation_prompt": (True,),
    "chat_template": _NOTHING,
    "chat_template_kwargs": _NOTHING,
    "continue_final_message": _OFF,
    "documents": _NOTHING,
    "enable_thinking": _OFF,
    "image_data": _NOTHING,
    "images": _NOTHING,
    "input_embeds": _NOTHING,
    "input_extra": _NOTHING,
    "input_prefix": _NOTHING,
    "input_suffix": _NOTHING,
    "mm_processor_kwargs": _NOTHING,
    "n_keep": _ZERO,
    "options": _NOTHING,
    "parameters": _NOTHING,
    "prompt_embeds": _NOTHING,
    "system": _NOTHING,
    "template": _NOTHING,
    "think": _OFF,
    "thinking": _NOTHING,
    "truncate": (),
    "truncate_prompt_tokens": (),
    # What is said beside the text.
    "decoder_input_details": _OFF,
    "details": _OFF,
    "n_probs": _ZERO,
    "post_sampling_probs": _OFF,
    "prompt_logprobs": (),
    "response_fields": _NOTHING,
    "return_full_text": _OFF,
    "return_hidden_states": _OFF,
    "return_progress": _OFF,
    "return_token_ids": _OFF,
    "return_tokens": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (True,),
    "timings_per_token": _OFF,
    "top_n_tokens": _ZERO,
    "vllm_xargs": _NOTHING,
}
"""Fields that would change the answer and are not served, with what they may be all the same."""


class Refused(Exception):
    """A request that is not served; the text says why.

    Attributes:
        status: Of the response.
        param: The field that is wrong.
        code: What programs compare.
        retry_after: After how many seconds it may be served; None for never.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        model: The model's name; None for whichever there is.
        prompt: A text, tokens, or the messages of a conversation with ``role`` and ``content``.
        max_tokens: The most tokens of the answer; None for what the service thinks fit.
        sampling: How tokens are chosen.
        stop: Texts that end the answer.
        stream: Whether it is sent piece by piece.
        with_usage: Whether a stream ends with the numbers of tokens.
    """

    model: str | None
    prompt: str | list[int] | list[dict[str, str]]
    max_tokens: int | None
    sampling: Sampling
    stop: list[str]
    stream: bool
    with_usage: bool


def read(body: bytes, *, chat: bool) -> Asked:
    """Reads a request.

    Args:
        body: JSON.
        chat: Whether it continues a conversation, in ``messages``; else a ``prompt``.

    Raises:
        Refused: It is not one, or asks for what is not served.
    """
    try:
        fields = _dict(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if fields is None:
        raise Refused("expected a JSON object")
    other = {"prompt" if chat else "messages": _NOTHING}
    for name, neutral in {**_UNSERVED, **other, "add_special_tokens": (not chat,)}.items():
        _check_unserved(fields, name, neutral)
    name = "messages" if chat else "prompt"
    if fields.get(name) is None:
        raise Refused(f"expected {name}", name)
    options = _options(fields)
    stream = _flag(fields, "stream")
    if options is not None and not stream:
        raise Refused("stream_options are for streams: set stream to true", "stream_options")
    model = fields.get("model")
    return Asked(
        None if model is None else _text(model, "model"),
        _messages(fields[name]) if chat else _prompt(fields[name]),
        _limit(fields),
        _sampling(fields),
        _stops(fields.get("stop")),
        stream,
        _flag(options or {}, "include_usage"),
    )


def _check_unserved(fields: dict[str, Any], name: str, neutral: tuple[object, ...]) -> None:
    value = fields.get(name)
    if value is None or equal(value, neutral):
        return
    may = " or ".join(map(json.dumps, neutral))
    raise Refused(
        f"{name} is not served here{f'; it may be {may}' if may else ''}",
        name,
        code="unsupported_parameter",
    )


def _options(fields: dict[str, Any]) -> dict[str, Any] | None:
    found = fields.get("stream_options")
    options = _dict(found)
    if found is not None and options is None:
        raise Refused(f"stream_options: expected an object, got {_shown(found)}", "stream_options")
    if options and options.get("continuous_usage_stats"):
        name = "stream_options.continuous_usage_stats"
        raise Refused(f"{name} is not served here; it may be false", name)
    return options


def _dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{name}: expected a string, got {_shown(value)}", name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{name}: half of a surrogate pair is no text", name) from None
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise Refused(f"{name}: expected true or false, got {_shown(value)}", name)
    return bool(value)


def _number(fields: dict[str, Any], name: str, most: float, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Refused(f"{name}: expected a number from 0 to {most:g}, got {_shown(value)}", name)
    return float(value)


def _limit(fields: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(f"{name}: expected an integer from 1 on, got {_shown(value)}", name)
        return value
    return None


def _sampling(fields: dict[str, Any]) -> Sampling:
    temperature = _number(fields, "temperature", 2, 1)
    top_p = _number(fields, "top_p", 1, 1)
    seed = fields.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    elif isinstance(seed, bool) or not isinstance(seed, int):
        raise Refused(f"seed: expected an integer, got {_shown(seed)}", "seed")
    return Sampling(0.0 if temperature < _COLDEST else temperature, top_p, seed & _SEEDS)


def _stops(value: Any) -> list[str]:
    several = _list(value)
    each = [] if value is None else [value] if several is None else several
    if len(each) > _MOST_STOPS:
        raise Refused(f"stop: expected at most {_MOST_STOPS} strings, got {len(each)}", "stop")
    return [_text(one, "stop") for one in each]


def _prompt(value: Any) -> str | list[int]:
    tokens = _list(value)
    if tokens is not None and len(tokens) == 1 and isinstance(tokens[0], str | list):
        return _prompt(tokens[0])
    if tokens is None:
        return _text(value, "prompt")
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise Refused("prompt: expected one text, or the tokens of one", "prompt")
    return tokens


def _messages(value: Any) -> list[dict[str, str]]:
    each = _list(value)
    if not each:
        raise Refused("messages: expected a list of one message or more", "messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(each)]


def _message(value: Any, where: str) -> dict[str, str]:
    message = _dict(value)
    if message is None:
        raise Refused(f"{where}: expected an object, got {_shown(value)}", where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Refused(f"{where}: expected the role {', '.join(_ROLES)}; got {_shown(role)}", where)
    if message.get("tool_calls") or message.get("function_call"):
        raise Refused(f"{where}: tools are not served here", where, code="unsupported_parameter")
    for name in ("audio", "prefix"):
        if message.get(name):
            raise Refused(f"{where}: {name} is not served", where, code="unsupported_parameter")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""  # as in OpenAI's form, where a turn said nothing
    parts = [content] if (several := _list(content)) is None else several
    return {"role": _ROLES[role], "content": "".join(_part(part, where) for part in parts)}


def _part(value: Any, where: str) -> str:
    part = _dict(value)
    if part is None:
        return _text(value, f"{where}.content")
    if part.get("type") != "text":
        kind = _shown(part.get("type"))
        raise Refused(f"{where}: only parts of type text are served, got {kind}", where)
    return _text(part.get("text"), f"{where}.content")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004  (a glance)
