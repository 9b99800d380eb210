"""Text to tokens and back, and conversations to text.

The tokenizer is the model's own (`llm.tokenizer`), and so is the template of a conversation, which
is in Jinja's language, and rendered in Jinja's sandbox.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

import jinja2
import jinja2.sandbox

from llm.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm.config import Checkpoint

__all__ = ["Stream", "TemplateError", "Text"]


class TemplateError(ValueError):
    """A conversation that the model's template refuses."""


class Text:
    """The tokenizer and the template of a model.

    Args:
        checkpoint: The model.

    Attributes:
        ends: The tokens that end an answer.

    Raises:
        ModelError: It has none, or one of another kind.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        found = open_tokenizer(checkpoint)
        self._tokenizer, self._decoder = found.tokenizer, found.decoder
        self._continuing = found.continuing
        self._vocabulary = [
            self._tokenizer.id_to_token(n) or "" for n in range(checkpoint.config.vocabulary)
        ]
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token for token, each in self._added.items() if each.special}
        # Longer ones first: one may begin like another.
        marks = sorted((self._vocabulary[token] for token in self._special), key=len, reverse=True)
        self._written = re.compile("|".join(re.escape(mark) for mark in marks if mark) or "(?!)")
        self._marks = {name: self._vocabulary[token] for name, token in found.marks.items()}
        known = (self._tokenizer.token_to_id(word) for word in _ENDS)
        self.ends = {*found.ends, *known} - {None}
        self._begin, self._begin_turns = found.begin, found.begin_turns
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse  # pyright: ignore[reportArgumentType]
        template = found.template
        self._template = None if template is None else environment.from_string(template)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that is to be continued; marks in it are read as marks."""
        return _begun_with(self._begin, self._encode_part(text))

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins.

        Args:
            messages: Each with ``role`` and ``content``. Marks in a content are plain text.

        Raises:
            TemplateError: The model's template refuses them, or it has none.
        """
        if self._template is None:
            raise TemplateError("this model has no template for conversations")
        # A mark that somebody writes must not end their turn: it is cut by what no template has.
        safe = [{**message, "content": self._defuse(message["content"])} for message in messages]
        try:
            text = self._template.render(
                messages=safe,
                add_generation_prompt=True,
                **{f"{name}_token": mark for name, mark in self._marks.items()},
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's template refuses the conversation: {error}") from None
        first, *parts = text.split(_PLAIN)
        ids = self._encode_part(first)
        for number, part in enumerate(parts):
            # What was between two signs is somebody's mark, spelled out.
            ids += self._encode_rest(part) if number % 2 else self._spell(part)
        return _begun_with(self._begin_turns, ids)

    def _encode_part(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _encode_rest(self, text: str) -> list[int]:
        """What follows other text: no space is set before it, as before a text."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        marks = (at for at, token in enumerate(found.ids) if token in self._added)
        cut = next((found.offsets[at][0] for at in marks), len(text))
        ids: list[int] = self._continuing.encode(text[:cut], add_special_tokens=False).ids
        return ids + self._encode_part(text[cut:])

    def _defuse(self, text: str) -> str:
        return self._written.sub(rf"{_PLAIN}\g<0>{_PLAIN}", text.replace(_PLAIN, ""))

    def _spell(self, mark: str) -> list[int]:
        """A mark as plain characters."""
        return [
            token
            for letter in mark
            for token in self._continuing.encode(letter, add_special_tokens=False).ids
        ]

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; nothing for marks."""
        if token in self._special or token >= len(self._vocabulary):
            return b""
        return self._decoder.bytes_of(self._vocabulary[token])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; U+FFFD for what is no UTF-8."""
        stream = self.stream()
        return "".join(map(stream.feed, ids)) + stream.end()

    def stream(
        self, stop: Sequence[str] = (), *, continues: bool = False, least: int = 0
    ) -> Stream:
        """Decodes an answer as it comes.

        Args:
            stop: See `Stream`.
            continues: Whether it stands behind another text. Where a tokenizer sets a space before
                each text, that of a text by itself is taken off.
            least: See `Stream`.
        """
        return Stream(self, stop, bare=self._decoder.spaced and not continues, least=least)

    def mark_of(self, token: int) -> str:
        """The name of a token that is no text, such as the end of a turn; else nothing."""
        return self._vocabulary[token] if token in self._special else ""


def _begun_with(begin: list[int], ids: list[int]) -> list[int]:
    return ids if ids[: len(begin)] == begin else begin + ids


_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
_PLAIN = "\ue000"  # a private character; removed from what people write


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


class Stream:
    """An answer, token by token.

    A letter whose bytes lie in several tokens comes when the last of them is there. What may be
    the beginning of a stop string is held back until that is decided.

    Args:
        text: Knows the tokens.
        stop: Texts at whose first occurrence the answer ends; they are not part of it.
        bare: Whether a space at the beginning is not part of it.
        least: In how many tokens at its beginning stop strings do not count.

    Attributes:
        stopped: Whether one has occurred.
    """

    def __init__(
        self, text: Text, stop: Sequence[str], *, bare: bool = False, least: int = 0
    ) -> None:
        self._text = text
        self._bare = bare
        self._least = least
        self._stop = [each for each in stop if each]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """Takes a token; returns the text that is certain now."""
        self._least -= 1
        return self._advance(self._decoder.decode(self._text.bytes_of(token)))

    def end(self) -> str:
        """Returns what was held back; no token follows."""
        rest = self._advance(self._decoder.decode(b"", final=True))
        if not self.stopped:
            rest, self._held = rest + self._held, ""
        return rest

    def _advance(self, more: str) -> str:
        if self.stopped:
            return ""
        if self._bare and more:
            self._bare, more = False, more.removeprefix(" ")
        self._held += more
        if self._least >= 0:
            ready, self._held = self._held, ""
            return ready
        found = [at for each in self._stop if (at := self._held.find(each)) >= 0]
        if found:
            self.stopped = True
            ready, self._held = self._held[: min(found)], ""
            return ready
        keep = max((_begun(self._held, each) for each in self._stop), default=0)
        cut = len(self._held) - keep
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
