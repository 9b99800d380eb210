"""Reading one rank's slices of a BERT-style model, and nothing more.

The attention heads and the feed-forward columns are divided evenly over the
ranks. Of the matrices that lead into them a rank reads its rows, of those that
lead out its columns; embeddings, normalisations and the biases that are added
after a reduction are needed by every rank in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from embedding.settings import ModelError, learn_bfloat16

if TYPE_CHECKING:
    from embedding.numerics import Floats
    from embedding.settings import ModelSettings

__all__ = ["LayerSlice", "ModelSlice", "Place", "TensorReader", "read_slice"]

Place = Callable[["Floats"], "Floats"]
"""Brings an array to the device that computes."""

_WORDS = "embeddings.word_embeddings.weight"
_EVERYTHING = (slice(None),)


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """One rank's share of one layer; H is the model's width, h and f the rank's share.

    Attributes:
        qkv_weight: [H, 3h]; queries, keys and values side by side, the queries
            already divided by the square root of a head's width.
        qkv_bias: [3h], likewise.
        attention_weight: [h, H]; its product is a partial sum.
        attention_bias: [H]; added once, after the reduction.
        attention_norm: Scale and shift, [H] each.
        up_weight: [H, f].
        up_bias: [f].
        down_weight: [f, H]; its product is a partial sum.
        down_bias: [H]; added once, after the reduction.
        output_norm: Scale and shift, [H] each.
    """

    qkv_weight: Floats
    qkv_bias: Floats
    attention_weight: Floats
    attention_bias: Floats
    attention_norm: tuple[Floats, Floats]
    up_weight: Floats
    up_bias: Floats
    down_weight: Floats
    down_bias: Floats
    output_norm: tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class ModelSlice:
    """One rank's share of a model.

    Attributes:
        settings: The whole model's figures.
        heads: How many heads this rank computes.
        words: [vocabulary, H].
        positions: [positions, H]; the embedding of the one token type in use is added in.
        embedding_norm: Scale and shift, [H] each.
        layers: This rank's share of each layer.
    """

    settings: ModelSettings
    heads: int
    words: Floats
    positions: Floats
    embedding_norm: tuple[Floats, Floats]
    layers: tuple[LayerSlice, ...]

    def placed(self, place: Place) -> ModelSlice:
        """The same share on another device.

        Args:
            place: Brings an array there.
        """
        return _placed(self, place)


def _placed(value: Any, place: Place) -> Any:
    """An array, or what consists of arrays, on another device; other things as they are."""
    if isinstance(value, np.ndarray):
        return place(cast("Floats", value))
    if isinstance(value, tuple):
        return tuple(_placed(part, place) for part in cast("tuple[Any, ...]", value))
    if isinstance(value, (LayerSlice, ModelSlice)):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _placed(part, place) for name, part in parts.items()})
    return value


class TensorReader:
    """Reads float32 arrays, or parts of them, from an open safetensors file.

    Args:
        source: What ``safe_open`` gave.
        settings: The model's figures; its folder is named in errors.

    Raises:
        ModelError: The file holds no BERT-style encoder.
    """

    def __init__(self, source: Any, settings: ModelSettings) -> None:
        self._source = source
        self._settings = settings
        self._names = frozenset[str](source.keys())
        # "embeddings...." in a bare encoder, "bert.embeddings...." in one with a head.
        prefixes = [name.removesuffix(_WORDS) for name in self._names if name.endswith(_WORDS)]
        if len(prefixes) != 1:
            raise ModelError(
                f"{settings.folder / 'model.safetensors'} holds no tensor named {_WORDS!r}. "
                "Choose a BERT-style sentence encoder."
            )
        self._prefix = prefixes[0]

    def read(
        self, name: str, shape: tuple[int | None, ...], part: tuple[slice, ...] = _EVERYTHING
    ) -> Floats:
        """Reads a tensor, or only the named part of it.

        Args:
            name: Its name in the file, without the prefix.
            shape: What the whole tensor's shape must be; None fits any extent.
            part: One slice for each leading dimension.

        Returns:
            The part, float32, C-contiguous.

        Raises:
            ModelError: There is no such tensor, or its shape or dtype is another.
        """
        full = self._prefix + name
        if full not in self._names:
            # Checkpoints from before PyTorch call the scale gamma and the shift beta.
            full = full.replace("LayerNorm.weight", "LayerNorm.gamma")
            full = full.replace("LayerNorm.bias", "LayerNorm.beta")
        try:
            source = self._source.get_slice(full)
            found = tuple(source.get_shape())
            fits = len(found) == len(shape) and all(
                want in (None, have) for have, want in zip(found, shape, strict=True)
            )
            if not fits:
                raise ModelError(
                    f"{full} has shape {list(found)} and config.json asks for "
                    f"{list(shape)}. Check that both files are of one download."
                )
            return np.ascontiguousarray(source[part], dtype=np.float32)
        except SafetensorError as error:
            raise ModelError(
                f"{full} cannot be read from {self._settings.folder / 'model.safetensors'} "
                f"({error}). Check that the download is complete."
            ) from error
        except TypeError as error:
            raise ModelError(
                f"{full} is of a type that numpy does not know here ({error}). "
                "For bfloat16 install ml_dtypes; other types must be converted to float32."
            ) from error

    def norm(self, name: str) -> tuple[Floats, Floats]:
        """Reads a layer normalisation's scale and shift, [H] each."""
        width = (self._settings.hidden,)
        return self.read(f"{name}.weight", width), self.read(f"{name}.bias", width)


