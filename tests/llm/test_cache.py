"""The blocks of the cache: each has an owner, and texts that begin alike share theirs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cache import BlockPool
from llm.layers import BLOCK

A, B, C = ([n] * BLOCK for n in (1, 2, 3))


def hold(pool, tokens):
    """Takes what a text needs, as the engine does; returns its blocks."""
    blocks, name = pool.share(tokens)
    known = len(blocks)
    blocks += pool.take(len(tokens) // BLOCK - known)
    for n in range(known, len(blocks)):
        name = pool.remember(blocks[n], tokens[n * BLOCK : (n + 1) * BLOCK], name)
    return blocks


def test_texts_that_begin_alike_share_blocks():
    """As far as they are alike, also when the first one has ended."""
    pool = BlockPool(6)
    first = hold(pool, A + B)
    second = hold(pool, A + C)
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert pool.used == 3
    pool.release(first)
    pool.release(second)
    assert pool.used == 0
    assert hold(pool, A + B) == first


def test_the_same_block_behind_another_beginning_is_another_text():
    """Keys and values depend on all that came before."""
    pool = BlockPool(6)
    assert not set(hold(pool, A + B)) & set(hold(pool, C + B))


def test_what_was_unused_longest_gives_way_and_its_end_before_its_beginning():
    """The beginning of a text serves more texts than its end."""
    pool = BlockPool(4)
    older, newer = hold(pool, A + B), hold(pool, C + B)
    pool.release(older)
    pool.release(newer)
    assert pool.take(1) == [older[1]]
    assert pool.share(A + B)[0] == older[:1]
    assert pool.share(C + B)[0] == newer


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40), st.data())
@settings(max_examples=200, deadline=None)
def test_no_block_is_lost_or_owned_by_two_texts(texts, data):
    """Whatever comes and goes: at the end all blocks can be taken."""
    pool = BlockPool(12)
    held = []
    for which, length in texts:
        tokens = [which % 2] * BLOCK + [which] * BLOCK * (length - 1)
        if pool.available >= length:
            blocks = hold(pool, tokens)
            assert len(set(blocks)) == length
            held.append((tokens, blocks))
        if held and data.draw(st.booleans()):
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1)))[1])
        for n, (tokens, blocks) in enumerate(held):
            for other, theirs in held[n + 1 :]:
                for place, block in enumerate(blocks):
                    if block in theirs:
                        end = (place + 1) * BLOCK
                        assert theirs.index(block) == place
                        assert tokens[:end] == other[:end]
    for _, blocks in held:
        pool.release(blocks)
    assert pool.available == 12
    assert sorted(pool.take(12)) == list(range(12))
