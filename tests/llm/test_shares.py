"""Which worker holds what: every weight lies somewhere, and the shares are nearly equal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.config import Config, ModelError
from llm.shares import TooManyWorkers, divide


@st.composite
def configs(draw):
    kv_heads = draw(st.integers(1, 8))
    return Config(
        layers=draw(st.integers(1, 4)),
        width=32 * draw(st.integers(1, 8)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head=2 * draw(st.integers(1, 16)),
        inner=draw(st.integers(1, 12)) * draw(st.sampled_from([1, 32])),
        vocabulary=draw(st.integers(32, 999)),
        context=64,
        tied=draw(st.booleans()),
    )


@given(config=configs(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_every_part_lies_with_a_worker(config, data):
    """Query heads, columns and tokens with one each; keys and values with all that read them."""
    workers = data.draw(st.integers(1, config.heads))
    shares = divide(config, workers)
    for ranges, extent in (
        (shares.heads, config.heads),
        (shares.inner, config.inner),
        (shares.tokens, config.vocabulary),
    ):
        assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (0, extent)
        assert all(first <= end for first, end in ranges)
    each = config.heads // config.kv_heads
    for (first, end), (first_kv, end_kv) in zip(shares.heads, shares.kv_heads, strict=True):
        assert {head // each for head in range(first, end)} == set(range(first_kv, end_kv))
    if config.inner % 32 == 0:
        assert all(first % 32 == 0 for first, _ in shares.inner)


def test_uneven_heads_are_made_up_for():
    """Of SmolLM2 on 4 workers no one multiplies 1.01 times what another one does."""
    config = Config(30, 576, 9, 3, 64, 1536, 49152, 8192)
    shares = divide(config, 4)
    assert shares.heads == [(0, 3), (3, 5), (5, 7), (7, 9)]
    assert shares.kv_heads == [(0, 1), (1, 2), (1, 3), (2, 3)]

    def cost(worker):
        heads, kv, inner, tokens = (
            end - first
            for first, end in (
                shares.heads[worker],
                shares.kv_heads[worker],
                shares.inner[worker],
                shares.tokens[worker],
            )
        )
        return 576 * (30 * (2 * 64 * (heads + kv) + 3 * inner) + tokens)

    costs = [cost(worker) for worker in range(4)]
    assert max(costs) < 1.01 * min(costs)


@pytest.mark.parametrize("workers", [0, 10])
def test_more_workers_than_query_heads_are_refused(workers):
    """With the numbers that can be used."""
    with pytest.raises(TooManyWorkers, match=f"Use 1 to 9 workers instead of {workers}"):
        divide(Config(30, 576, 9, 3, 64, 1536, 49152, 8192), workers)


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"heads": 7}, "the 3 heads of keys and values divide, got 7"),
        ({"head": 5}, "heads of an even width, got 5"),
        ({"layers": 0}, "expected positive extents"),
    ],
)
def test_figures_that_do_not_fit_are_refused(figures, told):
    """When they are read, with what was expected."""
    known = {"layers": 1, "width": 8, "heads": 9, "kv_heads": 3, "head": 4, "inner": 8}
    with pytest.raises(ModelError, match=told):
        Config(**{**known, "vocabulary": 9, "context": 8, **figures})
