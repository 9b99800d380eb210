"""Settings of all tests that need code."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of a file in one process, and all that make namespaces in one.

    With ``--dist loadgroup`` tests without a group are dealt out one by one,
    and each process would start the daemons of a file's fixtures again.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            alone = item.get_closest_marker("netns") is not None
            item.add_marker(pytest.mark.xdist_group("netns" if alone else item.path.stem))
