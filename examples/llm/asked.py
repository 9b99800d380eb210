"""What a request of OpenAI's API asks for, and what is wrong with one."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from typing import Any, cast

from llm.choosing import Sampling
from llm.fields import equal
from llm.unserved import NOTHING, UNSERVED

__all__ = [
    "Asked",
    "Prompt",
    "Refused",
    "as_list",
    "as_text",
    "as_tokens",
    "model_of",
    "read",
    "read_body",
]

_SEEDS = (1 << 63) - 1
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_STOPS = 4
_MOST_CHOICES = 128
_MOST_LOGPROBS = 20
_MOST_TOKENS = (1 << 31) - 1
"""No model has so many, and no answer."""
_COLDEST = 1e-4
"""Below this temperature the likeliest token is meant."""


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


Prompt = str | list[int] | list[dict[str, str]]
"""A text, tokens, or the messages of a conversation with ``role`` and ``content``."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        model: The model's name; None for whichever there is.
        prompts: One prompt, or several texts or lists of tokens.
        max_tokens: The most tokens of an answer; None for what the service thinks fit.
        sampling: How tokens are chosen.
        stop: Texts that end an answer.
        choices: How many answers there are to each prompt.
        echo: Whether an answer begins with its prompt.
        stream: Whether it is sent piece by piece.
        with_usage: Whether a stream ends with the numbers of tokens.
        usage_so_far: Whether each piece has them.
    """

    model: str | None
    prompts: list[Prompt]
    max_tokens: int | None
    sampling: Sampling
    stop: list[str]
    choices: int = 1
    echo: bool = False
    stream: bool = False
    with_usage: bool = False
    usage_so_far: bool = False

    def sampling_of(self, choice: int) -> Sampling:
        """That of one of the answers to a prompt, each of which has its own seed.

        The first one has the seed of the request, so that it is what is answered alone.
        """
        if not choice:
            return self.sampling
        given = self.sampling.seed.to_bytes(8, "big") + choice.to_bytes(4, "big")
        derived = int.from_bytes(hashlib.blake2b(given, digest_size=8).digest(), "big")
        # The prompt's tokens are told once.
        return replace(self.sampling, seed=derived & _SEEDS, scores_prompt=False)


def read_body(body: bytes) -> dict[str, Any]:
    """The fields of a request.

    Raises:
        Refused: It is no JSON object.
    """
    try:
        fields = _dict(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if fields is None:
        raise Refused("expected a JSON object")
    return fields


def read(body: bytes, *, chat: bool) -> Asked:
    """Reads a request.

    Args:
        body: JSON.
        chat: Whether it continues a conversation, in ``messages``; else a ``prompt``.

    Raises:
        Refused: It is not one, or asks for what is not served.
    """
    fields = read_body(body)
    other = {"prompt" if chat else "messages": NOTHING}
    other |= {"echo": (False,)} if chat else {"top_logprobs": (0,)}
    for name, neutral in {**UNSERVED, **other, "add_special_tokens": (not chat,)}.items():
        _check_unserved(fields, name, neutral)
    name = "messages" if chat else "prompt"
    if fields.get(name) is None:
        raise Refused(f"expected {name}", name)
    options = _options(fields)
    stream = _flag(fields, "stream")
    if options is not None and not stream:
        raise Refused("stream_options are for streams: set stream to true", "stream_options")
    echo = _flag(fields, "echo")
    limit = _limit(fields, least=0 if echo else 1)
    sampling = _sampling(fields, _told(fields, chat=chat), echo=echo)
    if limit is not None and sampling.min_tokens > limit:
        raise Refused(
            f"min_tokens: expected at most max_tokens, {limit}, got {sampling.min_tokens}",
            "min_tokens",
        )
    return Asked(
        model_of(fields),
        [_messages(fields[name])] if chat else _prompts(fields[name]),
        limit,
        sampling,
        _stops(fields.get("stop")),
        _integer(fields, "n", (1, _MOST_CHOICES), 1),
        echo,
        stream,
        _flag(options or {}, "include_usage"),
        _flag(options or {}, "continuous_usage_stats"),
    )


def model_of(fields: dict[str, Any]) -> str | None:
    """The name of the model that is asked; None where there is none.

    Raises:
        Refused: It is no text.
    """
    model = fields.get("model")
    return None if model is None else as_text(model, "model")


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
    return options


def _dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any] | None:
    """A list; None for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def as_text(value: Any, name: str) -> str:
    """A text.

    Raises:
        Refused: The value of the field `name` is none.
    """
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


def _number(
    fields: dict[str, Any], name: str, bounds: tuple[float, float], default: float
) -> float:
    value, (least, most) = fields.get(name), bounds
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        expected = f"a number from {least:g} to {most:g}"
        raise Refused(f"{name}: expected {expected}, got {_shown(value)}", name)
    return float(value)


