"""What a worker keeps under a name."""

from __future__ import annotations

import pytest

from disco_server.runtime import published
from disco_server.runtime.errors import ArgumentRefused


@pytest.fixture
def worker(monkeypatch):
    class Here:
        published: dict = {}  # noqa: RUF012  (one worker a test)

    here = Here()
    here.published = {}
    monkeypatch.setattr(published, "current_worker", lambda: here)
    return here


def test_values_are_kept_with_what_is_noted_of_them(worker):
    """A name has one value, the latest."""
    published.publish("b", 1, {})
    published.publish("a", [2], {"shape": 3})
    published.publish("b", 4, {"x": 5})
    assert published.list_published() == ["a", "b"]
    assert (published.find_published("b"), published.find_facts("b")) == (4, {"x": 5})
    published.unpublish("b")
    assert published.list_published() == ["a"]


def test_there_is_a_limit_and_a_hint(worker, monkeypatch):
    """Many names are not all shown."""
    monkeypatch.setattr(published, "_MOST", 12)
    for number in range(12):
        published.publish(f"n{number:02}", number, {})
    published.publish("n03", 0, {})
    with pytest.raises(ArgumentRefused, match="at most 12"):
        published.publish("more", 0, {})
    with pytest.raises(ArgumentRefused, match="'n09' and 2 more"):
        published.find_published("other")
