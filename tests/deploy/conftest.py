"""What tests of the chart share."""

from __future__ import annotations

import pytest

from deploying.charts import CHART, Manifest, render, values_of

VARIANTS = sorted(file.name.removesuffix("-values.yaml") for file in CHART.glob("ci/*.yaml"))


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request) -> str:
    """The name of each file of values in ci/."""
    return request.param


@pytest.fixture(scope="session")
def manifests(variant) -> list[Manifest]:
    """What the chart makes of it."""
    return render(values_of(variant))
