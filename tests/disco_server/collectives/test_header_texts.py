"""Texts that ranks tell each other."""

from __future__ import annotations

from disco_server.collectives.header_exchange import TEXT_BYTES, cut_text, read_text


def test_texts_are_filled_and_cut_between_characters():
    """A short text comes back whole, a long one without half a character."""
    assert read_text(cut_text("worker 2")) == "worker 2"

    odd = "x" + "é" * TEXT_BYTES
    assert len(cut_text(odd)) == TEXT_BYTES
    assert read_text(cut_text(odd)) == "x" + "é" * ((TEXT_BYTES - 1) // 2)
