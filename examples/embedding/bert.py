"""One rank's share of a BERT-style encoder, from token numbers to sentence vectors.

The hidden state is the same on every rank. A rank computes its own heads and
its own feed-forward columns, whose result is one summand of the
layer's result: two reductions a layer add the summands up. This module does not
depend on what performs them: Disco, plain MPI, or nothing where there is one
rank.

The tokens of a batch stand one after the other, [tokens, H], without padding:
everything but the attention takes tokens as they come. On a CPU the attention
takes together those sentences that happen to be of one length, so that no work is
spent on padding, and there is no mask to apply; on a GPU, where many small pieces
of work take longer than a few large ones, it pads.

The arrays are those of the module `xp`, numpy or cupy. Those of cupy are computed
while this code is ahead: nothing between the check of a batch and its last layer
asks for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embedding.arithmetic import arithmetic_for
from embedding.attention import mix
from embedding.clocks import clock_for
from embedding.layout import lay_out
from embedding.settings import refuse_worker_count
from embedding.weights import read_slice

if TYPE_CHECKING:
    import numpy.typing as npt

    from embedding.layout import Layout, Run
    from embedding.numerics import Floats
    from embedding.settings import ModelSettings
    from embedding.weights import LayerSlice

__all__ = ["AllReduce", "BertSlice"]

AllReduce = Callable[["Floats"], None]
"""Adds up an array over all ranks, in place; what is computed next finds the sum there."""

# Matrix products over fewer rows than this would not run at full speed.
_FEWEST_ROWS = 128


class BertSlice:
    """The weights of one rank, its work space, and the time it has spent.

    Args:
        settings: The whole model's figures.
        rank: Which share of the model, from 0.
        ranks: How many shares there are.
        xp: The module that computes, numpy or cupy; the weights go to its device.

    Raises:
        ModelError: The model cannot be read, or does not divide by ``ranks``.
    """

    def __init__(self, settings: ModelSettings, rank: int, ranks: int, xp: Any = np) -> None:
        refuse_worker_count(settings, ranks)
        self._settings = settings
        self._xp = xp
        self._math = arithmetic_for(xp)
        self._clock = clock_for(xp)
        self._weights = read_slice(settings, rank, ranks).placed(xp.asarray)
        self._alone = ranks == 1
        self._buffers: dict[str, Floats] = {}

    def times(self) -> tuple[float, float]:
        """The seconds spent so far: in forward passes less reductions, and in reductions.

        A reduction counts with the wait for slower ranks. On a GPU it is the GPU's
        own time; see `DeviceClock`.
        """
        return self._clock.read()

    def forward(
        self,
        ids: npt.NDArray[np.int32],
        lengths: Sequence[int] | npt.NDArray[np.int32],
        allreduce: AllReduce,
    ) -> Floats:
        """Embeds a batch of sentences; every rank must call it with the same batch.

        Args:
            ids: [tokens], integers: the tokens of all sentences, one after the other;
                an array of ``xp``.
            lengths: [sentences], integers: how many of them each sentence has,
                special ones included; on the host in any case.
            allreduce: Adds up an array over the ranks; not called by a lone rank.

        Returns:
            [sentences, H], float32, each row of length 1; the same on every rank.

        Raises:
            ValueError: The arrays do not fit each other or the model.
        """
        extents = np.asarray(lengths, np.int32)
        self._clock.begin()
        self._refuse(ids, extents)
        math, weights = self._math, self._weights
        layout = lay_out(
            extents, weights.heads, math.AT_ONCE, pads=math.PADS, place=self._xp.asarray
        )
        state, spare = self._embed(ids, layout)
        for layer in weights.layers:
            self._attend(layer, state, layout.runs, spare)
            self._reduce(spare, allreduce)
            self._finish(spare, state, layer.attention_bias, layer.attention_norm)
            state, spare = spare, state
            self._feed_forward(layer, state, spare)
            self._reduce(spare, allreduce)
            self._finish(spare, state, layer.down_bias, layer.output_norm)
            state, spare = spare, state
        pooled = self._pool(state, layout)
        self._clock.end()
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
        # The one question to a GPU, and therefore asked once: nothing of this batch has begun.
        lowest, highest = self._xp.stack((ids.min(), ids.max())).tolist()
        if lowest < 0 or highest >= vocabulary:
            raise ValueError(
                f"tokens must be 0 to {vocabulary - 1}, got {lowest} to {highest}; "
                "use the model's own tokenizer"
            )

    def _embed(self, ids: npt.NDArray[np.int32], layout: Layout) -> tuple[Floats, Floats]:
        """Looks the tokens up; returns the first hidden state and room for the next."""
        weights = self._weights
        state = self._buffer("state", ids.size, self._settings.hidden)
        spare = self._buffer("spare", ids.size, self._settings.hidden)
        self._math.take_rows(weights.words, ids, state)
        self._math.take_rows(weights.positions, layout.positions, spare)
        state += spare
        self._finish(state, None, None, weights.embedding_norm)
        return state, spare

    def _attend(
        self, layer: LayerSlice, state: Floats, runs: Sequence[Run], result: Floats
    ) -> None:
        """Writes this rank's summand of the attention's output, [tokens, H], to ``result``."""
        own = layer.attention_weight.shape[0]
        qkv = self._buffer("qkv", state.shape[0], 3 * own)
        self._xp.matmul(state, layer.qkv_weight, out=qkv)
        qkv += layer.qkv_bias
        context = self._buffer("context", state.shape[0], own)
        for run in runs:
            if run.padding is None:
                self._mix(run, qkv[run.rows], context[run.rows])
            else:
                mixed = self._buffer("mixed", run.sentences * run.tokens, own)
                self._mix(run, self._xp.take(qkv, run.padding.rows, axis=0), mixed)
                self._math.take_rows(mixed, run.padding.places, context[run.rows])
        self._xp.matmul(context, layer.attention_weight, out=result)

    def _mix(self, run: Run, qkv: Floats, result: Floats) -> None:
        heads, sentences, tokens = self._weights.heads, run.sentences, run.tokens
        split = qkv.reshape(sentences, tokens, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = self._buffer("scores", sentences * heads, tokens * tokens)
        mix(self._xp, self._math, run, split, scores, result)

    def _feed_forward(self, layer: LayerSlice, state: Floats, result: Floats) -> None:
        """Writes this rank's summand of the feed-forward part, [rows, H], to ``result``."""
        columns = layer.up_weight.shape[1]
        step = max(_FEWEST_ROWS, self._math.AT_ONCE // columns)
        for start in range(0, state.shape[0], step):
            some = slice(start, start + step)
            inner = self._buffer("inner", state[some].shape[0], columns)
            self._xp.matmul(state[some], layer.up_weight, out=inner)
            inner += layer.up_bias
            self._math.gelu(inner)
            self._xp.matmul(inner, layer.down_weight, out=result[some])

    def _reduce(self, summand: Floats, allreduce: AllReduce) -> None:
        if self._alone:
            return
        self._clock.pause()
        allreduce(summand)
        self._clock.resume()

    def _finish(
        self,
        values: Floats,
        residual: Floats | None,
        bias: Floats | None,
        norm: tuple[Floats, Floats],
    ) -> None:
        self._math.add_and_norm(values, residual, bias, norm, self._settings.norm_epsilon)

    def _pool(self, state: Floats, layout: Layout) -> Floats:
        """Makes [sentences, H] of [tokens, H], each row of length 1."""
        if self._settings.pooling == "cls":
            return self._math.normalise_rows(state[layout.starts])
        return self._math.normalise_rows(self._math.mean_rows(state, layout))

    def _buffer(self, name: str, rows: int, width: int) -> Floats:
        """Gives [rows, width] of a work array that is kept, because fresh memory costs time."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * width:
            held = self._buffers[name] = self._xp.empty(rows * width, np.float32)
        return held[: rows * width].reshape(rows, width)
