"""The route `/metrics`: the contract's metrics and then the engine's, in Prometheus' text format.

Every adapter serves it.
"""

from collections.abc import Iterator, Mapping

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from contracts import metrics
from inference_adapters.weight_updates import WeightUpdates

FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def metrics_routes(updates: WeightUpdates) -> APIRouter:
    """Returns the route `/metrics`, with a registry of its own for each app."""
    registry = CollectorRegistry()
    registry.register(ContractMetrics(updates))

    async def loaded() -> None:
        updates.require_loaded()

    router = APIRouter(dependencies=[Depends(loaded)])

    @router.get("/metrics")
    async def exposition() -> Response:
        of_engine = await updates.engine.metrics()
        text = generate_latest(registry).decode() + of_engine
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


class ContractMetrics(Collector):
    """Collects the contract's metrics from the server's state, on each request."""

    def __init__(self, updates: WeightUpdates):
        self.updates = updates

    def collect(self) -> Iterator[Metric]:
        process = self.updates.engine.process()
        totals = self.updates.totals
        load = {"running": process.running, "waiting": process.waiting}
        yield _family(metrics.WEIGHT_VERSION, self.updates.ledger.version)
        yield _family(metrics.REQUESTS, load)
        yield _family(metrics.RESIDENT_BYTES, process.resident_bytes)
        yield _family(metrics.UPDATES, totals.updates)
        yield _family(metrics.UPDATE_SECONDS, totals.update_s)
        yield _family(metrics.PAUSED_SECONDS, totals.paused_s)
        yield _family(metrics.SAMPLED_TOKENS, totals.sampled_tokens)
        yield _family(metrics.HTTP_REQUESTS, totals.requests)


def _family(metric: metrics.Metric, value: float | Mapping[str, float]) -> Metric:
    """Returns a metric with its value, or with one value per label."""
    family = FAMILIES[metric.type](metric.family, metric.help, labels=[metric.label] if metric.label else [])
    for labels, number in [([label], n) for label, n in value.items()] if metric.label else [([], value)]:
        family.add_metric(labels, number)
    return family
