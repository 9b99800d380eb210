"""What a person sees."""

from __future__ import annotations

import numpy as np

from embedding.report import Share, Timings, describe_timings, similarity_table


def test_table_shows_each_pair_of_sentences():
    """Rows and columns are numbered, long sentences are cut, wide signs keep the columns."""
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    table = similarity_table(["short", "猫" * 40, "a\tb " * 30], vectors).splitlines()
    assert table[0].split() == ["1", "2", "3"]
    assert table[1].split() == ["1", "short", "1.00", "0.60", "0.00"]
    assert table[2].split()[-3:] == ["0.60", "1.00", "0.80"]
    assert "…" in table[2]
    # A terminal gives each 猫 two columns.
    assert len(table[1]) == len(table[2]) + table[2].count("猫") == len(table[3])


def test_table_is_no_wider_than_a_terminal():
    """Of many sentences the first are shown, and the table says so."""
    table = similarity_table(["x"] * 40, np.ones((40, 1), np.float32)).splitlines()
    assert len(table) == 18
    assert table[-1] == "(the first 16 of 40 sentences)"


def test_timings_divide_the_time():
    """Compute, collectives and control are means over the workers, with their shares."""
    shares = [Share(3.0, 0.5, 0.5), Share(1.0, 2.5, 0.5)]
    lines = describe_timings(Timings(8, 2, "cpu", embed=4.0, tokens=100, shares=shares))
    found = {line.split()[0]: line.split() for line in lines.splitlines()}
    assert found["compute"][1:5] == ["2.000", "s", "50", "%"]
    assert found["collectives"][1:5] == ["1.500", "s", "38", "%"]
    assert found["control"][1:5] == ["0.500", "s", "12", "%"]
    assert "25 tokens/s, 2 workers on cpu" in lines
    assert "GPU" not in lines


def test_timings_of_gpus_say_what_they_are():
    """Whoever reads times of a GPU is told what was measured."""
    timings = Timings(1, 1, "cuda", embed=1.0, shares=[Share(0.5, 0.2, 0.3)])
    lines = describe_timings(timings)
    assert "1 workers on cuda" in lines
    assert "the GPU's own time" in lines.splitlines()[-1]


def test_what_is_not_known_is_not_shown():
    """Where nobody counted how the time divides, there are no parts of it."""
    lines = describe_timings(Timings(8, 2, "cuda", embed=4.0, tokens=100))
    assert "25 tokens/s, 2 workers on cuda" in lines.splitlines()[-1]
