"""What was dropped, in plain words: counts of groups by reason, each with what the reason means. Pure."""

from collections.abc import Mapping

from contracts.records import DropReason

MEANINGS = {
    DropReason.ZERO_ADVANTAGE: "all rewards equal",
    DropReason.OVERLONG: "answers cut off",
    DropReason.ADVANTAGE_RANGE: "an advantage too large",
    DropReason.STALE: "sampled by weights older than max_lag allows",
    DropReason.FAILED: "fewer than two rollouts without failure",
    DropReason.NONFINITE: "a gradient that was not finite",
    DropReason.TRAINING_DONE: "left over at the end",
    DropReason.INTERRUPTED: "in flight at a stop",
    DropReason.ROLLED_BACK: "sampled by weights that were undone",
    DropReason.TOKEN_FIELDS: "sampled with other token fields",
}
OWN = "a reason of the run's own"


def describe_drops(groups: Mapping[str, float]) -> str:
    """Returns how many groups were dropped, and why, the most frequent reason first.

    groups: by reason.
    """
    counts = sorted((item for item in groups.items() if item[1]), key=lambda item: -item[1])
    if not counts:
        return "none"
    named = [f"{reason} ({MEANINGS.get(reason, OWN)})" for reason, _ in counts]
    if len(counts) > 1:
        named = [f"{count:,.0f} {name}" for (_, count), name in zip(counts, named, strict=True)]
    return f"{sum(count for _, count in counts):,.0f}: {', '.join(named)}"
