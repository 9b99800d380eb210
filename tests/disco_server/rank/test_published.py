"""What a worker keeps under a name."""

from __future__ import annotations

import pytest

from disco_server.rank.builtins import core
from disco_server.rank.errors import ArgumentRefused


@pytest.fixture
def worker(monkeypatch):
    class Here:
        core: dict = {}  # noqa: RUF012  (one worker a test)

    here = Here()
    here.published = {}
    monkeypatch.setattr(core, "current_worker", lambda: here)
    return here


def test_values_are_kept_with_what_is_noted_of_them(worker):
    """A name has one value, the latest."""
    core.publish("b", 1, {})
    core.publish("a", [2], {"shape": 3})
    core.publish("b", 4, {"x": 5})
    assert core.list_published() == ["a", "b"]
    assert (core.find_published("b"), core.find_facts("b")) == (4, {"x": 5})
    core.unpublish("b")
    assert core.list_published() == ["a"]


def test_there_is_a_limit_and_a_hint(worker, monkeypatch):
    """Many names are not all shown."""
    monkeypatch.setattr(core, "_MOST", 12)
    for number in range(12):
        core.publish(f"n{number:02}", number, {})
    core.publish("n03", 0, {})
    with pytest.raises(ArgumentRefused, match="at most 12"):
        core.publish("more", 0, {})
    with pytest.raises(ArgumentRefused, match="'n09' and 2 more"):
        core.find_published("other")
