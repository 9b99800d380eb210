"""What a service measures, in Prometheus' format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llm.service import Service

__all__ = ["Metrics"]

_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """What is measured, in Prometheus' format."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "disco_llm_requests",
            "Requests, by how they ended.",
            ["outcome"],
            registry=self._registry,
        )
        self.first = Histogram(
            "disco_llm_first_token_seconds",
            "From a request to the first token of its answer.",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self.between = Histogram(
            "disco_llm_between_tokens_seconds",
            "From a token to the next one.",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._registry.register(self)  # type: ignore[arg-type]

    def collect(self) -> Iterator[Metric]:
        """Yields what others count."""
        counts, engines = self._service.counts, self._service.engines
        for name, text, count in (
            ("prompt_tokens", "Tokens of prompts that were computed.", counts.prompt_tokens),
            ("shared_tokens", "Tokens of prompts found in the cache.", counts.shared_tokens),
            ("answer_tokens", "Tokens of answers.", counts.answer_tokens),
            ("steps", "Steps of all workers.", counts.steps),
            ("recoveries", "How often workers were replaced.", counts.recoveries),
        ):
            yield CounterMetricFamily(f"disco_llm_{name}", text, value=count)
        for name, text, value in (
            ("waiting", "Requests that have not begun.", sum(e.waiting for e in engines)),
            ("running", "Requests that are being answered.", sum(e.running for e in engines)),
            ("cache_blocks", "Blocks of the cache.", sum(e.pool.count for e in engines)),
            ("cache_blocks_used", "Those that answers hold.", sum(e.pool.used for e in engines)),
        ):
            yield GaugeMetricFamily(f"disco_llm_{name}", text, value=value)

        info = GaugeMetricFamily(
            "disco_llm_compute", "1, with what computes products as a label.", labels=["by"]
        )
        for computed_by in sorted({engine.computed_by for engine in engines} - {""}):
            info.add_metric([computed_by], 1)
        yield info

    def written(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)
