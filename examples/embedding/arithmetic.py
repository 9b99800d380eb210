"""The functions of a transformer that array libraries lack, for whichever library computes.

A rank computes with one module of arrays, numpy or cupy, which the forward pass
calls `xp`. What is best done differently on a CPU and on a GPU stands in two
modules with the same functions, and everything else is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from embedding import numerics

if TYPE_CHECKING:
    from embedding.layout import Layout
    from embedding.numerics import Floats

__all__ = ["Arithmetic", "arithmetic_for"]


class Arithmetic(Protocol):
    """What the forward pass needs besides matrix products.

    Arrays are annotated as numpy's; those of cupy have the same manners.

    Attributes:
        AT_ONCE: How many float32 of attention scores, or of the feed-forward
            part's inner layer, are worked on at a time.
        PADS: Whether sentences of different lengths are padded to one length
            for the attention.
    """

    AT_ONCE: int
    PADS: bool

    def take_rows(self, table: Floats, rows: Any, out: Floats) -> None:
        """Copies the named rows of a table, each of which must exist."""
        ...

    def gelu(self, values: Floats) -> None:
        """Replaces every value by its Gaussian error linear unit, in place."""
        ...

    def add_and_norm(
        self,
        values: Floats,
        residual: Floats | None,
        bias: Floats | None,
        norm: tuple[Floats, Floats],
        epsilon: float,
    ) -> None:
        """Adds the residual and the bias to each row, then normalises the row, in place."""
        ...

    def softmax_unscaled(self, scores: Floats) -> Floats:
        """Replaces scores by their exponentials, in place, and returns what to divide by."""
        ...

    def mean_rows(self, rows: Floats, layout: Layout) -> Floats:
        """Averages the rows of each sentence."""
        ...

    def normalise_rows(self, rows: Floats) -> Floats:
        """Divides each row by its Euclidean length, in place, and returns it."""
        ...


def arithmetic_for(xp: Any) -> Arithmetic:
    """Chooses for a module of arrays: numpy or cupy."""
    if xp.__name__ == "numpy":
        return numerics
    # It needs cupy, which is not there where there is no GPU.
    from embedding import gpu_numerics

    return gpu_numerics
