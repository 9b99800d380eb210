"""What a request of OpenAI's API asks for, and what is wrong with one."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, cast

from llm.engine import Sampling

__all__ = ["Asked", "Refused", "read"]

_SEEDS = (1 << 63) - 1
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_STOPS = 4
_COLDEST = 1e-4
"""Below this temperature the likeliest token is meant."""

_UNSERVED = {
    "n": ("1",),
    "best_of": ("1",),
    "tools": ("[]",),
    "tool_choice": ('"none"', '"auto"'),
    "functions": ("[]",),
    "function_call": ('"none"', '"auto"'),
    "logprobs": ("false",),
    "top_logprobs": ("0",),
    "logit_bias": ("{}",),
    "frequency_penalty": ("0", "0.0"),
    "presence_penalty": ("0", "0.0"),
    "response_format": ('{"type": "text"}',),
    "modalities": ('["text"]',),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": ("false",),
    "suffix": ('""',),
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
    for name, harmless in _UNSERVED.items():
        value = fields.get(name)
        if value is not None and json.dumps(value) not in harmless:
            may = f"; it may be {' or '.join(harmless)}" if harmless else ""
            raise Refused(f"{name} is not served here{may}", name, code="unsupported_parameter")
    name = "messages" if chat else "prompt"
    if fields.get(name) is None:
        raise Refused(f"expected {name}", name)
    options = _dict(fields.get("stream_options"))
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
    content = message.get("content")
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
