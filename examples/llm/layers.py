"""What one worker computes: its share of the layers, its share of the cache, its vocabulary.

Workers import this file of the package, which `Session.include` brings to them. `Share` is plain
numpy and knows nothing of workers; the functions below it are what a session calls by name. Each of
them returns a partial sum of all workers, or a whole that is the same on all of them.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import disco_server
from llm.blocks import Blocks
from llm.choosing import History, Note, choose, note
from llm.compiling import compiler, import_compiled
from llm.fused import fuse, join_biases
from llm.products import affine, matrix, nbytes_of, product
from llm.steps import Batch, Found, Latest, Sight, SingleRows, Span
from llm.turning import Angles

__all__ = ["BLOCK", "Share"]

BLOCK = 16
"""How many positions a block of the cache has."""

Array = np.ndarray[Any, Any]


class Share:
    """One worker's share of a model.

    Args:
        config: The fields of `llm.config.Config`.
        shares: The fields of `llm.shares.Shares`.
        worker: Which worker this is.
        weights: This worker's parts, by the names of `Checkpoint.names`; float32, matrices
            as [out, in].
        formats: Of those that are bytes of blocks, by name: a format of `llm.blocks.FORMATS`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        shares: dict[str, Any],
        worker: int,
        weights: dict[str, Array],
        formats: dict[str, str],
    ) -> None:
        self.head = int(config["head"])
        self.width = int(config["width"])
        self.epsilon = np.float32(config["epsilon"])
        self.activate = _ACTIVATIONS[config["activation"]]
        self.traits: dict[str, Any] = config["traits"]
        # Where the products are compiled, what lies between them is too.
        self.compiled = import_compiled("compiled") if formats else None
        first, end = shares["heads"][worker]
        self.heads = end - first
        each = int(config["heads"]) // int(config["kv_heads"])
        first_kv, end_kv = shares["kv_heads"][worker]
        self.kv_heads = end_kv - first_kv
        # Which of this worker's query heads read each of its heads of keys and values.
        self.readers = [
            slice(max(kv * each, first) - first, min((kv + 1) * each, end) - first)
            for kv in range(first_kv, end_kv)
        ]
        self.read_by: Array = np.array(
            [kv for kv, own in enumerate(self.readers) for _ in range(own.start, own.stop)]
        )
        self.is_first = worker == 0
        self.first_token, _ = shares["tokens"][worker]
        self.vocabulary = [end - first for first, end in shares["tokens"]]
        first, end = shares["inner"][worker]
        own = self._own(weights, formats, worker, end - first)
        self.layers = [
            {
                name.partition(".")[2]: array
                for name, array in own.items()
                if name.startswith(f"{layer}.")
            }
            for layer in range(int(config["layers"]))
        ]
        self.norm, self.embedding = own["norm"], own["embedding"]
        self.output = own.get("output", self.embedding)
        context, interleaved = int(config["context"]), bool(config["interleaved"])
        far = Angles(config["rope"], self.head, context, interleaved=interleaved)
        own_rope = self.traits["local_rope"]
        near = own_rope and Angles(own_rope, self.head, context, interleaved=interleaved)
        self.angles: tuple[Angles, Angles] = far, near or far

    def _own(
        self, weights: dict[str, Array], formats: dict[str, str], worker: int, columns: int
    ) -> dict[str, Any]:
        """This worker's matrices as it multiplies by them, its biases, and norms as they count."""
        queries, kv = self.heads * self.head, self.kv_heads * self.head
        rows = {"query": queries, "key": kv, "value": kv, "gate": columns, "up": columns}
        offset = np.float32(self.traits["norm_offset"])
        own: dict[str, Any] = {}
        for name, parts in fuse(weights).items():
            # The parts of all workers are added up, and the bias of a sum counts once.
            if worker != 0 and name.endswith(("out_bias", "down_bias")):
                continue
            if name.endswith("_bias"):
                own[name] = join_biases(name, weights, rows)
            elif name.endswith("norm"):
                own[name] = weights[name] + offset if offset else weights[name]
            else:
                own[name] = matrix([(weights[part], formats.get(part, "")) for part in parts])
        return own

    def weight_bytes(self) -> int:
        """The bytes that matrices, biases and norms take."""
        own = [array for layer in self.layers for array in layer.values()]
        own += [self.norm, self.embedding]
        if self.output is not self.embedding:
            own.append(self.output)
        return sum(map(nbytes_of, own))

    def make_cache(self, blocks: int) -> Array:
        """[layers, 2, heads of keys and values, positions, head]: keys and values, float32."""
        shape = (len(self.layers), 2, self.kv_heads, blocks * BLOCK, self.head)
        return np.zeros(shape, np.float32)

    # A step ------------------------------------------------------------------------------

    def begin(
        self,
        newest: Array,
        ids: Array,
        spans: Array,
        tables: Array,
        sampling: Array,
        histories: Mapping[int, History] | None = None,
    ) -> Batch:
        """Prepares a step.

        Args:
            newest: [slots], integers: the newest token of each sequence.
            ids: [rows], integers: the tokens; -1 for the newest one of the sequence.
            spans: [sequences, 6], integers: slot, first position, how many rows, whether the
                next token is wanted, seed, whether its history counts.
            tables: [sequences, blocks], integers: the cache's blocks of each sequence.
            sampling: [sequences, 2]: temperature, 0 for the likeliest token, and top-p.
            histories: Those of the slots; None where none counts.
        """
        made: list[Span] = []
        single: list[tuple[int, int]] = []
        positions = np.empty(len(ids), np.int64)
        places = np.empty(len(ids), np.int64)
        ids, row = ids.astype(np.int64), 0
        wanted: list[int] = []
        slots: list[int] = []
        draws: list[tuple[int, int, float, float]] = []
        chosen_by: dict[int, History] = {}
        scored: list[tuple[slice, int, int, History]] = []
        sizes: list[list[int]] = spans.tolist()
        ways: list[list[float]] = sampling.tolist()
        for n, ((slot, start, count, wants, seed, told), table, (temperature, top_p)) in enumerate(
            zip(sizes, tables, ways, strict=True)
        ):
            rows, end = slice(row, row + count), start + count
            row += count
            if ids[rows.start] < 0:
                ids[rows.start] = newest[slot]
            held = _held(table, end)
            at = np.arange(start, end)
            positions[rows] = at
            places[rows] = held.start + at if isinstance(held, slice) else held[start:end]
            if count == 1 and self.compiled is not None:
                single.append((rows.start, n))
            else:
                made.append(Span(rows, self._sights(held, at)))
            if told and histories is not None:
                history = histories[slot]
                if wants:
                    chosen_by[len(wanted)] = history
                last = min(end, history.prompt - 1)
                if history.sampling.scores_prompt and start < last:
                    told_rows = slice(rows.start, rows.start + last - start)
                    scored.append((told_rows, slot, start, history))
            if wants:
                wanted.append(row - 1)
                slots.append(slot)
                draws.append((seed, end, temperature, top_p))
        return Batch(
            ids,
            self._turns(positions),
            places,
            made,
            self._single_rows(single, tables, positions),
            np.array(wanted, np.int64),
            np.array(slots, np.int64),
            draws,
            chosen_by,
            scored,
            (spans, tables, sampling),
        )

    @staticmethod
    def _single_rows(
        single: Sequence[tuple[int, int]], tables: Array, positions: Array
    ) -> SingleRows | None:
        """Rows, each with the number of its sequence, as `SingleRows`."""
        if not single:
            return None
        rows, sequences = np.array(single, np.int64).T.copy()
        return SingleRows(rows, np.ascontiguousarray(tables[sequences]), positions[rows])

    def follow(
        self, newest: Array, batch: Batch, histories: Mapping[int, History] | None = None
    ) -> Batch:
        """Prepares the step behind another one: one token more of each of its sequences.

        Args:
            newest: See `begin`.
            batch: The step before, in which each sequence wants its next token; its tables have
                the blocks for it.
            histories: See `begin`.
        """
        former, tables, sampling = batch.given
        spans = former.copy()
        spans[:, 1] += former[:, 2]
        spans[:, 2] = 1
        return self.begin(newest, np.full(len(spans), -1), spans, tables, sampling, histories)

    def embed(self, batch: Batch) -> Array:
        """[rows, width]: the embeddings of the tokens that are this worker's, else 0."""
        columns = batch.ids - self.first_token
        mine = (columns >= 0) & (columns < self.embedding.shape[1])
        x = np.zeros((len(columns), self.width), np.float32)
        own = self.embedding
        x[mine] = own.columns(columns[mine]) if isinstance(own, Blocks) else own[:, columns[mine]].T
        if self.traits["embedding_scale"] != 1:
            x *= np.float32(self.traits["embedding_scale"])
        return x

    def add(self, x: Array, more: Array, layer: int, norm: str) -> None:
        """Adds in place what a part of a layer has brought, normalised where the model does.

        Args:
            x: [rows, width], the hidden state.
            more: [rows, width], the sum of what all workers brought.
            layer: The number of the layer; -1 for the last one.
            norm: The norm behind the part: ``after_norm`` or ``inner_after_norm``.
        """
        weight = self.layers[layer].get(norm)
        x += more if weight is None else self.normalize(more, weight)

    def attend(self, cache: Array, batch: Batch, x: Array, layer: int) -> Array:
        """[rows, width]: what this worker's heads add; their keys and values go to the cache."""
        own = self.layers[layer]
        local = layer in self.traits["local"]
        found = affine(self.normalize(x, own["norm"]), own, "query_key_value")
        heads = found.reshape(len(x), -1, self.head)
        turned = self._turned(heads[:, : self.heads + self.kv_heads], own, batch, local)
        asked, keys, values = turned[:, : self.heads], *cache[layer]
        self._store(cache[layer], batch.places, turned[:, self.heads :], heads[:, -self.kv_heads :])
        asked *= np.float32(self.traits["attention_scale"] or self.head**-0.5)
        mixed = np.empty_like(asked)
        if batch.singles is not None:
            self._attend_singly(mixed, asked, cache[layer], batch.singles, local)
        for span in batch.spans:
            sight = span.sights[local]
            for kv, readers in enumerate(self.readers):
                own_keys, own_values = keys[kv, sight.held], values[kv, sight.held]
                q = asked[span.rows, readers]
                scores = q.reshape(-1, self.head) @ own_keys.T
                _cap(scores, self.traits["attention_cap"])
                if sight.hidden is not None:
                    by_head = scores.reshape(*q.shape[:2], -1)
                    np.copyto(by_head, -np.inf, where=sight.hidden[:, None])
                scores -= scores.max(axis=1, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(axis=1, keepdims=True)
                mixed[span.rows, readers] = (scores @ own_values).reshape(q.shape)
        return affine(mixed.reshape(len(x), -1), own, "out")

    def _attend_singly(
        self, mixed: Array, asked: Array, cache: Array, singles: SingleRows, local: bool
    ) -> None:
        """Attention of single rows, by the compiled function for all of them."""
        assert self.compiled is not None  # noqa: S101
        window = self.traits["window"] if local else 0
        self.compiled.attend(
            mixed,
            np.ascontiguousarray(asked),  # for which alone it was compiled
            cache,
            singles.rows,
            singles.tables,
            singles.positions,
            self.read_by,
            BLOCK,
            window or 0,
            np.float32(self.traits["attention_cap"]),
        )

    def feed_forward(self, x: Array, layer: int) -> Array:
        """[rows, width]: what this worker's columns of the feed-forward part add."""
        own = self.layers[layer]
        h = self.normalize(x, own["inner_norm"])
        found = affine(h, own, "gate_up")
        columns = found.shape[1] // 2
        return affine(self._gated(found[:, :columns], found[:, columns:]), own, "down")

    def logits(self, x: Array) -> Array:
        """[rows, the most tokens of any worker]: of this worker's tokens, and then -inf."""
        mine = product(self.normalize(x, self.norm), self.output)
        _cap(mine, self.traits["logit_cap"])
        widest = max(self.vocabulary)
        if mine.shape[1] == widest:
            return mine
        padded = np.full((len(x), widest), -np.inf, np.float32)
        padded[:, : mine.shape[1]] = mine
        return padded

    def whole(self, gathered: Array) -> Array:
        """[rows, tokens]: what all workers' logits make, of [workers, rows, widest]."""
        parts = zip(gathered, self.vocabulary, strict=True)
        return np.concatenate([part[:, :count] for part, count in parts], axis=1)

    def find_next(
        self,
        newest: Array,
        batch: Batch,
        x: Array,
        allgather: Callable[[Array], Array],
        from_first: Callable[[Array], Array],
    ) -> Array:
        """[tokens wanted], integers: the next tokens, which are also remembered.

        Args:
            newest: See `begin`; gets them.
            batch: The step.
            x: [rows, width], the hidden state behind the last layer.
            allgather: Collects the workers' arrays.
            from_first: Gives all of them the first one's array.
        """
        return self.find_noted(newest, batch, x, allgather, from_first)[0]

    def find_noted(
        self,
        newest: Array,
        batch: Batch,
        x: Array,
        allgather: Callable[[Array], Array],
        from_first: Callable[[Array], Array],
    ) -> Found:
        """As `find_next`, with what sequences that ask for it are told; the first worker has it."""
        mine = self.logits(x[batch.wanted])
        best = mine.argmax(axis=1)
        likeliest = mine[np.arange(len(mine)), best].astype(np.float64)
        # Both are exact in 64 bits. Among equals the first worker's, and so the first token, wins.
        everyones = allgather(np.stack([likeliest, best + float(self.first_token)]))
        winners = everyones[:, 0].argmax(axis=0)
        found = everyones[winners, 1, np.arange(len(mine))].astype(np.int64)
        notes: list[tuple[int, Note]] = []
        chosen = [n for n, draw in enumerate(batch.draws) if draw[2] > 0 or n in batch.histories]
        if chosen:
            logits = self.whole(allgather(mine[chosen]))
            # One worker chooses: others may compute the last digit of an exponential differently.
            if self.is_first:
                found[chosen] = [
                    _choose(row, batch.draws[n], batch.histories.get(n))
                    for n, row in zip(chosen, logits, strict=True)
                ]
            found[chosen] = from_first(found[chosen])
            notes = self._note(batch, found, zip(chosen, logits, strict=True))
        newest[batch.slots] = found
        return found, notes, self._score(batch, x, allgather)

    def _note(
        self, batch: Batch, found: Array, rows: Iterable[tuple[int, Array]]
    ) -> list[tuple[int, Note]]:
        """Tells sequences their tokens, and those that ask for it how likely these were."""
        notes: list[tuple[int, Note]] = []
        for n, row in rows:
            if (history := batch.histories.get(n)) is None:
                continue
            history.add(token := int(found[n]))
            count = history.sampling.logprobs
            if count is not None and self.is_first:
                notes.append((n, note(row, token, count)))
        return notes

    def _score(
        self, batch: Batch, x: Array, allgather: Callable[[Array], Array]
    ) -> list[tuple[int, int, list[Note]]]:
        """How likely tokens of prompts were: slot, the first one's position, and each one's."""
        scores: list[tuple[int, int, list[Note]]] = []
        for rows, slot, start, history in batch.scored:
            logits = self.whole(allgather(self.logits(x[rows])))
            if self.is_first:
                count = history.sampling.logprobs or 0
                told = history.tokens[start + 1 : start + 1 + len(logits)]
                pairs = zip(logits, told, strict=True)
                scores.append((slot, start + 1, [note(row, token, count) for row, token in pairs]))
        return scores

    # Parts of it -------------------------------------------------------------------------

    def normalize(self, x: Array, weight: Array) -> Array:
        """RMS normalisation (Zhang and Sennrich, arXiv:1910.07467)."""
        if self.compiled is not None:
            return self.compiled.normalize(np.ascontiguousarray(x), weight, self.epsilon)
        scale = np.square(x).mean(axis=-1, keepdims=True)
        scale += self.epsilon
        return x / np.sqrt(scale, out=scale) * weight

    def _turned(self, heads: Array, own: dict[str, Any], batch: Batch, local: bool) -> Array:
        """[rows, heads, head]: this worker's heads of queries, then those of keys, turned."""
        if self.traits["head_norms"]:
            parts = np.split(heads, [self.heads], axis=1)
            norms = own["query_norm"], own["key_norm"]
            heads = np.concatenate(list(map(self.normalize, parts, norms)), axis=1)
        angles, turns = self.angles[local], batch.turns[local]
        if self.compiled is not None:
            return self.compiled.turn(heads, *turns, angles.apart)
        return angles.turn(heads, turns)

    def _store(self, cache: Array, places: Array, keys: Array, values: Array) -> None:
        """Keeps the rows' keys and values, [rows, heads, head], in the cache of a layer."""
        if self.compiled is not None:
            self.compiled.store(cache, places, keys, values)
            return
        cache[0][:, places] = keys.transpose(1, 0, 2)
        cache[1][:, places] = values.transpose(1, 0, 2)

    def _gated(self, gate: Array, up: Array) -> Array:
        """The feed-forward part's columns, where gates let them pass."""
        if self.compiled is not None and self.activate is _silu:
            return self.compiled.silu_times(gate, up)
        self.activate(gate)
        return np.multiply(gate, up)

    def _turns(self, positions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """See `Batch.turns`."""
        far, near = self.angles
        turns = far.at(positions)
        return turns, turns if near is far else near.at(positions)

    def _sights(self, held: slice | Array, at: Array) -> tuple[Sight, Sight]:
        """What rows at consecutive positions see: all before them, and a window of it."""
        start, end = int(at[0]), int(at[-1]) + 1
        all_hidden = np.arange(end) > at[:, None] if len(at) > 1 else None
        every = Sight(held, all_hidden)
        window = self.traits["window"]
        if not window or end <= window:
            return every, every
        first = max(start + 1 - window, 0)
        seen = slice(held.start + first, held.stop) if isinstance(held, slice) else held[first:]
        if all_hidden is None:
            return every, Sight(seen, None)
        hidden = all_hidden[:, first:].copy()
        hidden[np.arange(first, end) <= at[:, None] - window] = True
        return every, Sight(seen, hidden)


def _cap(x: Array, cap: float) -> None:
    """Bends numbers smoothly into (-cap, cap), in place; 0 for no cap."""
    if cap:
        x /= np.float32(cap)
        np.tanh(x, out=x)
        x *= np.float32(cap)


def _choose(logits: Array, draw: tuple[int, int, float, float], history: History | None) -> int:
    """The token behind a row that no maximum of each worker finds."""
    return choose(logits, *draw) if history is None else history.next_token(logits, *draw[:2])


def _silu(x: Array) -> None:
    with np.errstate(over="ignore"):  # of a large negative number: the result is 0
        x /= 1 + np.exp(-x)


def _gelu(x: Array) -> None:
    # numpy has no error function; the one of C takes a number at a time.
    numbers = (x.ravel() * np.float32(0.5**0.5)).tolist()
    spread = np.fromiter(map(math.erf, numbers), np.float32, x.size).reshape(x.shape)
    x *= 0.5 * (1 + spread)


def _gelu_tanh(x: Array) -> None:
    x *= 0.5 * (1 + np.tanh(np.float32((2 / math.pi) ** 0.5) * (x + 0.044715 * x**3)))


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)


_ACTIVATIONS: dict[str, Callable[[Array], None]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
"""By the names of `llm.config.Config.activation`; they work in place."""


def _held(table: Array, end: int) -> slice | Array:
    """Where the first positions of a sequence are in the cache."""
    used = table[: -(-end // BLOCK)]
    first = int(used[0])
    if int(used[-1]) - first == len(used) - 1 and bool((np.diff(used) == 1).all()):
        return slice(first * BLOCK, first * BLOCK + end)
    return (used[:, None].astype(np.int64) * BLOCK + np.arange(BLOCK)).reshape(-1)[:end]


# What a session calls ----------------------------------------------------------------------


@disco_server.register_func("llm.machine")
def find_machine() -> tuple[str, int]:
    """The name of this worker's machine, and how many of its cores the worker may use."""
    return socket.gethostname(), len(os.sched_getaffinity(0))


@disco_server.register_func("llm.share")
def make_share(
    config: dict[str, Any],
    shares: dict[str, Any],
    weights: dict[str, Array],
    formats: dict[str, str],
) -> Share:
    """This worker's share of the model."""
    return Share(config, shares, disco_server.current_worker().worker_id, weights, formats)


@disco_server.register_func("llm.weight_bytes")
def weight_bytes(share: Share) -> int:
    """See `Share.weight_bytes`."""
    return share.weight_bytes()


@disco_server.register_func("llm.compiler")
def find_compiler() -> str:
    """See `llm.compiling.compiler`."""
    return compiler()


@disco_server.register_func("llm.cache")
def make_cache(share: Share, blocks: int) -> Array:
    """See `Share.make_cache`."""
    return share.make_cache(blocks)


@disco_server.register_func("llm.latest")
def make_latest(slots: int) -> Latest:
    """What the first step finds."""
    return Latest(np.zeros(slots, np.int64))


@disco_server.register_func("llm.begin")
def begin(
    share: Share,
    latest: Latest,
    ids: Array,
    spans: Array,
    tables: Array,
    sampling: Array,
    told: Sequence[tuple[int, dict[str, Any], Array, int]],
) -> Batch:
    """See `Latest.tell` and `Share.begin`."""
    latest.tell(told)
    return share.begin(latest.tokens, ids, spans, tables, sampling, latest.histories)


@disco_server.register_func("llm.follow")
def follow(share: Share, latest: Latest) -> Batch:
    """See `Share.follow`."""
    assert latest.batch is not None  # noqa: S101
    return share.follow(latest.tokens, latest.batch, latest.histories)


@disco_server.register_func("llm.embed")
def embed(share: Share, batch: Batch) -> Array:
    """See `Share.embed`."""
    return share.embed(batch)


@disco_server.register_func("llm.attend")
def attend(
    share: Share, cache: Array, batch: Batch, x: Array, more: Array | None, layer: int
) -> Array:
    """Adds what the layer before has brought, in place; then see `Share.attend`."""
    if more is not None:
        share.add(x, more, layer - 1, "inner_after_norm")
    return share.attend(cache, batch, x, layer)


@disco_server.register_func("llm.feed_forward")
def feed_forward(share: Share, x: Array, more: Array, layer: int) -> Array:
    """Adds what attention has brought, in place; then see `Share.feed_forward`."""
    share.add(x, more, layer, "after_norm")
    return share.feed_forward(x, layer)


@disco_server.register_func("llm.next")
def find_next(share: Share, latest: Latest, batch: Batch, x: Array, more: Array) -> Array | Found:
    """Adds what the last layer has brought; then see `Share.find_next`.

    Where a sequence of the step is told more than tokens, see `Share.find_noted`.
    """
    worker = disco_server.current_worker()
    share.add(x, more, -1, "inner_after_norm")
    latest.batch = batch

    def from_first(mine: Array) -> Array:
        return worker.allreduce(mine if worker.worker_id == 0 else np.zeros_like(mine))

    found = share.find_noted(latest.tokens, batch, x, worker.allgather, from_first)
    return found if batch.tells else found[0]


@disco_server.register_func("llm.logits")
def all_logits(share: Share, x: Array, more: Array) -> Array:
    """[rows, tokens]: the logits behind each row."""
    worker = disco_server.current_worker()
    share.add(x, more, -1, "inner_after_norm")
    return share.whole(worker.allgather(share.logits(x)))
