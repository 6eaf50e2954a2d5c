"""What jobs ask of a Ray cluster, as resources. It imports no engine."""

from collections.abc import Iterable

from pipelinerl.launcher.executors.base import Want
from pipelinerl.launcher.executors.ray_nodes import Resources

LEAST_CPUS = 0.01  # of a keeper: a group of nothing cannot be made


def needs_of(want: Want) -> Resources:
    return Resources(max(want.cpus, LEAST_CPUS), want.gpus)


def size(wants: Iterable[Want]) -> tuple[float, ...]:
    """Returns what sorts groups: those of more bundles first, then those of more GPUs, then of more cores."""
    bundles = bundles_of(wants)
    total = sum(bundles.values(), Resources())
    return (-len(bundles), -total.gpus, -total.cpus)


def bundles_of(wants: Iterable[Want]) -> dict[str, Resources]:
    """Returns what each bundle of the jobs needs together."""
    bundles: dict[str, Resources] = {}
    for want in wants:
        bundles[want.bundle] = bundles.get(want.bundle, Resources()) + needs_of(want)
    return bundles
