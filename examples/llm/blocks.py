"""Matrices whose weights stay in the 4- and 8-bit blocks of a GGUF file, and products with them.

A block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h) is 32 numbers of a row
behind their scale, a float16. It becomes ``number * scale + least``, with numbers from 0 to 15 of
four bits and from -128 to 127 of eight: formats of as many bits differ only in what is least.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from llm.compiling import import_compiled

__all__ = ["FORMATS", "LANES", "NUMBERS", "Blocks"]

Array = np.ndarray[Any, Any]

NUMBERS = 32
"""Numbers of a row that share a scale."""
LANES = 16
"""Rows of a matrix that are multiplied together: numbers of float32 in the widest registers."""
FORMATS = {"Q4_0": (4, 18), "Q4_1": (4, 20), "Q8_0": (8, 34)}
"""The formats of blocks: the bits of a number, and the bytes of a block."""

_BYTE = 8
_ROWS = 1024
_LARGE = 1 << 21
"""Bytes of numbers from which several threads multiply faster than one, all they cost included."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of [in, out].

    Attributes:
        shape: In and out.
        bits: Of a number.
        numbers: See `llm.kernels`, as scale and least.
        scale: Likewise.
        least: Likewise.
    """

    shape: tuple[int, int]
    bits: int
    numbers: Array
    scale: Array
    least: Array

    @classmethod
    def read(cls, raw: Array, form: str) -> Blocks:
        """Takes blocks as a file has them.

        Args:
            raw: [out, bytes of in], bytes.
            form: Of `FORMATS`.

        Raises:
            ValueError: A block has a scale that is infinite or not a number.
        """
        bits, nbytes = FORMATS[form]
        rows, blocks = len(raw), raw.shape[1] // nbytes
        tiles = -(-rows // LANES)
        numbers = np.zeros((tiles, blocks, bits, LANES), np.uint32)
        scale = np.zeros((tiles, blocks, LANES), np.uint16)
        least = np.zeros_like(scale)
        for first in range(0, rows, _ROWS):  # what they become meanwhile is much larger
            some = raw[first : first + _ROWS].reshape(-1, blocks, nbytes)
            places = slice(first // LANES, -(-(first + len(some)) // LANES))
            parts = _parts(some, form)
            if not (np.isfinite(parts[0]).all() and np.isfinite(parts[1]).all()):
                msg = f"a block of {form} has a scale that is no finite number: the file is damaged"
                raise ValueError(msg)
            scale[places] = _tiles(parts[0].view(np.uint16))
            least[places] = _tiles(parts[1].view(np.uint16))
            numbers[places] = _tiles(_words(parts[2], bits))
        return cls((blocks * NUMBERS, rows), bits, numbers, scale, least)

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return self.numbers.nbytes + self.scale.nbytes + self.least.nbytes

    def columns(self, which: Array) -> Array:
        """[columns, in], float32: some columns of the matrix."""
        tile, lane = np.divmod(which, LANES)
        words = self.numbers[tile, :, :, lane]
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        stored = (words[..., None] >> shifts) & np.uint32((1 << self.bits) - 1)
        numbers = stored.view(np.int32) - (128 if self.bits == _BYTE else 0)
        scale = self.scale[tile, :, lane].view(np.float16).astype(np.float32)[..., None]
        least = self.least[tile, :, lane].view(np.float16).astype(np.float32)[..., None]
        found = numbers.reshape(*scale.shape[:-1], NUMBERS).astype(np.float32) * scale + least
        return found.reshape(len(which), self.shape[0])

    def product(self, rows: Array) -> Array:
        """[rows, out], float32: rows times the matrix."""
        rows = np.ascontiguousarray(rows, np.float32)
        found = np.empty((len(rows), len(self.numbers) * LANES), np.float32)
        matrix = self.numbers, self.scale, self.least
        threads = 1 if self.numbers.nbytes < _LARGE else _count_threads()
        if threads == 1:
            self._multiply(rows, matrix, found)
        else:
            step = -(-len(self.numbers) // threads)

            def multiply(first: int) -> None:
                part = slice(first, first + step)
                own = [array[part] for array in matrix]
                products = np.empty((len(rows), len(own[0]) * LANES), np.float32)
                self._multiply(rows, own, products)
                found[:, first * LANES : first * LANES + products.shape[1]] = products

            list(_pool(threads).map(multiply, range(0, len(self.numbers), step)))
        return found[:, : self.shape[1]]

    def _multiply(self, rows: Array, matrix: Sequence[Array], found: Array) -> None:
        import_compiled("kernels").multiply((0,) * (self.bits // 4), *matrix, rows, found)


def _count_threads() -> int:
    """How many cores this worker has for its products, as numerical libraries are told."""
    # A list is for nested threads, of which there are none.
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return max(int(told), 1) if told.isdecimal() else len(os.sched_getaffinity(0))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "llm-product")


def _parts(blocks: Array, form: str) -> tuple[Array, Array, Array]:
    """Scale and least, [rows, blocks], float16; and the numbers, [rows, blocks, NUMBERS]."""
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if form == "Q8_0":
        signed = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
        return scale, np.zeros_like(scale), (signed.astype(np.int16) + 128).astype(np.uint8)
    if form == "Q4_1":
        least = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    else:
        least = scale * np.float16(-8)
    pairs = blocks[..., -NUMBERS // 2 :]
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
