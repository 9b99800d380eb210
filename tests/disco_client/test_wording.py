"""How messages put things."""

from __future__ import annotations

from disco_client.wording import many


def test_one_thing_is_no_plural():
    """None and several are."""
    assert [many(0, "node"), many(1, "node"), many(2, "node")] == ["0 nodes", "1 node", "2 nodes"]
