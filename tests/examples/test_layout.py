"""Where sentences stand in a batch, with padding and without."""

from __future__ import annotations

import numpy as np
import pytest

from embedding.layout import lay_out


def host(array):
    return array


def lay(lengths, at_once, *, pads, heads=2):
    return lay_out(np.array(lengths, np.int32), heads, at_once, pads=pads, place=host)


@pytest.mark.parametrize("pads", [False, True])
def test_sentences_stand_one_after_the_other(pads):
    """Starts, lengths and positions say which token belongs where."""
    layout = lay([3, 1, 2], 1000, pads=pads)
    assert layout.starts.tolist() == [0, 3, 4]
    assert layout.lengths.tolist() == [3, 1, 2]
    assert layout.positions.tolist() == [0, 1, 2, 0, 0, 1]


def test_without_padding_equal_neighbours_share_a_run():
    """A run has sentences of one length, and no more scores than it may."""
    layout = lay([4, 4, 4, 2, 4], 2 * 2 * 4 * 4, pads=False)
    assert [(run.rows.start, run.rows.stop, run.sentences, run.tokens) for run in layout.runs] == [
        (0, 8, 2, 4),
        (8, 12, 1, 4),
        (12, 14, 1, 2),
        (14, 18, 1, 4),
    ]
    assert all(run.padding is None for run in layout.runs)


def test_with_padding_different_lengths_share_a_run():
    """Every token has its place, and what is no token is masked out."""
    (run,) = lay([3, 1, 2], 1000, pads=True).runs
    assert (run.rows, run.sentences, run.tokens) == (slice(0, 6), 3, 3)
    assert run.padding.rows.reshape(3, 3).tolist() == [[0, 1, 2], [3, 0, 0], [4, 5, 0]]
    assert run.padding.places.tolist() == [0, 1, 2, 3, 6, 7]
    assert run.padding.mask.shape == (3, 1, 1, 3)
    assert run.padding.mask.dtype == np.float32
    assert np.isneginf(run.padding.mask[:, 0, 0]).tolist() == [
        [False, False, False],
        [False, True, True],
        [False, False, True],
    ]


def test_spreading_and_collecting_gives_the_tokens_back():
    """What is spread to places and taken from them is what it was, run by run."""
    lengths = [9, 9, 7, 5, 5, 5, 2, 1, 8]
    tokens = np.arange(sum(lengths))
    layout = lay(lengths, 2 * 3 * 9 * 9, pads=True)
    assert len(layout.runs) > 2
    back = [
        tokens[run.rows] if run.padding is None else tokens[run.padding.rows][run.padding.places]
        for run in layout.runs
    ]
    assert np.concatenate(back).tolist() == tokens.tolist()
    for run in layout.runs:
        assert run.sentences == 1 or 2 * run.sentences * run.tokens**2 <= 2 * 3 * 9 * 9


def test_equal_lengths_need_no_padding():
    """A run whose sentences are of one length is taken as it is, and one too large alone."""
    first, second = lay([4, 4], 2 * 4 * 4, pads=True).runs
    assert first.padding is None
    assert second.padding is None
    assert second.rows == slice(4, 8)
    (alone,) = lay([100], 1, pads=True).runs
    assert alone.rows == slice(0, 100)
