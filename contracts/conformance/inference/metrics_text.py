"""Checks `/metrics` of a server with the capability `metrics`. G10 uses it."""

from collections import Counter
from collections.abc import Sequence

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError
from contracts.metrics import METRICS, WEIGHT_VERSION
from contracts.metrics import Metric as ContractMetric

CAPABILITY = "metrics"
ROUTE = "/metrics"


async def check_metrics(bench: Bench) -> int:
    """Checks the metrics after each of two published versions. Returns the number of servers with metrics."""
    servers = [s for s in bench.servers if CAPABILITY in (await s.contract()).capabilities]
    if servers:
        async with bench.new_run() as trainer:
            for version in (1, 2):
                if version > trainer.version:
                    await trainer.publish(version, bench.weights(version))
                for server in servers:
                    # A completed request ensures that a status has been counted.
                    await server.complete(bench.reference.prompt(5), max_tokens=2)
                    _check_families(server, await _families(server), version)
    return len(servers)


async def _families(server: Server) -> list[Metric]:
    """Parses the metrics like Prometheus. Raises GuaranteeError if that fails."""
    async with server.http.get(server.url + ROUTE, headers=server.headers) as answer:
        status = answer.status
        kind = answer.content_type
        text = await answer.text()
    if (status, kind) != (200, "text/plain"):
        raise _error(server, f"{status} {kind} {text[:120]}", "200 text/plain: what Prometheus takes")
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise _error(server, f"text that does not parse: {error}", "Prometheus' text format") from error
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    samples = [(s.name, *sorted(s.labels.items())) for family in families for s in family.samples]
    if twice := [name for names in (declared, samples) for name, n in Counter(names).items() if n > 1]:
        raise _error(server, f"{twice[0]} twice", "each metric declared once, each sample given once")
    return families


def _check_families(server: Server, families: Sequence[Metric], version: int) -> None:
    """Checks that `families` contain the contract's metrics and report `version`."""
    by_name = {family.name: family for family in families}
    for metric in METRICS:
        family = by_name.get(metric.family)
        if family is None or family.type != metric.type or not _has_its_labels(family, metric):
            raise _error(
                server,
                f"{metric.name}: {f'{family.type} {family.samples}'[:120] if family else 'not there'}",
                f"a {metric.type}, with {metric.label} {', '.join(metric.always)}"
                if metric.label
                else f"a {metric.type}, without a label",
            )
    (sample,) = by_name[WEIGHT_VERSION.family].samples
    if sample.value != version:
        raise _error(
            server,
            f"{WEIGHT_VERSION.name} {sample.value:g} after version {version} was live",
            f"{version}, the version that samples",
        )


def _has_its_labels(family: Metric, metric: ContractMetric) -> bool:
    """Returns True if every sample has exactly the metric's label, and all required values are present."""
    names = {metric.label} if metric.label else set()
    values = {sample.labels.get(metric.label or "") for sample in family.samples}
    return all(set(s.labels) == names for s in family.samples) and values.issuperset(metric.always or (None,))


def _error(server: Server, measured: str, expected: str) -> GuaranteeError:
    return GuaranteeError(f"GET {ROUTE}: {measured}", expected, f"publish, then curl {server}{ROUTE}")
