"""The summary of a recorded run, without its tables and files."""

from pathlib import Path

from pipelinerl.report.run_totals import read_totals
from pipelinerl.report.summary import summary_of
from pipelinerl.report.wall_time import Launch
from pipelinerl.streams.of_run import recorded_streams


def summarise(run_dir: Path, launch: Launch | None = None) -> dict[str, object]:
    """Returns the summary. `launch`: the one that has just ended, if it counts by its own clock."""
    with recorded_streams(run_dir) as streams:
        return summary_of(read_totals(run_dir, streams), launch)
