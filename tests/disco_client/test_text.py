"""How messages put things."""

from __future__ import annotations

from disco_client.text import beginning_with, ids_beginning_with, many, natural, short_ids


def test_one_thing_is_no_plural():
    """None and several are."""
    assert [many(0, "node"), many(1, "node"), many(2, "node")] == ["0 nodes", "1 node", "2 nodes"]
    assert [many(1, "axis", "axes"), many(2, "axis", "axes")] == ["1 axis", "2 axes"]


def test_names_are_sorted_as_people_count():
    """Numbers by their value, wherever they stand; names without one by their letters."""
    names = ["node-10", "gpu-10-a", "node-2.rack-10", "gpu", "gpu-10", "node-2.rack-9", "gpu-2"]
    assert sorted(names, key=natural) == [
        *("gpu", "gpu-2", "gpu-10", "gpu-10-a", "node-2.rack-9", "node-2.rack-10", "node-10")
    ]
    assert natural("a1") != natural("a01x")


def test_ids_are_shown_as_long_as_it_takes_to_tell_them_apart():
    """All equally long, and at least four digits."""
    far, near, nearer = 0x3A6B82CF00000001, 0x3A6C000000000002, 0x3A6C0F0000000003
    assert short_ids([far, near]) == {far: "3a6b", near: "3a6c"}
    assert short_ids([far, near, nearer]) == {far: "3a6b82", near: "3a6c00", nearer: "3a6c0f"}
    assert short_ids([]) == {}


def test_ids_are_found_by_their_beginnings():
    """Four digits are asked for: what is shorter, or is no number, may be a name."""
    ids = [0x3A6B82CF00000001, 0x3A6C000000000002, 2]
    assert ids_beginning_with(ids, "3a6") == ids_beginning_with(ids, "train") == []
    assert ids_beginning_with(ids, "3a6b") == ids_beginning_with(ids, "3A6B82") == ids[:1]
    assert ids_beginning_with(ids, "0000") == ids[2:]
    assert ids_beginning_with(ids, f"{2:016x}0") == []


def test_names_are_found_by_their_beginnings():
    """Nothing is the beginning of none."""
    assert beginning_with(["node-1", "node-10", "b"], "node-1") == ["node-1", "node-10"]
    assert beginning_with(["a"], "") == []
