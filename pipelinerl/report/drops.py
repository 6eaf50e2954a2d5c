"""Describes the dropped groups of a run, by reason. Pure."""

from collections.abc import Mapping

from pipelinerl.streams.drop_reasons import meaning_of


def describe_drops(groups: Mapping[str, float]) -> str:
    """Returns the numbers of dropped groups and the reasons, most frequent first. groups: by reason."""
    counts = sorted((item for item in groups.items() if item[1]), key=lambda item: -item[1])
    if not counts:
        return "none"
    named = [f"{reason} ({meaning_of(reason).brief})" for reason, _ in counts]
    if len(counts) > 1:
        named = [f"{count:,.0f} {name}" for (_, count), name in zip(counts, named, strict=True)]
    return f"{sum(count for _, count in counts):,.0f}: {', '.join(named)}"
