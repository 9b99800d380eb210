"""The tokenizer of a model, from its files; the package ``tokenizers`` computes it.

A folder has a ``tokenizer.json``, which says everything. A GGUF file has a vocabulary, and the
merges of byte-level BPE (``gpt2``) or the scores of SentencePiece (``llama``); what is not said
there is as in llama.cpp. Byte-level BPE spells each byte as a letter. SentencePiece spells a space
as ``▁``, sets one before a text, and spells as bytes, ``<0x0A>``, what its vocabulary lacks.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from llm.config import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from llm.config import Checkpoint

__all__ = ["Decoder", "Tokens", "open_tokenizer"]

Json = dict[str, Any]
_SPACE = "▁"
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
"""Types of tokens in GGUF. Control tokens mark the turns of a conversation."""


@dataclass(frozen=True)
class Tokens:
    """What a model's files say of its tokens.

    Attributes:
        tokenizer: Of the package ``tokenizers``.
        continuing: The same one for text that follows other text: it sets no space before it.
        decoder: What tokens stand for.
        marks: The tokens ``bos`` and ``eos`` that templates name.
        ends: Those that end an answer.
        begin: Those that a text begins with.
        begin_turns: Those that a conversation begins with, unless its template says so.
        template: Of conversations; None for none.
    """

    tokenizer: Any
    continuing: Any
    decoder: Decoder
    marks: dict[str, int]
    ends: set[int]
    begin: list[int]
    begin_turns: list[int]
    template: str | None


def open_tokenizer(checkpoint: Checkpoint) -> Tokens:
    """Reads the tokenizer of a model.

    Raises:
        ModelError: It has none, or one of another kind.
    """
    found = _from_gguf(checkpoint) if checkpoint.is_gguf else _from_folder(checkpoint)
    highest = max(found.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    for what, token in (("the tokenizer", highest), *found.marks.items()):
        if token >= checkpoint.config.vocabulary:
            raise ModelError(
                f"{checkpoint.path}: {what} has token {token}; expected one of the model's "
                f"{checkpoint.config.vocabulary}."
            )
    added = found.tokenizer.get_added_tokens_decoder()
    found.ends.update(n for n, each in added.items() if each.special and each.content in _TURN_ENDS)
    # Files may say how long texts were cut for training.
    for each in (found.tokenizer, found.continuing):
        each.no_truncation()
        each.no_padding()
    return found


_TURN_ENDS = ("<|end|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|eot_id|>")
"""Marks that end a turn of a conversation in some family, whether or not a file says so."""


# What tokens stand for ---------------------------------------------------------------------


class Decoder:
    """What tokens stand for, as a tokenizer's ``decoder`` says.

    Args:
        path: The file, for the error.
        said: ``decoder`` of a ``tokenizer.json``.

    Attributes:
        spaced: Whether a text begins with a space that is not part of it.

    Raises:
        ModelError: It decodes in another manner.
    """

    def __init__(self, path: Path, said: Json | None) -> None:
        self.spaced = False
        self._letters = self._bytes = False
        self._replaced: list[tuple[str, str]] = []
        fused = False
        for step in _steps(said, "decoders"):
            kind = step.get("type")
            if kind == "ByteLevel":
                self._letters = True
            elif kind == "Metaspace":
                self._replaced.append((step.get("replacement", _SPACE), " "))
                self.spaced = _sets_space(step)
            elif kind == "Replace" and _pattern(step):
                self._replaced.append((_pattern(step), step["content"]))
            elif kind == "ByteFallback":
                self._bytes = True
            elif kind == "Fuse":
                fused = True
            elif kind == "Strip" and fused and _strips_one(step):
                self.spaced = bool(step["start"])
            else:
                raise ModelError(f"{path} decodes by {step!r}, which this example does not.")
        if not self._letters and not self._replaced:
            raise ModelError(
                f"{path} has the decoder {said!r:.80}; expected ByteLevel, Metaspace, or Replace "
                "with ByteFallback."
            )

    def bytes_of(self, word: str) -> bytes:
        """What a token stands for."""
        if self._bytes and (byte := _BYTE.fullmatch(word)):
            return bytes.fromhex(byte[1])
        for each, other in self._replaced:
            word = word.replace(each, other)
        if not self._letters or not all(letter in _BYTES for letter in word):
            return word.encode()
        return bytes(_BYTES[letter] for letter in word)


_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _steps(said: Json | None, name: str) -> list[Json]:
    """The parts of what may be a sequence of them, or nothing."""
    if said is None:
        return []
    if said.get("type") != "Sequence":
        return [said]
    return [step for each in said[name] for step in _steps(each, name)]


def _pattern(step: Json) -> str:
    """The letter that is replaced; empty for another kind of pattern."""
    found = step["pattern"].get("String", "")
    return found if len(found) == 1 else ""


def _strips_one(step: Json) -> bool:
    return step["content"] == " " and step["start"] in (0, 1) and step["stop"] == 0


def _sets_space(step: Json) -> bool:
    """Whether a step of kind Metaspace sets a space before a text; older files say it otherwise."""
    if "prepend_scheme" in step:
        return step["prepend_scheme"] != "never"
    return bool(step.get("add_prefix_space", True))


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level BPE (Radford et al., 2019, GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_letters()


def _continuing(tokenizer: Any) -> Any:
    """The same tokenizer without the space before a text."""
    before = _steps(_said(tokenizer.normalizer), "normalizers")
    kept = [step for step in before if step["type"] != "Prepend"]
    cuts = _said(tokenizer.pre_tokenizer)
    spaced = len(kept) < len(before)
    for step in _steps(cuts, "pretokenizers"):
        if step["type"] == "Metaspace":
            spaced |= _sets_space(step)
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
        elif step["type"] == "ByteLevel":
            spaced |= step["add_prefix_space"]
            step["add_prefix_space"] = False
    if not spaced:
        return tokenizer
    said: Json = json.loads(tokenizer.to_str())
    said["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    said["pre_tokenizer"] = cuts
    return tokenizers.Tokenizer.from_str(json.dumps(said))


def _said(part: Any) -> Json | None:
    """A part of a tokenizer, as its file has it."""
    return None if part is None else json.loads(part.__getstate__())


# A GGUF file -------------------------------------------------------------------------------


def _from_gguf(checkpoint: Checkpoint) -> Tokens:
    beside = checkpoint.path.parent / "tokenizer.json"
    said = checkpoint.metadata
    kind, pre = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.pre")
    if kind in _BUILDERS:
        try:
            tokenizer = _BUILDERS[kind](checkpoint)
        except ModelError:
            raise
        except Exception as error:  # whatever a damaged vocabulary makes the package raise
            raise ModelError(f"{checkpoint.path} has no good tokenizer: {error}") from error
    elif beside.exists():
        tokenizer = _read(beside)
    else:
        raise ModelError(
            f"{checkpoint.path} has a tokenizer of kind {kind!r}; expected 'gpt2', which is "
            "byte-level BPE, 'llama', which is SentencePiece, or a tokenizer.json beside the file."
        )
    # As llama.cpp takes them where the file does not say.
    usual = {"bos": 1, "eos": 2} if kind == "llama" else {}
    marks = {
        name: said.get(f"tokenizer.ggml.{name}_token_id", usual.get(name))
        for name in ("bos", "eos", "eot", "eom")
    }
    begins = said.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in _WHOLE)
    begin = [marks["bos"]] if begins and marks["bos"] is not None else []
    return Tokens(
        tokenizer,
        _continuing(tokenizer),
        _decoder_of(checkpoint.path, tokenizer),
        {name: marks[name] for name in ("bos", "eos") if marks[name] is not None},
        {marks[name] for name in ("eos", "eot", "eom")} - {None},
        begin,
        begin,
        said.get("tokenizer.chat_template"),
    )


def _words(checkpoint: Checkpoint, *beside: str) -> tuple[list[str], list[list[Any]]]:
    """The vocabulary of a GGUF file, and what it says of each token.

    Raises:
        ModelError: They are not as many as the model has.
    """
    said = checkpoint.metadata
    columns: list[list[Any]] = []
    for name in ("tokens", *beside):
        column = said.get(f"tokenizer.ggml.{name}")
        count = len(column) if isinstance(column, list) else 0  # pyright: ignore[reportUnknownArgumentType]
        if count != checkpoint.config.vocabulary:
            raise ModelError(
                f"{checkpoint.path} has {count} {name} of the tokenizer; expected "
                f"{checkpoint.config.vocabulary}."
            )
        columns.append(cast("list[Any]", column))
    return columns[0], columns[1:]


def _byte_level(checkpoint: Checkpoint) -> Any:
    said = checkpoint.metadata
    words, _ = _words(checkpoint)
    kind = said.get("tokenizer.ggml.pre", "default")
    if kind not in _SPLITS:
        raise ModelError(
            f"{checkpoint.path} splits text as {kind!r}; expected one of {', '.join(_SPLITS)}."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in said.get("tokenizer.ggml.merges", ())]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer: Any = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=kind in _WHOLE)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*_SPLITS[kind], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in _GPT2)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_marks(tokenizer, words, said.get("tokenizer.ggml.token_type", ()))
    return tokenizer


def _sentence_piece(checkpoint: Checkpoint) -> Any:
    said = checkpoint.metadata
    words, (scores, kinds) = _words(checkpoint, "scores", "token_type")
    unknown = words[int(said.get("tokenizer.ggml.unknown_token_id", 0))]
    pieces = {
        word: score
        for word, score, kind in zip(words, scores, kinds, strict=True)
        if kind in (_NORMAL, _USER, _UNUSED)
    }
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer: Any = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(pieces),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = said.get("tokenizer.ggml.add_space_prefix", True)
    before = [normalizers.Prepend(_SPACE)] if spaced else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if spaced else []
    tokenizer.decoder = decoders.Sequence(steps)
    # As llama.cpp, which knows these models by their name: no file says it.
    name = str(said.get("general.name", "")).lower()
    _add_marks(tokenizer, words, kinds, strip="phi-3" in name or "phi3" in name)
    return tokenizer


def _merges(pieces: dict[str, float]) -> list[tuple[str, str]]:
    """The merges of BPE that make what the scores of SentencePiece make: the highest score first.

    SentencePiece merges the two neighbours whose whole has the highest score, so every way to cut
    a piece in two is a merge.
    """
    found = [
        (-score, len(piece[:at]), piece[:at], piece[at:])
        for piece, score in pieces.items()
        for at in range(1, len(piece))
        if piece[:at] in pieces and piece[at:] in pieces
    ]
    return [(first, second) for *_, first, second in sorted(found)]


def _add_marks(
    tokenizer: Any, words: list[str], kinds: Iterable[int], *, strip: bool = False
) -> None:
    """Adds the marks of a vocabulary; those that strip take the space behind them along."""
    for word, kind in zip(words, kinds, strict=False):
        if kind not in (_CONTROL, _USER) or not word:
            continue
        # Converters write a mark that a model was given later as one of its user's.
        special = kind == _CONTROL or (word.startswith("<|") and word.endswith("|>"))
        behind = strip and word not in _NOT_STRIPPING
        token = AddedToken(word, special=special, normalized=False, rstrip=behind)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])


_BUILDERS: dict[object, Callable[[Checkpoint], Any]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT = _LLAMA3_SPLIT.replace("{1,3}", "")
# Words that change from capitals to small letters are cut there.
_LARGE, _SMALL = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BEFORE, _ENDING = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O_SPLIT = (
    rf"{_BEFORE}[{_LARGE}]*[{_SMALL}]+{_ENDING}|{_BEFORE}[{_LARGE}]+[{_SMALL}]*{_ENDING}"
    rf"|\p{{N}}{{1,3}}|{_SIGNS}"
)
_TEKKEN_SPLIT = rf"{_BEFORE}[{_LARGE}]*[{_SMALL}]+|{_BEFORE}[{_LARGE}]+[{_SMALL}]*|\p{{N}}|{_SIGNS}"
_GPT2 = ("gpt-2", "smollm")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_WHOLE = (*_LLAMA3, "tekken")
"""Where a word that is a token is not merged from its letters, and a mark begins a text."""
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


def _splits(*expressions: str) -> list[Any]:
    return [pre_tokenizers.Split(tokenizers.Regex(each), "isolated") for each in expressions]


_SPLITS: dict[str, list[Any]] = {
    "default": _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    **dict.fromkeys((*_LLAMA3, "dbrx"), _splits(_LLAMA3_SPLIT)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _splits(_QWEN_SPLIT)),
    "tekken": _splits(_TEKKEN_SPLIT),
    "gpt-4o": _splits(_GPT4O_SPLIT),
}
"""How text is split before it is merged, as the tokenizers that llama.cpp calls so do it."""


# A folder ----------------------------------------------------------------------------------


def _from_folder(checkpoint: Checkpoint) -> Tokens:
    path = checkpoint.path / "tokenizer.json"
    tokenizer = _read(path)
    settings_path = checkpoint.path / "tokenizer_config.json"
    settings = _json(settings_path)
    marks = {
        name: _token(settings_path, tokenizer, settings[f"{name}_token"])
        for name in ("bos", "eos")
        if settings.get(f"{name}_token") is not None
    }
    ends = {marks.get("eos")}
    generation = checkpoint.path / "generation_config.json"
    for said in (checkpoint.metadata, _json(generation) if generation.exists() else {}):
        end = said.get("eos_token_id")
        ends |= {*cast("list[int]", end)} if isinstance(end, list) else {end}
    for name in ("add_eos_token", "split_special_tokens"):
        if settings.get(name):
            raise ModelError(f"{settings_path} has {name} = true; expected false.")
    adds = settings.get("add_bos_token")
    begin = _begin_of(path, tokenizer)
    if adds is not None:
        begin = [marks["bos"]] if adds and "bos" in marks else []
    return Tokens(
        tokenizer,
        _continuing(tokenizer),
        _decoder_of(path, tokenizer),
        marks,
        {end for end in ends if end is not None},
        begin,
        [],  # a template says all
        _template_of(checkpoint.path, settings),
    )


def _token(path: Path, tokenizer: Any, mark: Any) -> int:
    word = cast("Json", mark).get("content") if isinstance(mark, dict) else mark
    found: int | None = tokenizer.token_to_id(word) if isinstance(word, str) else None
    if found is None:
        raise ModelError(f"{path} names the mark {word!r}, which tokenizer.json does not have.")
    return found


def _begin_of(path: Path, tokenizer: Any) -> list[int]:
    """What the tokenizer itself sets before a text.

    Raises:
        ModelError: It sets something behind it, too.
    """
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    count = len(whole) - len(bare)
    if whole[count:] != bare:
        raise ModelError(f"{path} sets marks behind a text, which then could not be continued.")
    return whole[:count]


def _template_of(folder: Path, settings: Json) -> str | None:
    apart = folder / "chat_template.jinja"
    if apart.exists():
        return apart.read_text("utf-8")
    found: Any = settings.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {each.get("name"): each.get("template") for each in cast("list[Json]", found)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _decoder_of(path: Path, tokenizer: Any) -> Decoder:
    return Decoder(path, _said(tokenizer.decoder))


def _read(path: Path) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the package raises nothing narrower)
        raise ModelError(f"{path} cannot be read: {error}") from None


def _json(path: Path) -> Json:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    return cast("Json", said) if isinstance(said, dict) else {}
