"""A small model of the Llama architecture with random weights, as a GGUF file."""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The first tokens; the next 256 are the bytes, and the rest are merges."""
END, BEGIN_TURN, END_TURN = range(3)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

PIECES = (
    "▁t", "he", "▁the", "▁T", "▁The", "▁c", "ap", "▁cap", "it", "▁capit", "al",
    "▁capital", "▁o", "▁of", "▁F", "ra", "▁Fra", "n", "c", "ce", "▁Fran", "▁France",
)  # fmt: skip
"""Of the other tokenizer, in the manner of SentencePiece; letters and pairs follow them."""

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + eos_token }}{% endfor %}[assistant]"
)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level BPE."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_gguf(
    path: Path,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = 320,
    context: int = 512,
    seed: int = 0,
    tied: bool = True,
    pieces: bool = False,
    biases: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Writes a model; returns its path.

    Args:
        path: The file.
        layers: How many layers.
        width: The width of the hidden state, which the heads divide.
        heads: How many query heads.
        kv_heads: How many heads of keys and values.
        vocabulary: How many tokens; at least 259, at most 935.
        context: The most tokens of prompt and answer.
        seed: Of the weights.
        tied: Whether the embedding is also the head.
        pieces: Whether the tokenizer is in the manner of SentencePiece.
        biases: Which of a layer's matrices have one.
        metadata: More fields; of those that are written anyway, in their place. None for none.
        tensors: More tensors.
    """
    inner, head = 2 * width, width // heads
    writer = GGUFWriter(path, "llama")
    writer.add_name(f"tiny-{seed}")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    (_add_pieces if pieces else _add_tokenizer)(writer, vocabulary)
    _add_fields(writer, metadata or {})
    rng = np.random.default_rng(seed)

    def draw(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        weights = rng.standard_normal((rows, columns)) * (scale / columns**0.5)
        if name in ("token_embd", "output"):
            weights[: len(MARKS)] = 0  # so that the likeliest token is never one of them
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    draw("token_embd", vocabulary, width)
    norm("output_norm")
    if not tied:
        draw("output", vocabulary, width, 4.0)
    for layer in range(layers):
        for part in ("attn_norm", "ffn_norm"):
            norm(f"blk.{layer}.{part}")
        for part, rows, columns in (
            ("attn_q", width, width),
            ("attn_k", kv_heads * head, width),
            ("attn_v", kv_heads * head, width),
            ("attn_output", width, width),
            ("ffn_gate", inner, width),
            ("ffn_up", inner, width),
            ("ffn_down", width, inner),
        ):
            draw(f"blk.{layer}.{part}", rows, columns, 2.0)
            if part in biases:
                bias = rng.standard_normal(rows).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{part}.bias", bias)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_fields(writer: GGUFWriter, metadata: Mapping[str, object]) -> None:
    for name, value in metadata.items():
        writer.kv_data[0].pop(name, None)
        if value is not None:
            writer.add_key_value(name, value, GGUFValueType.get_type(value))


def _add_pieces(writer: GGUFWriter, vocabulary: int) -> None:
    marks = ["<unk>", "<s>", "</s>"]
    letters = [*dict.fromkeys("▁" + string.ascii_letters + ".,?")]
    pairs = map("".join, itertools.product(string.ascii_lowercase, repeat=2))
    words = [*dict.fromkeys([*PIECES, *letters, *pairs])]
    words = words[: vocabulary - len(marks) - 256]
    scores = [-float(number) for number in range(len(words))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*marks, *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    writer.add_token_scores([*[0.0] * (len(marks) + 256), *scores])
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TURNS)


def _add_tokenizer(writer: GGUFWriter, vocabulary: int) -> None:
    pairs = itertools.product(string.ascii_lowercase, repeat=2)
    merges = list(itertools.islice(pairs, vocabulary - len(MARKS) - 256))
    words = [*MARKS, *byte_letters(), *map("".join, merges)]
    if len(words) != vocabulary:
        raise ValueError(f"expected from 259 to 935 tokens, got {vocabulary}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([CONTROL] * len(MARKS) + [NORMAL] * (vocabulary - len(MARKS)))
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(BEGIN_TURN)
    writer.add_eos_token_id(END_TURN)
    writer.add_unk_token_id(END)
    writer.add_pad_token_id(END_TURN)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
