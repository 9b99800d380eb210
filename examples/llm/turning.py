"""What turns the numbers of heads by their positions, on a worker."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Angles"]

Array = np.ndarray[Any, Any]
Turns = tuple[Array, Array]


class Angles:
    """How far the numbers of a head turn at each position.

    Args:
        rope: The fields of `llm.traits.Rope`.
        head: The width of a head.
        context: How many positions there are.
        interleaved: Whether the pairs that turn are neighbours, not of two halves.

    Attributes:
        apart: How far the two numbers of a pair are from each other.
    """

    def __init__(self, rope: dict[str, Any], head: int, context: int, *, interleaved: bool) -> None:
        turned = int(rope["turned"]) or head
        half = turned // 2
        self.apart = 1 if interleaved else half
        self._one, self._other = slice(half), slice(half, turned)
        if interleaved:
            self._one, self._other = slice(0, turned, 2), slice(1, turned, 2)
        self._rest = slice(turned, head)
        pairs = np.arange(0, turned, 2, dtype=np.float64)
        speeds = float(rope["base"]) ** (-pairs / turned)
        if rope["divisors"]:
            speeds /= np.array(rope["divisors"], np.float64)
        angles, scale = np.outer(np.arange(context), speeds), float(rope["scale"])
        self._cos = (np.cos(angles) * scale).astype(np.float32)[:, None]
        self._sin = (np.sin(angles) * scale).astype(np.float32)[:, None]

    def at(self, positions: Array) -> Turns:
        """([rows, 1, turned / 2], likewise): cosines and sines at some positions, float32."""
        return self._cos[positions], self._sin[positions]

    def turn(self, x: Array, turns: Turns) -> Array:
        """Turns [rows, heads, head], float32.

        Args:
            x: The heads, whose numbers behind those that turn stay.
            turns: Of the rows, as `at` gives them.
        """
        cos, sin = turns
        one, other = x[..., self._one], x[..., self._other]
        turned = np.empty_like(x)
        turned[..., self._one] = one * cos - other * sin
        turned[..., self._other] = one * sin + other * cos
        turned[..., self._rest] = x[..., self._rest]
        return turned
