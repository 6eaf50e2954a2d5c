"""Miniature runs by the real launcher, for tests of what pages show of them."""

from collections.abc import Iterator
from pathlib import Path

from contracts.records import Record, Rollout
from pipelinerl.streams.of_run import recorded_streams
from tests.pipeline.runs import finish, start

# Requests that last so long that many are under way while weights change.
UNHURRIED = ("sampling.max_tokens=24", "+inference.arguments.token_delay_s=0.02")


def run_to_its_end(run_dir: Path, *overrides: str) -> None:
    status, err = finish(start(run_dir, *overrides))
    assert status == 0, err


def records_at(run_dir: Path, stream: str) -> Iterator[tuple[int, Record]]:
    """Yields each record of a stream with the offset at which it begins."""
    with recorded_streams(run_dir) as streams:
        reader = streams.reader(stream)
        offset = reader.first_offset()
        for entry in reader.read(timeout_s=0):
            yield offset, entry.record
            offset = entry.next_offset


def rollouts_of(run_dir: Path) -> dict[str, Rollout]:
    """Returns the training rollouts of a run in files, by the names that pages have for them."""
    return {f"train/{offset}": record for offset, record in records_at(run_dir, "rollouts")}
