"""Selects the weight publications that delimit a trace."""

from contracts.records import Resumed, WeightsPublished
from pipelinerl.streams import Streams
from pipelinerl.streams.events import recorded_events
from pipelinerl.streams.run_directory import InvalidInputError

VERSIONS = 4  # default length of a trace


def published_versions(streams: Streams) -> dict[int, WeightsPublished]:
    """Returns the last publication of each version, except versions that a resumption has undone."""
    live: dict[int, WeightsPublished] = {}
    for event in recorded_events(streams, ("trainer_events",)):
        if isinstance(event, Resumed):
            live = {version: published for version, published in live.items() if version <= event.version}
        elif isinstance(event, WeightsPublished):
            live[event.version] = event
    return live


def window(live: dict[int, WeightsPublished], first: int, last: int | None) -> tuple[int, int]:
    """Returns the first and last version of a trace. By default, `last` is VERSIONS after `first`.

    Raises InvalidInputError if one of them was not published or they are not in ascending order.
    """
    if not live:
        raise InvalidInputError("the run has published no weights yet")
    newest = max(live)
    last = min(first + VERSIONS, newest) if last is None else last
    if first not in live or last not in live or first >= last:
        raise InvalidInputError(
            f"there is no time from version {first} to {last}: {min(live)} to {newest} were published"
        )
    return first, last
