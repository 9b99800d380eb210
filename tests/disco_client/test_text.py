"""How messages put things."""

from __future__ import annotations

from disco_client.text import many, natural


def test_one_thing_is_no_plural():
    """None and several are."""
    assert [many(0, "node"), many(1, "node"), many(2, "node")] == ["0 nodes", "1 node", "2 nodes"]


def test_names_are_sorted_as_people_count():
    """Numbers by their value, wherever they stand; names without one by their letters."""
    names = ["node-10", "gpu-10-a", "node-2.rack-10", "gpu", "gpu-10", "node-2.rack-9", "gpu-2"]
    assert sorted(names, key=natural) == [
        *("gpu", "gpu-2", "gpu-10", "gpu-10-a", "node-2.rack-9", "node-2.rack-10", "node-10")
    ]
    assert natural("a1") != natural("a01x")
