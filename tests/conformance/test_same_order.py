"""Every worker hashes texts alike, and goes through a set of them in one order."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.layouts((4, 1))


def test_workers_hash_alike(tools, open_session, tools_of):
    """Also bytes, and in sets that are made on the worker; those of another session too."""
    found = tools.results("hashes")
    assert found == [found[0]] * 4
    assert tools_of(open_session(1)).results("hashes") == [found[0]]


def test_collectives_in_the_order_of_a_set_meet_their_own_kind(tools):
    """Each sum is of one tensor, though every worker goes through a set of its own."""
    names = [f"block.{number}.{kind}" for number in range(6) for kind in ("weight", "bias")]
    want = [4.0 * place for place in range(len(names))]
    assert tools.results("reduce_by_name", names) == [want] * 4
