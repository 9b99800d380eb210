"""Text to tokens and back, and conversations to text.

The tokenizer is byte-level BPE, computed by the package ``tokenizers``: from the vocabulary and
the merges in a GGUF file, or from a ``tokenizer.json`` in the model's folder. The template of a
conversation is the model's own, in Jinja's language, and rendered in Jinja's sandbox.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any, cast

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from llm.config import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm.config import Checkpoint

__all__ = ["Stream", "TemplateError", "Text"]

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER = 3, 4
"""Types of tokens in GGUF: such as mark the turns of a conversation."""


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
        if checkpoint.is_gguf:
            self._tokenizer, said = _from_gguf(checkpoint)
        else:
            self._tokenizer, said = _from_folder(checkpoint)
        self._vocabulary = [
            self._tokenizer.id_to_token(n) or "" for n in range(checkpoint.config.vocabulary)
        ]
        special = self._tokenizer.get_added_tokens_decoder()
        self._special = {token for token, each in special.items() if each.special}
        marks = {name: said[name] for name in ("bos", "eos") if said[name] is not None}
        self._marks = {name: self._vocabulary[token] for name, token in marks.items()}
        known = (self._tokenizer.token_to_id(word) for word in _ENDS)
        self.ends = {said["eos"], *known} - {None}
        self._begin = [said["bos"]] if said["add_bos"] and said["bos"] is not None else []
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse  # pyright: ignore[reportArgumentType]
        template = said["template"]
        self._template = None if template is None else environment.from_string(template)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that is to be continued; marks in it are read as marks."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found if found[: len(self._begin)] == self._begin else self._begin + found

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
        ids: list[int] = []
        for number, part in enumerate(text.split(_PLAIN)):
            # What was between two signs is somebody's mark, spelled out.
            ids += self._spell(part) if number % 2 else self._encode_part(part)
        return ids if ids[: len(self._begin)] == self._begin else self._begin + ids

    def _encode_part(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _defuse(self, text: str) -> str:
        text = text.replace(_PLAIN, "")
        for token in self._special:
            mark = self._vocabulary[token]
            if mark and mark in text:
                text = text.replace(mark, f"{_PLAIN}{mark}{_PLAIN}")
        return text

    def _spell(self, mark: str) -> list[int]:
        """A mark as plain characters."""
        return [token for letter in mark for token in self._encode_part(letter)]

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; nothing for marks."""
        if token in self._special or token >= len(self._vocabulary):
            return b""
        word = self._vocabulary[token]
        raw = bytes(_BYTES[letter] for letter in word if letter in _BYTES)
        return raw if len(raw) == len(word) else word.encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; U+FFFD for what is no UTF-8."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    def stream(self, stop: Sequence[str] = ()) -> Stream:
        """Decodes an answer as it comes."""
        return Stream(self, stop)


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

    Attributes:
        stopped: Whether one has occurred.
    """

    def __init__(self, text: Text, stop: Sequence[str]) -> None:
        self._text = text
        self._stop = [each for each in stop if each]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """Takes a token; returns the text that is certain now."""
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
        self._held += more
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


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level BPE (Radford et al., 2019, GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_letters()


# From a model's files ----------------------------------------------------------------------


def _from_gguf(checkpoint: Checkpoint) -> tuple[Any, dict[str, Any]]:
    beside = checkpoint.path.parent / "tokenizer.json"
    said = checkpoint.metadata
    if said.get("tokenizer.ggml.model") == "gpt2":
        tokenizer = _byte_level(checkpoint)
    elif beside.exists():
        tokenizer = _read(beside)
    else:
        raise ModelError(
            f"{checkpoint.path} has a tokenizer of kind {said.get('tokenizer.ggml.model')!r}; "
            "expected 'gpt2', which is byte-level BPE, or a tokenizer.json beside the file."
        )
    return tokenizer, {
        "bos": said.get("tokenizer.ggml.bos_token_id"),
        "eos": said.get("tokenizer.ggml.eos_token_id"),
        "add_bos": said.get("tokenizer.ggml.add_bos_token", False),
        "template": said.get("tokenizer.chat_template"),
    }


def _byte_level(checkpoint: Checkpoint) -> Any:
    said = checkpoint.metadata
    words: list[str] = said["tokenizer.ggml.tokens"]
    if len(words) != checkpoint.config.vocabulary:
        raise ModelError(
            f"{checkpoint.path} has {len(words)} tokens; expected {checkpoint.config.vocabulary}."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in said.get("tokenizer.ggml.merges", ())]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer: Any = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    kind = said.get("tokenizer.ggml.pre", "default")
    if kind not in _SPLITS:
        raise ModelError(
            f"{checkpoint.path} splits text as {kind!r}; expected one of {', '.join(_SPLITS)}."
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*_SPLITS[kind], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in _GPT2)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = said.get("tokenizer.ggml.token_type", ())
    marks = [word for word, kind in zip(words, kinds, strict=False) if kind in (_CONTROL, _USER)]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(mark, special=True, normalized=False) for mark in marks]
    )
    return tokenizer


_GPT2 = ("default", "gpt-2", "smollm", "refact", "command-r", "starcoder")
_SPLITS: dict[str, list[Any]] = {
    "default": [],
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    "llama-bpe": [pre_tokenizers.Split(tokenizers.Regex(_LLAMA3_SPLIT), "isolated")],
}


def _from_folder(checkpoint: Checkpoint) -> tuple[Any, dict[str, Any]]:
    tokenizer = _read(checkpoint.path / "tokenizer.json")
    settings = _json(checkpoint.path / "tokenizer_config.json")
    apart = checkpoint.path / "chat_template.jinja"
    template = apart.read_text("utf-8") if apart.exists() else settings.get("chat_template")
    marks: dict[str, Any] = {}
    for name in ("bos", "eos"):
        mark: Any = settings.get(f"{name}_token")
        word = cast("dict[str, Any]", mark)["content"] if isinstance(mark, dict) else mark
        marks[name] = None if word is None else tokenizer.token_to_id(word)
    return tokenizer, {
        **marks,
        "add_bos": settings.get("add_bos_token", False),
        "template": template if isinstance(template, str) else None,
    }


def _read(path: Any) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the package raises nothing narrower)
        raise ModelError(f"{path} cannot be read: {error}") from None


def _json(path: Any) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}
