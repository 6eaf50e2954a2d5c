"""What jobs ask of a Ray cluster, as resources. It imports no engine."""

from collections import Counter
from collections.abc import Iterable

from pipelinerl.launcher.executors.base import Want
from pipelinerl.launcher.executors.on_ray.nodes import Node, Resources

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


def in_words(needs: Iterable[Resources]) -> str:
    """Returns bundles such as `{CPU: 2} + 4 x {GPU: 1, CPU: 1}`."""
    counts = Counter(map(str, needs))
    return " + ".join(f"{count} x {each}" if count > 1 else each for each, count in counts.items())


def groups_of(wants: Iterable[Want]) -> dict[str, list[Want]]:
    """Returns the jobs of each group, the largest group first: what is small finds a place beside it."""
    groups: dict[str, list[Want]] = {}
    for want in wants:
        groups.setdefault(want.group, []).append(want)
    return dict(sorted(groups.items(), key=lambda group: size(group[1])))


def fits(wants: Iterable[Want], nodes: Iterable[Node]) -> str:
    """Returns a clause that says which groups would have a place now, if nobody else asked for one."""
    free = [node.free for node in nodes if node.drains_at is None]
    groups = groups_of(wants)
    waiting = []
    for name, members in groups.items():
        needs = bundles_of(members)
        left = after(needs.values(), free)
        if left is None:
            waiting.append(f"{name} waits for {in_words(needs.values())}")
        else:
            free = left
    return "; ".join([f"fits now: {len(groups) - len(waiting)} of {len(groups)} groups", *waiting])


def after(needs: Iterable[Resources], free: list[Resources]) -> list[Resources] | None:
    """Returns what is free once all of these have a place, or None where they have not."""
    left = list(free)
    for bundle in sorted(needs, key=lambda bundle: (-bundle.gpus, -bundle.cpus)):
        holding = [i for i, node in enumerate(left) if node.holds(bundle)]
        if not holding:
            return None
        fullest = min(holding, key=lambda i: (left[i].gpus, left[i].cpus))
        left[fullest] -= bundle
    return left
