"""Shows runs in the browser, down to the tokens of each rollout.

    python -m extensions.viewer runs/latest          a run, also while it is running
    python -m extensions.viewer runs                 all runs in a directory
    python -m extensions.viewer runs/latest --export report.html

The server listens on the loopback address and prints the URL to open, which contains a token. It never
changes a run: its own files are in RUN_DIR/view, which may be deleted. Stop it with Ctrl-C.
"""

import argparse
import gc
import os
import sys
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.viewer.runs.directory import Runs
from extensions.viewer.server.serve import serve
from pipelinerl.errors import PlanError
from pipelinerl.streams import StreamError
from pipelinerl.streams.run_directory import InvalidInputError

NICE = 10  # lower priority than the run's processes


def port(text: str) -> int:
    """Parses a TCP port. 0 selects a free port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port: 0 to 65535")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.viewer", __doc__)
    parser.add_argument("path", type=Path, help="a run directory, or a directory of runs")
    parser.add_argument("--port", type=port, default=0, help="TCP port; a free port by default")
    parser.add_argument("--export", type=Path, metavar="FILE.html", help="write the run to one file and exit")
    parser.add_argument(
        "--end-with-run", action="store_true", help="exit when the run ends, as with observers=viewer"
    )
    given = parser.parse_args(arguments)
    os.nice(NICE)
    gc.freeze()  # excludes imported objects from collection, which would slow down the exit
    try:
        runs = Runs(given.path)
        if (given.export or given.end_with_run) and not runs.is_single:
            raise InvalidInputError(f"{given.path} is not the directory of one run: name one in it")
        if given.export:
            from extensions.viewer.report_file import write_report

            print(write_report(runs, given.export))
        else:
            serve(runs, given.path.resolve(), given.port, given.end_with_run)
    except (InvalidInputError, PlanError, StreamError, OSError) as error:
        print(f"extensions.viewer: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
