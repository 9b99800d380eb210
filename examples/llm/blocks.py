"""Matrices whose weights stay in the 4- and 8-bit blocks of a GGUF file, and products with them.

A block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h) is 32 numbers of a row
behind their scale, a float16. It becomes ``number * scale + least`` with numbers from 0 on: the
kinds differ only in what is least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llm.kernels import BLOCK, LANES, kernels

__all__ = ["KINDS", "Blocks"]

Array = np.ndarray[Any, Any]

KINDS = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
"""The kinds of blocks, with the bytes of each."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of [in, out].

    Attributes:
        shape: In and out.
        bits: Of a number.
        numbers: See `llm.kernels.Kernels`, as scale and least.
        scale: Likewise.
        least: Likewise.
    """

    shape: tuple[int, int]
    bits: int
    numbers: Array
    scale: Array
    least: Array

    @classmethod
    def read(cls, raw: Array, kind: str) -> Blocks:
        """Takes blocks as a file has them.

        Args:
            raw: [out, bytes of in], bytes.
            kind: Of `KINDS`.
        """
        rows = len(raw)
        blocks = raw.reshape(rows, -1, KINDS[kind])
        scale, least, numbers = _parts(blocks, kind)
        return cls(
            (blocks.shape[1] * BLOCK, rows),
            4 if kind.startswith("Q4") else 8,
            _tiles(_words(numbers, 4 if kind.startswith("Q4") else 8)),
            _tiles(scale.view(np.uint16)),
            _tiles(least.view(np.uint16)),
        )

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return self.numbers.nbytes + self.scale.nbytes + self.least.nbytes

    def columns(self, which: Array) -> Array:
        """[columns, in], float32: some columns of the matrix."""
        tile, lane = np.divmod(which, LANES)
        words = self.numbers[tile, :, :, lane]
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        numbers = (words[..., None] >> shifts) & np.uint32((1 << self.bits) - 1)
        scale = self.scale[tile, :, lane].view(np.float16).astype(np.float32)[..., None]
        least = self.least[tile, :, lane].view(np.float16).astype(np.float32)[..., None]
        found = numbers.reshape(*scale.shape[:-1], BLOCK).astype(np.float32) * scale + least
        return found.reshape(len(which), -1)

    def product(self, rows: Array) -> Array:
        """[rows, out], float32: rows times the matrix."""
        count, depth = rows.shape
        own = kernels(self.bits)
        given = self.numbers, self.scale, self.least
        found = np.empty((count, len(self.numbers) * LANES), np.float32)
        rows = np.ascontiguousarray(rows, np.float32)
        fours = 0 if count == 1 else count - count % 4
        for first in range(0, fours, 4):
            own.four(*given, rows[first : first + 4], found[first : first + 4])
        left = count - fours
        if left == 1:
            sums = rows[-1].reshape(-1, BLOCK).sum(axis=1)
            own.one(*given, rows[-1], sums, found[-1])
        elif left:
            padded = np.zeros((4, depth), np.float32)
            padded[:left] = rows[fours:]
            last = np.empty((4, found.shape[1]), np.float32)
            own.four(*given, padded, last)
            found[fours:] = last[:left]
        return found[:, : self.shape[1]]


def _parts(blocks: Array, kind: str) -> tuple[Array, Array, Array]:
    """Scale and least, [rows, blocks], float16; and the numbers, [rows, blocks, BLOCK]."""
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if kind == "Q8_0":
        signed = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
        return scale, scale * np.float16(-128), (signed.astype(np.int16) + 128).astype(np.uint8)
    if kind == "Q4_1":
        least = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    else:
        least = scale * np.float16(-8)
    pairs = blocks[..., -BLOCK // 2 :]
    return scale, least, np.concatenate([pairs & 15, pairs >> 4], axis=-1)


def _words(numbers: Array, bits: int) -> Array:
    """[rows, blocks, bits], numbers of some bits in words of 32, the first one lowest."""
    each = 32 // bits
    grouped = numbers.reshape(*numbers.shape[:2], bits, each).astype(np.uint32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(grouped << shifts, axis=-1)


def _tiles(rows: Array) -> Array:
    """[tiles, ..., LANES] of [rows, ...]; rows that are missing in the last tile are 0."""
    count = -(-len(rows) // LANES)
    padded = np.zeros((count * LANES, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return np.ascontiguousarray(np.moveaxis(padded.reshape(count, LANES, *rows.shape[1:]), 1, -1))
