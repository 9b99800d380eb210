"""The chunks of stored arrays, and what names and dtypes a store can have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError
from disco_client.wire.array_stores import check_dtype, check_names, chunk_shape, whole_chunks
from disco_client.wire.partition import cut, shape_within


@given(st.lists(st.integers(0, 1 << 22), max_size=4), st.sampled_from([1, 2, 8, 16]))
def test_a_chunk_fits_a_part_and_eight_mebibytes(part, itemsize):
    """And it is no smaller than it must be: half a chunk more would be too large."""
    chunks = chunk_shape(part, itemsize)
    nbytes = math.prod(chunks) * itemsize
    assert all(1 <= chunk <= max(1, extent) for chunk, extent in zip(chunks, part, strict=True))
    assert nbytes <= 8 << 20
    if math.prod(map(int, part)) * itemsize > 8 << 20 and all(part):
        assert nbytes > 2 << 20


@given(st.integers(1, 8), st.integers(1, 1 << 20))
def test_parts_that_can_have_whole_chunks_have_them(workers, rows):
    """Where they are equally large and their rows are a power of two."""
    extent = workers * (1 << rows.bit_length())
    shape = (extent, 1024)
    chunks = chunk_shape((extent // workers, 1024), 8)
    for index in range(workers):
        part = (cut(0, extent, workers, index), (0, 1024))
        assert whole_chunks(part, chunks, shape) == part


@given(st.lists(st.tuples(*[st.integers(1, 12)] * 3), min_size=1, max_size=3))
def test_no_two_parts_share_a_whole_chunk(axes):
    """Chunks lie in one part or in none; together these are all that one part holds wholly."""
    shape = [extent for extent, _, _ in axes]
    chunks = [chunk for _, chunk, _ in axes]
    for index in range(axes[0][2]):
        bounds = (cut(0, shape[0], axes[0][2], index), *((0, extent) for extent in shape[1:]))
        own = whole_chunks(bounds, chunks, shape)
        (start, stop), chunk = bounds[0], chunks[0]
        held = [
            at
            for at in range(start, stop)
            if start <= at // chunk * chunk and min(at // chunk * chunk + chunk, shape[0]) <= stop
        ]
        if own is None:
            assert not held
        else:
            assert held == list(range(*own[0]))
            assert shape_within(own)[1:] == tuple(shape[1:])


def test_names_and_dtypes_that_a_store_cannot_have_are_refused():
    """Paths that lead elsewhere, files of Zarr's own, arrays that would be groups."""
    check_names("zarr", ["a/b", "a/c", "d"])
    for name in ("", "/a", "a/", "a//b", "a/../b", ".", "a\0", "zarr.json", "a/__x"):
        with pytest.raises(ConfigError, match="expected the name of an array"):
            check_names("zarr", [name])
    with pytest.raises(ConfigError, match="'a' cannot be an array and the group of 'a/b/c'"):
        check_names("hdf5", ["a/b/c", "a"])
    check_dtype("hdf5", "a", "bfloat16")
    with pytest.raises(ConfigError, match=r"'a' has dtype bool, .* it has int8, .*astype"):
        check_dtype("netcdf", "a", "bool")
