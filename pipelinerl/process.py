"""The entry point of a run's processes: reads arguments and configuration, and sets up the log."""

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
THREADS_S = 10.0  # longest wait for threads of user components, after the work of a process
WRITING_S = 300.0  # the same after an error, because a checkpoint may still be written
REFUSED = 2  # exit status of a process that a restart would not help
REFERENCE_VARIABLE = "PIPELINERL_REFERENCE"  # the reference server's URL


def process_main(name: str, work: Callable[[RunConfig, Path, str | None], None]) -> None:
    """Runs `work(config, run_dir, token)`, and ends the process even if a thread is still running.

    SIGTERM ends it at once, without a traceback. The exit status after GaveUpError and CannotContinueError is
    REFUSED.
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
    """Ends this process with the status after `within_s`, even if threads are still running."""
    timer = threading.Timer(within_s, _end, [status])
    timer.daemon = True
    timer.start()


def _end(status: int) -> None:
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    log.warning("the process ends, and its threads with it, of which parts have left %s", ", ".join(left))
    sys.stdout.flush()
    os._exit(status)
