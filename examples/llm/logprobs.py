"""How likely tokens were, in the two forms of OpenAI's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llm.choosing import Note
    from llm.text import Text

__all__ = ["TextForm", "Told", "chat_form"]

Told = tuple[int, "Note | None"]
"""A token, and how likely it was; None for the first one of a prompt."""


def chat_form(text: Text, told: Iterable[Told]) -> dict[str, Any]:
    """``logprobs`` of a conversation's answer.

    Args:
        text: Knows the tokens.
        told: The tokens, each with its note.
    """
    content: list[dict[str, Any]] = []
    for token, noted in told:
        pairs = [(token, 0.0)] if noted is None else _pairs(noted)
        first, *likely = [_entry(text, *pair) for pair in pairs]
        content.append({**first, "top_logprobs": likely})
    return {"content": content, "refusal": None}


class TextForm:
    """``logprobs`` of a text's continuation, piece by piece.

    Args:
        text: Knows the tokens.
        continues: Whether it stands behind another text; see `Text.stream`.
    """

    def __init__(self, text: Text, *, continues: bool) -> None:
        self._text = text
        self._stream = text.stream(continues=continues)
        self._offset = 0

    def of(self, told: Iterable[Told]) -> dict[str, Any]:
        """What follows, with where each token begins in the text."""
        form: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token, noted in told:
            word, _ = _spelled(self._text, token)
            pairs = [] if noted is None else _pairs(noted)
            # Two tokens may be spelled alike: the likelier one counts.
            likely: dict[str, float] = {}
            for other, logprob in [*pairs[1:], *pairs[:1]]:
                likely.setdefault(_spelled(self._text, other)[0], logprob)
            form["tokens"].append(word)
            form["token_logprobs"].append(pairs[0][1] if pairs else None)
            form["top_logprobs"].append(likely if pairs else None)
            form["text_offset"].append(self._offset)
            self._offset += len(self._stream.feed(token))
        return form


def _pairs(noted: Note) -> list[tuple[int, float]]:
    tokens, logprobs = noted
    return list(zip(tokens.tolist(), logprobs.tolist(), strict=True))


def _entry(text: Text, token: int, logprob: float) -> dict[str, Any]:
    word, spelled = _spelled(text, token)
    return {"token": word, "logprob": logprob, "bytes": list(spelled)}


def _spelled(text: Text, token: int) -> tuple[str, bytes]:
    """A token as it is shown: its text, the name of a mark, or the bytes of a part of a letter."""
    if mark := text.mark_of(token):
        return mark, mark.encode()
    spelled = text.bytes_of(token)
    try:
        return spelled.decode(), spelled
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled), spelled
