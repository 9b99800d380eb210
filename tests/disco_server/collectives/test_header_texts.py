"""Texts that ranks tell each other."""

from __future__ import annotations

from disco_server.collectives.header_exchange import TEXT_BYTES, cut_text, fit_text, read_text


def test_texts_are_filled_and_cut_between_characters():
    """A short text comes back whole, a long one without half a character."""
    assert read_text(cut_text("worker 2")) == "worker 2"

    odd = "x" + "é" * TEXT_BYTES
    assert len(cut_text(odd)) == TEXT_BYTES
    assert read_text(cut_text(odd)) == "x" + "é" * ((TEXT_BYTES - 1) // 2)


def test_an_end_is_told_whole():
    """What comes before it is cut, and what UTF-8 cannot encode is escaped in both."""
    assert fit_text("worker 2", " at \udce9.py:3") == "worker 2 at \\udce9.py:3"

    told = fit_text("é" * TEXT_BYTES, " at é.py:3")
    assert told == "é" * ((TEXT_BYTES - len(" at é.py:3".encode())) // 2) + " at é.py:3"
    assert read_text(cut_text(told)) == told
    assert fit_text("x", "y" * 2 * TEXT_BYTES) == "y" * TEXT_BYTES
