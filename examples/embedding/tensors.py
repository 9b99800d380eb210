"""The client's side of the model, written with distributed tensors as if with arrays.

Nothing here names a worker or what moves between workers: the placements decide it.
Matrices that lead into heads and inner columns are split by columns, those that lead out
of them by rows; so the results of the latter are partial sums, which are redistributed to
be whole, twice a layer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from disco_client import ConfigError
from disco_client.distributed import Local, Pattern, TensorStructInfo, register_rule
from embedding.settings import read_settings, refuse_worker_count
from embedding.tokens import embed_all
from embedding.weights import read_slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import disco_client
    from disco_client.distributed import DTensor
    from embedding.numerics import Floats
    from embedding.report import Share
    from embedding.tokens import Batch
    from embedding.weights import LayerSlice

__all__ = ["TensorEmbedder"]


@register_rule("embedding.attention")
def _attention(
    qkv: TensorStructInfo, bias: TensorStructInfo, *, lengths: Sequence[int], head: int
) -> Local:
    if bias.shape != qkv.shape[1:]:
        raise ConfigError(f"expected a bias of {qkv.shape[1]}, got {tuple(bias.shape)}")
    tokens, width = qkv.shape
    heads = width // (3 * head)
    # The columns may be split between heads, and tokens not at all.
    pattern = Pattern((("", "h"), ("h",)), ("", "h"), even=(("h", heads),))
    options = {"lengths": list(lengths), "head": head}
    result = TensorStructInfo((tokens, heads * head), qkv.dtype)
    return Local("examples.embedding.attention", pattern, result, options)


@register_rule("embedding.gelu")
def _gelu(x: TensorStructInfo, bias: TensorStructInfo) -> Local:
    if bias.shape != x.shape[1:]:
        raise ConfigError(f"expected a bias of {x.shape[1]}, got {tuple(bias.shape)}")
    pattern = Pattern((("rows", "columns"), ("columns",)), ("rows", "columns"))
    return Local("examples.embedding.gelu", pattern, x)


@register_rule("embedding.add_and_norm")
def _add_and_norm(
    x: TensorStructInfo,
    residual: TensorStructInfo,
    bias: TensorStructInfo,
    scale: TensorStructInfo,
    shift: TensorStructInfo,
    *,
    epsilon: float,
) -> Local:
    if residual.shape != x.shape:
        raise ConfigError(f"expected a residual of {tuple(x.shape)}, got {tuple(residual.shape)}")
    for what, row in (("bias", bias), ("scale", scale), ("shift", shift)):
        if row.shape != x.shape[1:]:
            raise ConfigError(f"expected a {what} of {x.shape[1]}, got {tuple(row.shape)}")
    # Rows may be split; a norm is of whole rows.
    whole, row = ("rows", ""), ("",)
    pattern = Pattern((whole, whole, row, row, row), whole)
    return Local("examples.embedding.add_and_norm", pattern, x, {"epsilon": epsilon})


@register_rule("embedding.sentence_means")
def _sentence_means(rows: TensorStructInfo, *, lengths: Sequence[int]) -> Local:
    if sum(lengths) != rows.shape[0]:
        raise ConfigError(f"expected {sum(lengths)} rows, got {rows.shape[0]}")
    pattern = Pattern((("", "h"),), ("", "h"), linear=((0,),))
    result = TensorStructInfo((len(lengths), rows.shape[1]), rows.dtype)
    name = "examples.embedding.sentence_means"
    return Local(name, pattern, result, {"lengths": list(lengths)})


class _Layer(NamedTuple):
    """The weights of a layer; H is the model's width, F that of its feed-forward part.

    Attributes:
        qkv: [H, heads * 3 * head] and [heads * 3 * head], by columns.
        out: [H, H] by rows, and [H].
        norm: Scale and shift, [H] each.
        up: [H, F] and [F], by columns.
        down: [F, H] by rows, and [H].
        last_norm: Scale and shift, [H] each.
    """

    qkv: tuple[DTensor, DTensor]
    out: tuple[DTensor, DTensor]
    norm: tuple[DTensor, DTensor]
    up: tuple[DTensor, DTensor]
    down: tuple[DTensor, DTensor]
    last_norm: tuple[DTensor, DTensor]


class TensorEmbedder:
    """A model split over all workers of a session.

    Args:
        session: Its workers must be able to import this package.
        folder: The model's folder on the client; None means the installed
            all-MiniLM-L6-v2.

    Attributes:
        seconds: How long the latest ``embed`` took.
        shares: Empty; how the time divides is not known here.

    Raises:
        ModelError: The model cannot be read, or does not divide by the workers.
    """

    def __init__(self, session: disco_client.Session, folder: str | None = None) -> None:
        settings = read_settings(folder)
        refuse_worker_count(settings, session.num_workers)
        session.import_python_module("embedding.pieces")
        self._session, self._settings, self._mesh = session, settings, session.mesh()
        weights = read_slice(settings, 0, 1)
        self._head = settings.hidden // weights.heads
        self._words = self._put(weights.words, "R")
        self._positions = self._put(weights.positions, "R")
        self._norm = self._both(weights.embedding_norm)
        self._layers = [self._layer(layer, weights.heads) for layer in weights.layers]
        self.seconds = 0.0
        self.shares: list[Share] = []
        session.sync_all()

    def _put(self, array: Floats, placement: str) -> DTensor:
        return self._session.distribute(array, self._mesh, placement)

    def _both(self, pair: tuple[Floats, Floats]) -> tuple[DTensor, DTensor]:
        return self._put(pair[0], "R"), self._put(pair[1], "R")

    def _layer(self, layer: LayerSlice, heads: int) -> _Layer:
        def by_heads(part: Floats) -> Floats:
            # Queries, keys and values of a head side by side, so that columns split by heads.
            split = part.reshape(-1, 3, heads, self._head).swapaxes(1, 2)
            return split.reshape(*part.shape[:-1], -1)

        put = self._put
        return _Layer(
            (put(by_heads(layer.qkv_weight), "S[1]"), put(by_heads(layer.qkv_bias), "S[0]")),
            (put(layer.attention_weight, "S[0]"), put(layer.attention_bias, "R")),
            self._both(layer.attention_norm),
            (put(layer.up_weight, "S[1]"), put(layer.up_bias, "S[0]")),
            (put(layer.down_weight, "S[0]"), put(layer.down_bias, "R")),
            self._both(layer.output_norm),
        )

    def embed(self, batches: Iterable[Batch]) -> Floats:
        """Embeds the sentences of all batches.

        Args:
            batches: At least one.

        Returns:
            [sentences, H], float32, each row of length 1, in the sentences' order.

        Raises:
            disco_client.RemoteError: A worker could not embed a batch.
            disco_client.SessionLost: A worker, node or controller went away.
        """
        started = time.perf_counter()
        embeddings = embed_all(batches, self._forward)
        self.seconds = time.perf_counter() - started
        return embeddings

    def _forward(self, batch: Batch) -> DTensor:
        """The embeddings of a batch, [sentences, H]; returns at once."""
        apply = self._session.apply
        lengths = batch.lengths.tolist()
        starts = np.cumsum(batch.lengths) - batch.lengths
        places = np.arange(batch.ids.size) - np.repeat(starts, batch.lengths)
        state = apply("take", self._words, batch.ids) + apply("take", self._positions, places)
        epsilon = self._settings.norm_epsilon
        state = apply("layer_norm", state, *self._norm, epsilon=epsilon)
        for layer in self._layers:
            weights, bias = layer.qkv
            options = {"lengths": lengths, "head": self._head}
            mixed = apply("embedding.attention", state @ weights, bias, **options)
            state = self._add(mixed, layer.out, state, layer.norm)
            weights, bias = layer.up
            inner = apply("embedding.gelu", state @ weights, bias)
            state = self._add(inner, layer.down, state, layer.last_norm)
        if self._settings.pooling == "cls":
            pooled = apply("take", state, starts)
        else:
            pooled = apply("embedding.sentence_means", state, lengths=lengths)
        norms: Any = np.sqrt((pooled * pooled).sum(axis=1, keepdims=True))
        return pooled / norms

    def _add(
        self,
        x: DTensor,
        weights: tuple[DTensor, DTensor],
        state: DTensor,
        norm: tuple[DTensor, DTensor],
    ) -> DTensor:
        """Half a layer's end: its product and bias, the state before it, and their norm."""
        # The product is partial sums; whole, they are added to what is whole already, and the
        # next product needs them whole, too.
        product = (x @ weights[0]).redistribute("R")
        epsilon = self._settings.norm_epsilon
        operands = (product, state, weights[1], *norm)
        return self._session.apply("embedding.add_and_norm", *operands, epsilon=epsilon)
