"""What a person sees: which sentences are alike, and where the time went."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedding.numerics import Floats

__all__ = ["Share", "Timings", "describe_timings", "similarity_table"]

# A table of more sentences than this is wider than a terminal.
_MOST_SENTENCES = 16
_LABEL = 30


@dataclass(frozen=True, slots=True)
class Share:
    """How one worker's time divides while a client waits for embeddings, in seconds.

    Attributes:
        compute: In the worker's own arithmetic.
        collectives: In reductions, waiting for slower workers included.
        control: In neither: commands and results on their way, and the start and the end of it.
    """

    compute: float
    collectives: float
    control: float


@dataclass(slots=True)
class Timings:
    """How long each step took, in seconds, and how much was done.

    Attributes:
        sentences: How many were embedded.
        workers: How many there are.
        device: What they computed on.
        tokenize: Making batches of the sentences.
        connect: Until the session was ready.
        load: Until every worker had its share of the model.
        embed: From the first batch to the last embedding.
        tokens: Their tokens, padding not counted.
        shares: How the time of ``embed`` divides, one entry a worker; empty where that
            is not known.
    """

    sentences: int
    workers: int
    device: str
    tokenize: float = 0.0
    connect: float = 0.0
    load: float = 0.0
    embed: float = 0.0
    tokens: int = 0
    shares: list[Share] = field(default_factory=list["Share"])


def similarity_table(sentences: Sequence[str], embeddings: Floats) -> str:
    """Lays out the cosine similarity of each sentence with each other.

    Args:
        sentences: The texts; the table has the first 16 of them.
        embeddings: [sentences, H], each row of length 1.
    """
    shown = min(len(sentences), _MOST_SENTENCES)
    similar = embeddings[:shown] @ embeddings[:shown].T
    head = " " * (_LABEL + 4) + "".join(f"{column + 1:>6}" for column in range(shown))
    lines = [head]
    for row in range(shown):
        cells = "".join(f"{value:>6.2f}" for value in similar[row])
        lines.append(f"{row + 1:>3} {_shorten(sentences[row])}{cells}")
    if shown < len(sentences):
        lines.append(f"(the first {shown} of {len(sentences)} sentences)")
    return "\n".join(lines)


def describe_timings(timings: Timings) -> str:
    """Lays out how long each step took, and how the embedding divides.

    The three parts are means over the workers and sum up to the whole. A
    worker that waits in a collective for a slower one counts that as collective.
    GPUs are measured by their own clocks, as the last line then says.
    """
    whole = max(timings.embed, 1e-9)
    parts = {
        "compute": [share.compute for share in timings.shares],
        "collectives": [share.collectives for share in timings.shares],
        "control": [share.control for share in timings.shares],
    }
    done = (
        f"{timings.sentences} sentences, {timings.tokens} tokens, "
        f"{timings.tokens / whole:.0f} tokens/s, {timings.workers} workers on {timings.device}"
    )
    lines = [
        f"tokenize      {timings.tokenize:8.3f} s",
        f"connect       {timings.connect:8.3f} s",
        f"load weights  {timings.load:8.3f} s",
        f"embed         {timings.embed:8.3f} s   {done}",
    ]
    for name, seconds in parts.items() if timings.shares else ():
        mean = float(np.mean(seconds))
        lines.append(
            f"  {name:<11} {mean:8.3f} s   {100 * mean / whole:3.0f} %   "
            f"(by worker {min(seconds):.3f} to {max(seconds):.3f} s)"
        )
    if timings.shares and timings.device != "cpu":
        lines.append(
            "compute and collectives are the GPU's own time; while it waits for what to compute "
            "next, inside a batch, that is compute"
        )
    return "\n".join(lines)


def _shorten(text: str) -> str:
    """Fits a text into the label's columns, counting those that a terminal gives each sign."""
    printable = "".join(" " if unicodedata.category(sign)[0] == "C" else sign for sign in text)
    text = " ".join(printable.split())
    if sum(map(_columns, text)) > _LABEL:
        kept: list[str] = []
        for sign in text:
            if sum(map(_columns, kept)) + _columns(sign) >= _LABEL:
                break
            kept.append(sign)
        text = "".join(kept) + "…"
    return text + " " * (_LABEL - sum(map(_columns, text)))


def _columns(sign: str) -> int:
    if unicodedata.category(sign) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(sign) in {"W", "F"} else 1
