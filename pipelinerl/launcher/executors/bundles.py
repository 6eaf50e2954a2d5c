"""Groups and bundles of the resources that jobs request of a cluster. Pure computation."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.launcher.executors.base import ResourceRequest

LEAST_CPUS = 0.01  # Ray refuses a placement group without resources


@dataclass(frozen=True)
class Resources:
    cpus: float = 0.0
    gpus: float = 0.0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus - other.cpus, self.gpus - other.gpus)

    def holds(self, other: "Resources") -> bool:
        return self.cpus >= other.cpus and self.gpus >= other.gpus

    def __str__(self) -> str:
        named = [("GPU", self.gpus), ("CPU", self.cpus)]
        return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in named if amount) + "}"


def needs_of(request: ResourceRequest) -> Resources:
    return Resources(max(request.cpus, LEAST_CPUS), request.gpus)


def size(requests: Iterable[ResourceRequest]) -> tuple[float, ...]:
    """Returns the sort key of a group: most bundles first, then most GPUs, then most cores."""
    bundles = bundles_of(requests)
    total = sum(bundles.values(), Resources())
    return (-len(bundles), -total.gpus, -total.cpus)


def bundles_of(requests: Iterable[ResourceRequest]) -> dict[str, Resources]:
    """Returns the total resources of each bundle of the jobs."""
    bundles: dict[str, Resources] = {}
    for request in requests:
        bundles[request.bundle] = bundles.get(request.bundle, Resources()) + needs_of(request)
    return bundles


def every_bundle_of(requests: Iterable[ResourceRequest]) -> list[tuple[str, Resources]]:
    """Returns the name and the resources of every bundle of every group."""
    return [bundle for members in groups_of(requests).values() for bundle in bundles_of(members).items()]


def in_words(needs: Iterable[Resources]) -> str:
    """Returns the bundles as text, such as `{CPU: 2} + 4 x {GPU: 1, CPU: 1}`."""
    counts = Counter(map(str, needs))
    return " + ".join(f"{count} x {each}" if count > 1 else each for each, count in counts.items())


def groups_of(requests: Iterable[ResourceRequest]) -> dict[str, list[ResourceRequest]]:
    """Returns the jobs of each group, the largest group first, because small ones fit in the remainder."""
    groups: dict[str, list[ResourceRequest]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    return dict(sorted(groups.items(), key=lambda group: size(group[1])))
