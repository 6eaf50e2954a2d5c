"""Writes the metrics of a run to trackers, in a separate process that follows the run.

    python -m extensions.viewer.track RUN_DIR --to wandb trackio tensorboard

A tracker gets each line of RUN_DIR/metrics/*.jsonl once. The command ends when the run has ended, or with
Ctrl-C. If it is killed and started again, also after the run has ended or was resumed, it continues where it
stopped. docs/trackers.md describes each tracker.
"""

import signal
import sys
import time
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.viewer.follower import Follower
from extensions.viewer.run_end import RunEnd
from extensions.viewer.trackers import missing_library, unknown_tracker
from pipelinerl.errors import PlanError

POLL_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.viewer.track", __doc__)
    parser.add_argument("run_dir", type=Path, help="the directory of the run")
    parser.add_argument("--to", nargs="+", required=True, metavar="TRACKER", help="wandb trackio tensorboard")
    parser.add_argument("--once", action="store_true", help="write what is there now, and end")
    given = parser.parse_args(arguments)
    names = list(dict.fromkeys(given.to))
    run_dir = given.run_dir.resolve()
    try:
        check(run_dir, names)
        for how_to_see in follow(run_dir, names, given.once):
            print(how_to_see)
    except PlanError as error:
        print(f"track: {one_line(error)}", file=sys.stderr)
        return 2
    except Exception as error:  # a tracker's library may raise any error, e.g. of a disk, setting or server
        print(f"track: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def check(run_dir: Path, names: list[str]) -> None:
    """Raises PlanError if `run_dir` has no run, or a tracker is unknown or not installed."""
    for name in names:
        if why_not := unknown_tracker(name) or missing_library(name):
            raise PlanError(why_not)
    if not (run_dir / "config.yaml").is_file():
        raise PlanError(f"{run_dir} holds no run (no config.yaml there)")


def follow(run_dir: Path, names: list[str], once: bool) -> list[str]:
    """Writes to these trackers until the run has ended. Returns how to view each tracker's content."""
    asked_to_end: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    followers = [Follower(run_dir, name) for name in names]
    end = RunEnd(run_dir)
    while True:
        is_last = once or bool(asked_to_end) or end.has_come()  # before the lines are read
        for follower in followers:
            follower.advance()
        if is_last:
            return [follower.close() for follower in followers]
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
