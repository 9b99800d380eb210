"""From sentences to batches of token numbers."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tokenizers import Tokenizer

from embedding.settings import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from embedding.numerics import Floats
    from embedding.settings import ModelSettings

__all__ = ["BATCHES", "Batch", "Remote", "embed_all", "in_order", "make_batches", "tokenize"]

BATCHES = {"cpu": 32, "cuda": 256, "rocm": 256}
"""Sentences of a batch: a GPU is idle while it is asked for the next, so it gets large ones."""


# Batches under way at a time: the workers find the next one waiting when they
# are done with one, and an endless input does not pile up in their memory.
_WINDOW = 8


class Remote(Protocol):
    """Embeddings that are on the workers, or will be."""

    def numpy(self) -> Floats:
        """Fetches them; waits for them."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences that are embedded together.

    Attributes:
        places: Where each of them stands among all sentences.
        ids: [tokens], int32: their tokens, one sentence after the other.
        lengths: [sentences], int32: how many tokens each has.
    """

    places: tuple[int, ...]
    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


def tokenize(settings: ModelSettings, sentences: Sequence[str]) -> list[list[int]]:
    """Turns sentences into token numbers, special ones included, cut to the model's maximum.

    Raises:
        ModelError: The model's tokenizer.json cannot be read.
    """
    path = settings.folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises nothing narrower.
        raise ModelError(
            f"{path} cannot be read ({error}). Check that the download is complete."
        ) from error
    # The file carries the settings of some earlier use; those of the model count.
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_tokens)  # pyright: ignore[reportUnknownMemberType]
    texts = [text.lower() for text in sentences] if settings.lower_case else list(sentences)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def make_batches(tokens: Sequence[Sequence[int]], size: int = 32) -> Iterator[Batch]:
    """Groups sentences of similar length, the longest first.

    Those of equal length become neighbours, which the model takes together.
    The longest come first so that work space grows once, and a model too large
    for the machine fails at once.

    Args:
        tokens: The token numbers of each sentence; none is empty.
        size: The most sentences of a batch.
    """
    order = sorted(range(len(tokens)), key=lambda place: -len(tokens[place]))
    for start in range(0, len(order), size):
        places = tuple(order[start : start + size])
        chosen = [tokens[place] for place in places]
        ids = np.fromiter(itertools.chain.from_iterable(chosen), np.int32)
        yield Batch(places, ids, np.array([len(sentence) for sentence in chosen], np.int32))


def embed_all(batches: Iterable[Batch], forward: Callable[[Batch], Remote]) -> Floats:
    """Embeds batch after batch, a few of them under way at a time.

    Args:
        batches: At least one.
        forward: Begins with a batch, and returns at once what its embeddings,
            [sentences, H], can be fetched from.

    Returns:
        [all sentences, H], float32, in the sentences' order.
    """
    results: list[tuple[Batch, Floats]] = []
    pending: deque[tuple[Batch, Remote]] = deque()
    for batch in batches:
        if len(pending) == _WINDOW:
            ready, vectors = pending.popleft()
            results.append((ready, vectors.numpy()))
        pending.append((batch, forward(batch)))
    results.extend((batch, vectors.numpy()) for batch, vectors in pending)
    return in_order(results)


def in_order(results: Iterable[tuple[Batch, Floats]]) -> Floats:
    """Puts the embeddings of batches into the order of the sentences.

    Args:
        results: Each batch with its embeddings, [sentences, H], at least one.

    Returns:
        [all sentences, H], float32.
    """
    pairs = list(results)
    count = sum(len(batch.places) for batch, _ in pairs)
    embeddings = np.empty((count, pairs[0][1].shape[1]), np.float32)
    for batch, rows in pairs:
        embeddings[list(batch.places)] = rows
    return embeddings
