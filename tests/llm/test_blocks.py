"""Products with matrices in blocks are those of the numbers that gguf reads out of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.blocks import FORMATS, NUMBERS, Blocks

pytest.importorskip("numba", reason="numba, which compiles the products, is not installed")


def quantized(form, out, depth, seed, spread):
    """Blocks of random numbers, [out, bytes], and these numbers, [out, in]."""
    numbers = np.random.default_rng(seed).normal(0, spread, (out, depth)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[form]
    raw = gguf.quantize(numbers, kind)
    return raw, gguf.dequantize(raw, kind)


@given(
    form=st.sampled_from(sorted(FORMATS)),
    rows=st.integers(0, 9),
    out=st.integers(1, 40),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.0, 1e-7, 0.02, 30.0]),
)
@settings(max_examples=60, deadline=None)
def test_any_matrix_and_any_rows(form, rows, out, blocks, seed, spread):
    """All formats, shapes that fill no tile, and scales that float16 has as subnormal numbers."""
    raw, numbers = quantized(form, out, blocks * NUMBERS, seed, spread)
    matrix = Blocks.read(raw, form)
    assert matrix.shape == numbers.shape[::-1]
    x = np.random.default_rng(seed).normal(size=(rows, blocks * NUMBERS)).astype(np.float32)
    wanted = x.astype(np.float64) @ numbers.T
    found = matrix.product(x)
    assert found.dtype == np.float32
    room = 1e-5 * (np.abs(x) @ np.abs(numbers.T) + 16 * np.abs(x).sum(1, keepdims=True) * spread)
    assert (np.abs(found - wanted) <= room + 1e-30).all()
    which = np.arange(out)[::-2]
    assert np.array_equal(matrix.columns(which), numbers[which])


def test_no_column_is_asked_for():
    """A worker that has none of a step's tokens asks for no column."""
    raw, _ = quantized("Q8_0", 16, 64, 1, 1.0)
    assert Blocks.read(raw, "Q8_0").columns(np.array([], np.int64)).shape == (0, 64)


def test_several_threads_multiply_as_one(monkeypatch):
    """A large matrix is divided among threads, and its products do not depend on them."""
    raw, _ = quantized("Q8_0", 4112, 512, 1, 1.0)
    matrix = Blocks.read(raw, "Q8_0")
    assert matrix.nbytes > 2 << 20  # smaller ones are not divided
    x = np.random.default_rng(2).normal(size=(5, 512)).astype(np.float32)
    found = []
    for threads in ("1", "3", "3,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append((matrix.product(x), matrix.product(x[:1])))
    assert all(map(np.array_equal, found[0], found[1]))
    assert all(map(np.array_equal, found[0], found[2]))


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_damaged_scale_is_refused(form):
    """A scale that is infinite would make every answer nonsense, so the matrix is refused."""
    raw, _ = quantized(form, 20, 64, 1, 1.0)
    raw[7, :2] = np.array([np.inf], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="no finite number"):
        Blocks.read(raw, form)


def test_blocks_take_what_they_take_in_the_file():
    """What a matrix takes in memory is at most a fifteenth more than its bytes in the file."""
    for form, least in (("Q4_1", 1.0), ("Q8_0", 36 / 34)):
        raw, _ = quantized(form, 64, 256, 1, 1.0)
        assert Blocks.read(raw, form).nbytes == round(raw.nbytes * least)
