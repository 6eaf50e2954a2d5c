"""Miniature runs by the real launcher, for tests of what pages show of them."""

from collections.abc import Iterator
from pathlib import Path

from contracts.records import Record, Rollout
from pipelinerl.streams.of_run import recorded_streams
from tests.pipeline.runs import finish, start

# On two servers. Requests last so long that many are under way while weights change.
REAL = (
    "max_steps=10",
    "world.servers=2",
    "sampling.max_tokens=24",
    "inference.concurrency=32",
    "+inference.arguments.token_delay_s=0.05",
    "+domain.agreeing=0.2",
)


def run_to_its_end(run_dir: Path, *overrides: str) -> None:
    status, err = finish(start(run_dir, *overrides))
    assert status == 0, err


def read_to_its_end(path: Path) -> str:
    """Returns the text of a file, or nothing while it is not there."""
    return path.read_text() if path.exists() else ""


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
