"""Which worker holds what of a model, where its extents need not be divisible.

Query heads are cut whole. A worker also holds the heads of keys and values that its query heads
read, so one of these may lie on two workers. What that makes uneven is made up for by the
feed-forward part, which is cut in blocks of 32 columns, the blocks of quantised files, and by
the rows of the vocabulary.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disco_client.distributed import PlacementSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm.config import Checkpoint, Config

__all__ = ["Range", "Shares", "TooManyWorkers", "cut_of", "divide", "plan"]

_BLOCK = 32
Range = tuple[int, int]
Cut = tuple[int, list[Range] | list[list[Range]]]


class TooManyWorkers(Exception):
    """There are more workers than query heads."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of all workers; each is from an index to the one before another.

    Attributes:
        heads: Query heads.
        kv_heads: The heads of keys and values that they read; these may overlap.
        inner: Columns of the feed-forward part.
        tokens: Rows of the embedding and of the head.
    """

    heads: list[Range]
    kv_heads: list[Range]
    inner: list[Range]
    tokens: list[Range]


def divide(config: Config, workers: int) -> Shares:
    """Divides a model.

    Raises:
        TooManyWorkers: A worker would have no query head.
    """
    if not 1 <= workers <= config.heads:
        raise TooManyWorkers(
            f"The model has {config.heads} query heads, and each worker needs one or more. Use 1 "
            f"to {config.heads} workers instead of {workers}."
        )
    heads = _ranges(_even(config.heads, workers))
    each = config.heads // config.kv_heads
    kv_heads = [(first // each, (end - 1) // each + 1) for first, end in heads]
    # In numbers of weights, which is also what a token multiplies.
    per_head = 2 * config.width * config.head
    costs = [
        config.layers * per_head * (own[1] - own[0] + kv[1] - kv[0])
        for own, kv in zip(heads, kv_heads, strict=True)
    ]
    unit = _BLOCK if config.inner % _BLOCK == 0 else 1
    inner = _fill(costs, config.inner // unit, 3 * config.width * unit * config.layers)
    tables = 1 if config.tied else 2
    tokens = _fill(costs, config.vocabulary, config.width * tables)
    return Shares(
        heads,
        kv_heads,
        [(first * unit, end * unit) for first, end in _ranges(inner)],
        _ranges(tokens),
    )


def plan(checkpoint: Checkpoint, shares: Shares) -> dict[str, PlacementSpec | str]:
    """What `Session.load_weights` is told of each tensor."""
    found: dict[str, PlacementSpec | str] = dict.fromkeys(checkpoint.harmless, "skip")
    for ours, theirs in checkpoint.names.items():
        cut = cut_of(checkpoint.config, shares, ours)
        found[theirs] = "R" if cut is None else PlacementSpec.explicit(*cut)
    return found


def cut_of(config: Config, shares: Shares, name: str) -> Cut | None:
    """Along which axis a tensor is cut, and where; None for one that every worker has whole.

    A worker has a range of it, or several of a fused one.
    """
    heads = [(first * config.head, end * config.head) for first, end in shares.heads]
    kv_heads = [(first * config.head, end * config.head) for first, end in shares.kv_heads]
    queries, kv = config.heads * config.head, config.kv_heads * config.head
    fused = [(heads, 0), (kv_heads, queries), (kv_heads, queries + kv)]
    cuts: dict[str, Cut] = {
        "query": (0, heads),
        "key": (0, kv_heads),
        "value": (0, kv_heads),
        "query_bias": (0, heads),
        "key_bias": (0, kv_heads),
        "value_bias": (0, kv_heads),
        "out": (1, heads),
        "gate": (0, shares.inner),
        "up": (0, shares.inner),
        "gate_bias": (0, shares.inner),
        "up_bias": (0, shares.inner),
        "down": (1, shares.inner),
        "embedding": (0, shares.tokens),
        "output": (0, shares.tokens),
        "query_key_value": (0, _below_each_other(fused)),
        "gate_up": (0, _below_each_other([(shares.inner, 0), (shares.inner, config.inner)])),
    }
    return cuts.get(name.rpartition(".")[2])


def _below_each_other(parts: Sequence[tuple[list[Range], int]]) -> list[list[Range]]:
    """The ranges of all workers in matrices that are one, which begin at some of its rows."""
    moved = [[(first + at, end + at) for first, end in ranges] for ranges, at in parts]
    return [list(pieces) for pieces in zip(*moved, strict=True)]


def _even(count: int, workers: int) -> list[int]:
    """Whole numbers that add up to a count, the first ones larger by one where they must."""
    least, more = divmod(count, workers)
    return [least + (worker < more) for worker in range(workers)]


def _ranges(sizes: Sequence[int]) -> list[Range]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return list(itertools.pairwise(ends))


def _fill(costs: list[int], count: int, price: int) -> list[int]:
    """Hands out equal things, each to whom has least so far; adds their prices to the costs."""
    least = [(cost, worker) for worker, cost in enumerate(costs)]
    heapq.heapify(least)
    sizes = [0] * len(costs)
    for _ in range(count):
        cost, worker = least[0]
        sizes[worker] += 1
        heapq.heapreplace(least, (cost + price, worker))
    for cost, worker in least:
        costs[worker] = cost
    return sizes
