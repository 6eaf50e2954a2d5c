"""Changes the number of inference servers of a live run.

    python -m pipelinerl.scale RUN_DIR servers=4

The launcher starts additional servers as soon as they are placed. They join at the next publication of
weights. Surplus servers get no new requests, and end after a time to finish their last ones. A resumed run
starts with `world.servers` again.
"""

import re
import sys
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from pipelinerl.launcher.supervising.scaling import request_servers

MOST = 10_000
ANSWER_S = 60.0  # longest delay of a new file on a shared file system


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("pipelinerl.scale", __doc__)
    parser.add_argument("run_dir", type=Path, help="the directory of the run")
    parser.add_argument("servers", help="servers=N, with N at least 1")
    given = parser.parse_args(arguments)
    found = re.fullmatch(r"servers=(\d{1,5})", given.servers)
    if not found or not 1 <= int(found[1]) <= MOST:
        return refuse(f"{given.servers}: write servers=N, with N from 1 to {MOST}")
    if not (given.run_dir / "config.yaml").is_file():
        return refuse(f"{given.run_dir} holds no run (no config.yaml there)")
    if (given.run_dir / "summary.json").exists():
        return refuse(f"the run in {given.run_dir} has ended; set world.servers when it is resumed")
    try:
        refusal = request_servers(given.run_dir, int(found[1]), ANSWER_S)
    except OSError as error:
        return refuse(f"nothing can be asked in {given.run_dir}: {one_line(error)}")
    if refusal is None:
        return refuse(
            f"the launcher of {given.run_dir} has not answered within {ANSWER_S:g} s; if it does not run, "
            "set world.servers when the run is resumed"
        )
    if refusal:
        return refuse(f"the number of servers stays: {refusal}")
    print(f"asked for {found[1]} servers; `launcher_events` tells who joins and who leaves")
    return 0


def refuse(why: str) -> int:
    print(f"scale: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
