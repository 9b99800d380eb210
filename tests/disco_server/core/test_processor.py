"""What is known of processors."""

from __future__ import annotations

import pytest

from disco_server.core.processor import keeps_order


@pytest.mark.parametrize(
    ("machine", "keeps"),
    [("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False), ("ppc64le", False)],
)
def test_only_x86_is_trusted_with_the_order_of_stores(monkeypatch, machine, keeps):
    """However the system spells it; an unknown one is not trusted."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert keeps_order() is keeps
