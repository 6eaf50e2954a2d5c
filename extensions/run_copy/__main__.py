"""Copies a run to a second place.

    python -m extensions.run_copy RUN_DIR --to DIRECTORY

The copy is DIRECTORY/NAME_OF_RUN_DIR. It can be resumed. Only what has changed is copied. The command may be
stopped at any time, and repeated. docs/reliability.md says what a copy holds.
"""

import sys
import time
from pathlib import Path

from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from extensions.run_copy.copying import CopyError, copy_run, newest_checkpoint
from extensions.run_copy.places import copy_in
from pipelinerl.observers import end_path

POLL_S = 1.0
FAILING_S = 120.0  # time of failures in a row before the launcher is told


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.run_copy", __doc__)
    parser.add_argument("run_dir", type=Path, help="the directory of the run")
    parser.add_argument("--to", type=Path, required=True, metavar="DIRECTORY", help="where the copy is put")
    parser.add_argument("--with-run", action="store_true", help="copy after each checkpoint until the end")
    given = parser.parse_args(arguments)
    run_dir = given.run_dir.resolve()
    copy = copy_in(given.to.resolve(), run_dir)
    try:
        if given.with_run and not _follow(run_dir, copy):
            print(f"{run_dir} is itself the copy, or has no checkpoint, so it is not copied")
            return 0
        print(f"{copy} has checkpoint {copy_run(run_dir, copy).version}", flush=True)
    except (CopyError, OSError) as error:
        print(f"run_copy: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _follow(run_dir: Path, copy: Path) -> bool:
    """Copies after each checkpoint, until the launcher says that nothing more will be written.

    Tries again if that fails, and raises the error if it still does after FAILING_S. Returns True if there
    is something to copy at the end.
    """
    copied = None
    failing_since = None
    while not end_path(run_dir).exists():
        try:
            newest = None if copy == run_dir else newest_checkpoint(run_dir)
            if newest not in (None, copied):
                copied = copy_run(run_dir, copy)
                failing_since = None
                print(f"{copy} has checkpoint {copied.version}", flush=True)
        except (CopyError, OSError) as error:
            failing_since = failing_since or time.monotonic()
            if time.monotonic() > failing_since + FAILING_S:
                raise
            print(f"run_copy: {one_line(error)}; tried again", file=sys.stderr)
        time.sleep(POLL_S)
    return copy != run_dir and newest_checkpoint(run_dir) is not None


if __name__ == "__main__":
    sys.exit(main())
