"""How many examples the suites of this folder try: the same ones each time, unless hunting.

`make hunt` chooses its own profile, of tests/conftest.py, and a fresh seed for each round. In
CI, a change must not fail for an example that another change was lucky not to see.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile(
    "fixed", settings.get_profile("disco"), derandomize=True, max_examples=200
)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Lets the tests of this folder be made with their profile: it counts where they are made."""
    before = settings.get_current_profile_name()
    if collector.config.getoption("--hypothesis-profile") is None:
        settings.load_profile("fixed")
    try:
        return (yield)
    finally:
        settings.load_profile(before)
