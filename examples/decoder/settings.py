"""The figures of a decoder, and its weights: random ones, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["DecoderSettings", "Floats", "SettingsError", "random_weights", "refuse_workers"]

Floats = npt.NDArray[np.float32]


class SettingsError(ValueError):
    """Figures that do not fit each other, the prompt, or the number of workers."""


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """The figures of a model.

    Attributes:
        layers: How many layers.
        width: H, the width of the hidden state.
        heads: How many heads ask.
        kv_heads: How many keys and values there are; each serves heads / kv_heads heads
            (grouped-query attention, Ainslie et al., arXiv:2305.13245).
        head: The width of a head, even.
        inner: The width of the feed-forward part.
        vocabulary: How many tokens there are; 256, where tokens are bytes.
        context: The most tokens, of prompt and answer together.
        base: Of the angles of rotary positions (Su et al., arXiv:2104.09864).
        epsilon: What RMS normalisation adds to the mean square.
    """

    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    head: int = 32
    inner: int = 704
    vocabulary: int = 256
    context: int = 256
    base: float = 10000.0
    epsilon: float = 1e-6


def refuse_workers(settings: DecoderSettings, workers: int) -> None:
    """Lets pass only numbers of workers over which the model can be split.

    Raises:
        SettingsError: The keys and values, or the inner width, cannot be divided so.
    """
    if workers < 1 or settings.kv_heads % workers or settings.inner % workers:
        fitting = [
            number
            for number in range(1, settings.kv_heads + 1)
            if not settings.kv_heads % number and not settings.inner % number
        ]
        raise SettingsError(
            f"The model's {settings.kv_heads} heads of keys and values cannot be divided over "
            f"{workers} workers. Use {', '.join(map(str, fitting))}."
        )


def random_weights(settings: DecoderSettings, seed: int) -> dict[str, Floats]:
    """Makes the weights of a model, the same ones for the same seed.

    Args:
        settings: The figures; H is the width.
        seed: Of numpy's default generator.

    Returns:
        By name: ``words`` [vocabulary, H], ``head`` [H, vocabulary], ``norm`` [H], and
        of each layer number ``N.norm`` and ``N.inner_norm`` [H], ``N.query``, ``N.key``,
        ``N.value`` [H, heads of it * head], ``N.out`` [heads * head, H], ``N.gate`` and
        ``N.up`` [H, inner], ``N.down`` [inner, H]; float32.
    """
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Floats:
        # So that products have about the spread of what goes in.
        scale = np.float32(rows**-0.5)
        return random.standard_normal((rows, columns), dtype=np.float32) * scale

    width, asked, kept = settings.width, settings.heads, settings.kv_heads
    weights: dict[str, Floats] = {
        "words": random.standard_normal((settings.vocabulary, width), dtype=np.float32),
        "head": matrix(width, settings.vocabulary),
        "norm": np.ones(width, np.float32),
    }
    for layer in range(settings.layers):
        weights |= {
            f"{layer}.norm": np.ones(width, np.float32),
            f"{layer}.query": matrix(width, asked * settings.head),
            f"{layer}.key": matrix(width, kept * settings.head),
            f"{layer}.value": matrix(width, kept * settings.head),
            f"{layer}.out": matrix(asked * settings.head, width),
            f"{layer}.inner_norm": np.ones(width, np.float32),
            f"{layer}.gate": matrix(width, settings.inner),
            f"{layer}.up": matrix(width, settings.inner),
            f"{layer}.down": matrix(settings.inner, width),
        }
    return weights
