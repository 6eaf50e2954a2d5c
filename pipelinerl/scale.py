"""Change the number of inference servers of a run that is running.

    python -m pipelinerl.scale RUN_DIR servers=4

The launcher starts servers that are missing as soon as they have a place. They join at the next publication
of weights. Those beyond the number get no new requests, and end when their last ones have had time to finish.
A run that is resumed begins with `world.servers` again.
"""

import argparse
import re
import sys
from pathlib import Path

from contracts.support.messages import one_line
from pipelinerl.launcher.scaling import ask_for_servers
from pipelinerl.streams import StreamError
from pipelinerl.streams.base import StreamBusyError
from pipelinerl.streams.of_run import recorded_streams

MOST = 10_000


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelinerl.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path, help="the directory of the run")
    parser.add_argument("servers", help="servers=N, with N at least 1")
    given = parser.parse_args(arguments)
    found = re.fullmatch(r"servers=(\d{1,5})", given.servers)
    if not found or not 1 <= int(found[1]) <= MOST:
        return refuse(f"{given.servers}: write servers=N, with N from 1 to {MOST}")
    if not (given.run_dir / "config.yaml").is_file():
        return refuse(f"{given.run_dir} holds no run (no config.yaml there)")
    try:
        if not has_launcher(given.run_dir):
            return refuse(f"the run in {given.run_dir} is not running; set world.servers when it is resumed")
    except StreamError as error:
        return refuse(one_line(error))
    ask_for_servers(given.run_dir, int(found[1]))
    print(f"asked for {found[1]} servers; `launcher_events` tells who joins and who leaves")
    return 0


def has_launcher(run_dir: Path) -> bool:
    """Returns whether the launcher of the run is alive: it holds the writer of its stream as long."""
    with recorded_streams(run_dir) as streams:
        try:
            streams.writer("launcher_events").close()
        except StreamBusyError:
            return True
    return False


def refuse(why: str) -> int:
    print(f"scale: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