def _integer(fields: dict[str, Any], name: str, bounds: tuple[int, int], default: int) -> int:
    value, (least, most) = fields.get(name), bounds
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        end = "on" if most == _SEEDS else f"to {most}"
        raise Refused(f"{name}: expected an integer from {least} {end}, got {_shown(value)}", name)
    return value


def _limit(fields: dict[str, Any], least: int) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if fields.get(name) is not None:
            return _integer(fields, name, (least, _SEEDS), 1)
    return None


def _told(fields: dict[str, Any], *, chat: bool) -> int | None:
    """How many of the likeliest tokens are told with each one; None to tell nothing."""
    if not chat:
        if fields.get("logprobs") is False:  # as in the form of conversations
            return None
        count = _integer(fields, "logprobs", (0, _MOST_LOGPROBS), 0)
        return None if fields.get("logprobs") is None else count
    count = _integer(fields, "top_logprobs", (0, _MOST_LOGPROBS), 0)
    if _flag(fields, "logprobs"):
        return count
    if count:
        raise Refused("top_logprobs are told with logprobs: set logprobs to true", "top_logprobs")
    return None


def _sampling(fields: dict[str, Any], told: int | None, *, echo: bool) -> Sampling:
    temperature = _number(fields, "temperature", (0, 2), 1)
    seed = fields.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    elif isinstance(seed, bool) or not isinstance(seed, int):
        raise Refused(f"seed: expected an integer, got {_shown(seed)}", "seed")
    ends = as_list(fields.get("stop_token_ids") or [])
    if ends is None or not all(_is_token(end) for end in ends):
        name = "stop_token_ids"
        raise Refused(f"{name}: expected tokens, got {_shown(fields[name])}", name)
    return Sampling(
        0.0 if temperature < _COLDEST else temperature,
        _number(fields, "top_p", (0, 1), 1),
        seed & _SEEDS,
        top_k=max(0, _integer(fields, "top_k", (-1, _MOST_TOKENS), 0)),
        min_p=_number(fields, "min_p", (0, 1), 0),
        presence=_number(fields, "presence_penalty", (-2, 2), 0),
        frequency=_number(fields, "frequency_penalty", (-2, 2), 0),
        repetition=_number(fields, "repetition_penalty", (0.01, 100), 1),
        bias=_bias(fields.get("logit_bias")),
        min_tokens=_integer(fields, "min_tokens", (0, _MOST_TOKENS), 0),
        ends=tuple(ends),
        ignore_eos=_flag(fields, "ignore_eos"),
        logprobs=told,
        scores_prompt=echo and told is not None,
    )


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    """What is added to the logits of tokens, from an object whose keys are tokens."""
    if value is None or equal(value, NOTHING):
        return ()
    fields = _dict(value)
    if fields is None:
        raise Refused(f"logit_bias: expected an object, got {_shown(value)}", "logit_bias")
    found: dict[int, float] = {}
    for key, more in fields.items():
        if not (key.isascii() and key.isdigit()) or len(key) > len(str(_MOST_TOKENS)):
            raise Refused(f"logit_bias: expected tokens as keys, got {key!r:.40}", "logit_bias")
        found[int(key)] = _number({"logit_bias": more}, "logit_bias", (-100, 100), 0)
    return tuple(sorted(found.items()))


def _stops(value: Any) -> list[str]:
    several = as_list(value)
    each = [] if value is None else [value] if several is None else several
    if len(each) > _MOST_STOPS:
        raise Refused(f"stop: expected at most {_MOST_STOPS} strings, got {len(each)}", "stop")
    return [as_text(one, "stop") for one in each]


def _prompts(value: Any) -> list[Prompt]:
    """One text, the tokens of one, or a list of these."""
    several = as_list(value)
    if several and all(isinstance(each, str | list) for each in several):
        return [_prompt(each) for each in several]
    return [_prompt(value)]


def _prompt(value: Any) -> str | list[int]:
    return as_text(value, "prompt") if as_list(value) is None else as_tokens(value, "prompt")


def as_tokens(value: Any, name: str) -> list[int]:
    """A list of tokens.

    Raises:
        Refused: The value of the field `name` is none.
    """
    tokens = as_list(value)
    if tokens is None or not all(_is_token(token) for token in tokens):
        raise Refused(f"{name}: expected texts, or lists of tokens", name)
    return tokens


def _messages(value: Any) -> list[dict[str, str]]:
    each = as_list(value)
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
    parts = [content] if (several := as_list(content)) is None else several
    return {"role": _ROLES[role], "content": "".join(_part(part, where) for part in parts)}


def _part(value: Any, where: str) -> str:
    part = _dict(value)
    if part is None:
        return as_text(value, f"{where}.content")
    if part.get("type") != "text":
        kind = _shown(part.get("type"))
        raise Refused(f"{where}: only parts of type text are served, got {kind}", where)
    return as_text(part.get("text"), f"{where}.content")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004  (a glance)
