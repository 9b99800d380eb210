"""A small model of the Llama architecture with random weights, as a GGUF file."""

from __future__ import annotations

import itertools
import string
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The first tokens; the next 256 are the bytes, and the rest are merges."""
END, BEGIN_TURN, END_TURN = range(3)
NORMAL, CONTROL = 1, 3

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
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
    _add_tokenizer(writer, vocabulary)
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
