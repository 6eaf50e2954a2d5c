"""Broken servers. G10: the content of `/metrics`, and who may read it."""

from contracts.metrics import PAUSED_SECONDS
from inference_adapters import metrics_route
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.broken_servers.tokens_of_access import checked_by


@mutant("G10", "GET /metrics with no token: .200", part="routes")
def tells_its_metrics_without_the_token(options):
    checked_by(lambda scope, expected: scope["path"] == "/metrics")


@mutant("G10", "contract_weight_version 0 after version 1", part="metrics")
class TellsTheVersionThatItStartedWith(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = metrics_route.ContractMetrics.collect

        def collect(self):
            for family in right(self):
                if family.name == "contract_weight_version":
                    family.samples[0] = family.samples[0]._replace(value=version)
                yield family

        metrics_route.ContractMetrics.collect = collect


@mutant("G10", "contract_weight_version: gauge", part="metrics")
def labels_its_version_with_the_model(options):
    right = metrics_route.ContractMetrics.collect

    def collect(self):
        for family in right(self):
            if family.name == "contract_weight_version":
                family.samples[0] = family.samples[0]._replace(labels={"model": "scripted"})
            yield family

    metrics_route.ContractMetrics.collect = collect


@mutant("G10", "does not parse", part="metrics")
class AppendsMetricsAsJson(ScriptedEngine):
    async def metrics(self):
        return '{"running": 0}\n'


@mutant("G10", "twice", part="metrics")
class AppendsItsMetricsTwice(ScriptedEngine):
    async def metrics(self):
        return "# TYPE engine_steps counter\nengine_steps_total 1\n" * 2


@mutant("G10", PAUSED_SECONDS.name, part="metrics")
def does_not_tell_how_long_it_paused(options):
    right = metrics_route.ContractMetrics.collect

    def collect(self):
        return (family for family in right(self) if family.name != PAUSED_SECONDS.family)

    metrics_route.ContractMetrics.collect = collect
