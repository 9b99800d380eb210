"""What tests of the chart share."""

from __future__ import annotations

import pytest

from deploying.charts import Manifest, render, values_of, variants


@pytest.fixture(scope="session", params=variants())
def variant(request) -> str:
    """The name of each file of values in ci/, and of each example's."""
    return request.param


@pytest.fixture(scope="session")
def manifests(variant) -> list[Manifest]:
    """What the chart makes of it."""
    return render(values_of(variant))
