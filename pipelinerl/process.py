"""The common start of a run's processes: reads the arguments and the configuration, and sets up the log."""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from contracts.errors import CannotContinueError
from contracts.support.command_line import command_parser
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.config import RunConfig, load_config
from pipelinerl.errors import GaveUpError

log = logging.getLogger(__name__)
THREADS_S = 10.0  # for threads that parts have left to end, after the work of a process
WRITING_S = 300.0  # the same after an error, when a checkpoint may still be written
REFUSED = 2  # exit status of a process that a restart would not help
REFERENCE_VARIABLE = "PIPELINERL_REFERENCE"  # the reference server's URL


def process_main(name: str, work: Callable[[RunConfig, Path, str | None], None]) -> None:
    """Runs `work(config, run_dir, token)`. SIGTERM ends the process at once, without a traceback.

    If `work` raises GaveUpError or CannotContinueError, the exit status is REFUSED. The process ends though a
    part has left a thread that does not.
    """
    parser = command_parser(
        f"pipelinerl.{name}",
        f"Runs the {name} of a run whose configuration is in DIR/config.yaml. The launcher starts it.\n\n"
        f"    python -m pipelinerl.{name} --run-dir DIR",
    )
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    status = 1
    try:
        work(load_config(run_dir), run_dir, os.environ.get(TOKEN_VARIABLE))
        status = 0
    except (GaveUpError, CannotContinueError):
        traceback.print_exc()
        status = REFUSED
        sys.exit(REFUSED)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        end_in_time(status, WRITING_S if status == 1 else THREADS_S)


def end_in_time(status: int, within_s: float = THREADS_S) -> None:
    """Has this process end with the status, however long the threads that are left go on."""
    timer = threading.Timer(within_s, _end, [status])
    timer.daemon = True
    timer.start()


def _end(status: int) -> None:
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    log.warning("the process ends, and its threads with it, of which parts have left %s", ", ".join(left))
    sys.stdout.flush()
    os._exit(status)