def read_slice(settings: ModelSettings, rank: int, ranks: int) -> ModelSlice:
    """Reads what one rank needs of the model.

    Args:
        settings: The model's figures.
        rank: Which share, from 0.
        ranks: How many shares there are.

    Raises:
        ModelError: The model does not divide by ``ranks``, or the file does
            not fit the settings.
    """
    with _opened(settings) as source:
        reader = TensorReader(source, settings)
        hidden = settings.hidden
        positions = reader.read("embeddings.position_embeddings.weight", (None, hidden))
        types = reader.read(
            "embeddings.token_type_embeddings.weight", (None, hidden), (slice(0, 1),)
        )
        return ModelSlice(
            settings=settings,
            heads=settings.heads // ranks,
            words=reader.read(_WORDS, (None, hidden)),
            positions=positions + types,
            embedding_norm=reader.norm("embeddings.LayerNorm"),
            layers=tuple(
                _read_layer(reader, settings, f"encoder.layer.{layer}.", rank, ranks)
                for layer in range(settings.layers)
            ),
        )


def _opened(settings: ModelSettings) -> Any:
    learn_bfloat16()
    path = settings.folder / "model.safetensors"
    opener: Callable[..., Any] = safe_open
    try:
        return opener(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} cannot be opened ({error}). Check that the download is complete."
        ) from error


def _read_layer(
    reader: TensorReader, settings: ModelSettings, name: str, rank: int, ranks: int
) -> LayerSlice:
    hidden, inner = settings.hidden, settings.feed_forward
    own = _share(hidden, rank, ranks)
    columns = _share(inner, rank, ranks)
    weights: list[Floats] = []
    biases: list[Floats] = []
    for part in ("query", "key", "value"):
        weights.append(reader.read(f"{name}attention.self.{part}.weight", (hidden, hidden), (own,)))
        biases.append(reader.read(f"{name}attention.self.{part}.bias", (hidden,), (own,)))
    scale = np.float32(1 / math.sqrt(hidden // settings.heads))
    weights[0] *= scale
    biases[0] *= scale
    return LayerSlice(
        qkv_weight=_transposed(np.concatenate(weights)),
        qkv_bias=np.concatenate(biases),
        attention_weight=_transposed(
            reader.read(
                f"{name}attention.output.dense.weight", (hidden, hidden), (slice(None), own)
            )
        ),
        attention_bias=reader.read(f"{name}attention.output.dense.bias", (hidden,)),
        attention_norm=reader.norm(f"{name}attention.output.LayerNorm"),
        up_weight=_transposed(
            reader.read(f"{name}intermediate.dense.weight", (inner, hidden), (columns,))
        ),
        up_bias=reader.read(f"{name}intermediate.dense.bias", (inner,), (columns,)),
        down_weight=_transposed(
            reader.read(f"{name}output.dense.weight", (hidden, inner), (slice(None), columns))
        ),
        down_bias=reader.read(f"{name}output.dense.bias", (hidden,)),
        output_norm=reader.norm(f"{name}output.LayerNorm"),
    )


def _share(extent: int, rank: int, ranks: int) -> slice:
    each = extent // ranks
    return slice(rank * each, (rank + 1) * each)


def _transposed(weight: Floats) -> Floats:
    # Files store [outputs, inputs]; a forward pass multiplies rows of inputs by [inputs, outputs].
    return np.ascontiguousarray(weight.T)
