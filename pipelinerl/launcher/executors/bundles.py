"""Groups and bundles of resources that jobs ask of a cluster. The bundles of a group are placed together.

Pure computation.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.launcher.executors.base import Want

LEAST_CPUS = 0.01  # a keeper's cores, because Ray makes no group without resources


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


def needs_of(want: Want) -> Resources:
    return Resources(max(want.cpus, LEAST_CPUS), want.gpus)


def size(wants: Iterable[Want]) -> tuple[float, ...]:
    """Returns the key that sorts groups: most bundles first, then most GPUs, then most cores."""
    bundles = bundles_of(wants)
    total = sum(bundles.values(), Resources())
    return (-len(bundles), -total.gpus, -total.cpus)


def bundles_of(wants: Iterable[Want]) -> dict[str, Resources]:
    """Returns the total resources of each bundle of the jobs."""
    bundles: dict[str, Resources] = {}
    for want in wants:
        bundles[want.bundle] = bundles.get(want.bundle, Resources()) + needs_of(want)
    return bundles


def every_bundle_of(wants: Iterable[Want]) -> list[tuple[str, Resources]]:
    """Returns the bundles of all groups, by name."""
    return [bundle for members in groups_of(wants).values() for bundle in bundles_of(members).items()]


def in_words(needs: Iterable[Resources]) -> str:
    """Returns the bundles as text, such as `{CPU: 2} + 4 x {GPU: 1, CPU: 1}`."""
    counts = Counter(map(str, needs))
    return " + ".join(f"{count} x {each}" if count > 1 else each for each, count in counts.items())


def groups_of(wants: Iterable[Want]) -> dict[str, list[Want]]:
    """Returns the jobs of each group, the largest group first, because small ones fit into what is left."""
    groups: dict[str, list[Want]] = {}
    for want in wants:
        groups.setdefault(want.group, []).append(want)
    return dict(sorted(groups.items(), key=lambda group: size(group[1])))
