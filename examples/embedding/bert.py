"""One rank's share of a BERT-style encoder, from token numbers to sentence vectors.

The hidden state is the same on every rank. A rank computes its own heads and
its own feed-forward columns, and what comes out of them is one summand of the
layer's result: two reductions a layer add the summands up. This module neither
knows nor cares who does the adding: Disco, plain MPI, or nobody where there is
one rank.

The tokens of a batch stand one after the other, [tokens, H], without padding:
everything but the attention takes tokens as they come, and the attention takes
together those sentences that happen to be of one length. So no work is spent on
padding, and there is no mask to apply.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedding.numerics import add_and_norm, gelu, normalise_rows, softmax_unscaled
from embedding.settings import refuse_worker_count
from embedding.weights import read_slice

if TYPE_CHECKING:
    import numpy.typing as npt

    from embedding.numerics import Floats
    from embedding.settings import ModelSettings
    from embedding.weights import LayerSlice

__all__ = ["AllReduce", "BertSlice"]

AllReduce = Callable[["Floats"], None]
"""Adds up an array over all ranks, in place, and returns when that is done."""

_Run = tuple[int, int, int]
"""First row, sentences and tokens of each, of neighbours of equal length."""

# What one rank works on between two matrix products stays in its cache: this
# many float32 of attention scores, or of the feed-forward part's inner layer.
_CACHED = 1 << 17

# Matrix products over fewer rows than this would not run at full speed.
_FEWEST_ROWS = 128


class BertSlice:
    """The weights of one rank, its work space, and the time it has spent.

    Args:
        settings: The whole model's figures.
        rank: Which share of the model, from 0.
        ranks: How many shares there are.

    Attributes:
        compute_seconds: Spent in forward passes, reductions not counted.
        collective_seconds: Spent in reductions, waiting for slower ranks included.

    Raises:
        ModelError: The model cannot be read, or does not divide by ``ranks``.
    """

    def __init__(self, settings: ModelSettings, rank: int, ranks: int) -> None:
        refuse_worker_count(settings, ranks)
        self._settings = settings
        self._weights = read_slice(settings, rank, ranks)
        self._alone = ranks == 1
        self._buffers: dict[str, Floats] = {}
        self.compute_seconds = 0.0
        self.collective_seconds = 0.0

    def forward(
        self, ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], allreduce: AllReduce
    ) -> Floats:
        """Embeds a batch of sentences; every rank must call it with the same batch.

        Args:
            ids: [tokens], integers: the tokens of all sentences, one after the other.
            lengths: [sentences], integers: how many of them each sentence has,
                special ones included.
            allreduce: Adds up an array over the ranks; not called by a lone rank.

        Returns:
            [sentences, H], float32, each row of length 1; the same on every rank.

        Raises:
            ValueError: The arrays do not fit each other or the model.
        """
        started = time.perf_counter()
        waited = self.collective_seconds
        self._refuse(ids, lengths)
        starts = np.cumsum(lengths) - lengths
        state, spare = self._embed(ids, lengths, starts)
        runs = _equal_runs(lengths.tolist(), self._weights.heads)
        for layer in self._weights.layers:
            self._attend(layer, state, runs, spare)
            self._reduce(spare, allreduce)
            self._finish(spare, state, layer.attention_bias, layer.attention_norm)
            state, spare = spare, state
            self._feed_forward(layer, state, spare)
            self._reduce(spare, allreduce)
            self._finish(spare, state, layer.down_bias, layer.output_norm)
            state, spare = spare, state
        pooled = self._pool(state, lengths, starts)
        waited = self.collective_seconds - waited
        self.compute_seconds += time.perf_counter() - started - waited
        return pooled

    def _refuse(self, ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> None:
        """Lets only a sound batch pass, before any rank waits for another."""
        longest, vocabulary = self._weights.positions.shape[0], self._weights.words.shape[0]
        if ids.ndim != 1 or lengths.ndim != 1 or lengths.size == 0 or lengths.sum() != ids.size:
            raise ValueError(
                "expected the tokens of one sentence or more in a row and how many each has, got "
                f"{list(ids.shape)} tokens and lengths of shape {list(lengths.shape)} that sum up "
                f"to {int(lengths.sum())}"
            )
        if lengths.min() < 1 or lengths.max() > longest:
            raise ValueError(f"each sentence must have 1 to {longest} tokens, got {lengths}")
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError(
                f"tokens must be 0 to {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}; "
                "use the model's own tokenizer"
            )

    def _embed(
        self,
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
    ) -> tuple[Floats, Floats]:
        """Looks the tokens up; returns the first hidden state and room for the next."""
        weights = self._weights
        state = self._buffer("state", ids.size, self._settings.hidden)
        spare = self._buffer("spare", ids.size, self._settings.hidden)
        # Checked before, so the faster mode that does not check is safe.
        np.take(weights.words, ids, axis=0, out=state, mode="clip")
        places = np.arange(ids.size) - np.repeat(starts, lengths)
        state += np.take(weights.positions, places, axis=0, out=spare, mode="clip")
        self._finish(state, None, None, weights.embedding_norm)
        return state, spare

    def _attend(
        self, layer: LayerSlice, state: Floats, runs: Sequence[_Run], result: Floats
    ) -> None:
        """Writes this rank's summand of the attention's output, [tokens, H], to ``result``."""
        heads = self._weights.heads
        own = layer.attention_weight.shape[0]
        qkv = self._buffer("qkv", state.shape[0], 3 * own)
        np.matmul(state, layer.qkv_weight, out=qkv)
        qkv += layer.qkv_bias
        context = self._buffer("context", state.shape[0], own)
        for start, sentences, tokens in runs:
            rows = slice(start, start + sentences * tokens)
            # Views only: BLAS takes rows and columns at any distance from each other.
            split = qkv[rows].reshape(sentences, tokens, 3, heads, own // heads)
            queries, keys, values = split.transpose(2, 0, 3, 1, 4)
            mixed = context[rows].reshape(sentences, tokens, heads, -1).transpose(0, 2, 1, 3)
            scores = self._buffer("scores", sentences * heads, tokens * tokens)
            scores = scores.reshape(sentences, heads, tokens, tokens)
            np.matmul(queries, keys.swapaxes(2, 3), out=scores)
            sums = softmax_unscaled(scores)
            np.matmul(scores, values, out=mixed)
            mixed /= sums
        np.matmul(context, layer.attention_weight, out=result)

    def _feed_forward(self, layer: LayerSlice, state: Floats, result: Floats) -> None:
        """Writes this rank's summand of the feed-forward part, [rows, H], to ``result``."""
        columns = layer.up_weight.shape[1]
        step = max(_FEWEST_ROWS, _CACHED // columns)
        for start in range(0, state.shape[0], step):
            some = slice(start, start + step)
            inner = self._buffer("inner", state[some].shape[0], columns)
            np.matmul(state[some], layer.up_weight, out=inner)
            inner += layer.up_bias
            gelu(inner)
            np.matmul(inner, layer.down_weight, out=result[some])

    def _reduce(self, summand: Floats, allreduce: AllReduce) -> None:
        if self._alone:
            return
        started = time.perf_counter()
        allreduce(summand)
        self.collective_seconds += time.perf_counter() - started

    def _finish(
        self,
        values: Floats,
        residual: Floats | None,
        bias: Floats | None,
        norm: tuple[Floats, Floats],
    ) -> None:
        add_and_norm(values, residual, bias, norm, self._settings.norm_epsilon)

    def _pool(
        self, state: Floats, lengths: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]
    ) -> Floats:
        """Makes [sentences, H] of [tokens, H], each row of length 1."""
        if self._settings.pooling == "cls":
            return normalise_rows(state[starts])
        means = np.add.reduceat(state, starts, axis=0)
        means /= lengths[:, None].astype(np.float32)
        return normalise_rows(means)

    def _buffer(self, name: str, rows: int, width: int) -> Floats:
        """Gives [rows, width] of a work array that is kept, because fresh memory costs time."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * width:
            held = self._buffers[name] = np.empty(rows * width, np.float32)
        return held[: rows * width].reshape(rows, width)


def _equal_runs(lengths: Sequence[int], heads: int) -> list[_Run]:
    """Finds neighbours of equal length, no more of them than whose scores fit the cache."""
    runs: list[_Run] = []
    start = 0
    for tokens, group in itertools.groupby(lengths):
        left = len(list(group))
        most = max(1, _CACHED // (heads * tokens * tokens))
        while left:
            sentences = min(left, most)
            runs.append((start, sentences, tokens))
            start += sentences * tokens
            left -= sentences
    return runs
