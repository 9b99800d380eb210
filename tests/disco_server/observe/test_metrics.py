"""Metrics in the form that Prometheus reads."""

from __future__ import annotations

import pytest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from disco_client.version import __version__
from disco_server.observe.http import Buckets, exposition


def samples(text):
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_buckets_count_as_prometheus_wants_them():
    """Each holds what is at most its bound; the last one holds all."""
    buckets = Buckets((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        buckets.observe(value)

    def collect():
        family = HistogramMetricFamily("disco_x_seconds", "X.", labels=["kind"])
        buckets.add_to(family, "a")
        yield family

    found = samples(exposition(collect)())
    counts = [found["disco_x_seconds_bucket", (("kind", "a"), ("le", le))] for le in ("0.1", "1.0")]
    assert counts == [2, 3]
    assert found["disco_x_seconds_bucket", (("kind", "a"), ("le", "+Inf"))] == 4
    assert found["disco_x_seconds_count", (("kind", "a"),)] == 4
    assert found["disco_x_seconds_sum", (("kind", "a"),)] == pytest.approx(7.65)


def test_the_process_and_its_release_are_part_of_every_exposition():
    """And what a daemon counts is asked for anew each time."""
    count = iter(range(5))

    def collect():
        yield CounterMetricFamily("disco_things", "Things.", next(count))

    write = exposition(collect)
    first, second = samples(write()), samples(write())
    assert second["disco_things_total", ()] == first["disco_things_total", ()] + 1
    assert second["disco_build_info", (("version", __version__),)] == 1
    assert second["process_resident_memory_bytes", ()] > 1 << 20
